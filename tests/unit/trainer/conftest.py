"""Small data sets and states of the trainer."""

import dataclasses
import sys
import types

import numpy as np
import pytest

from pipeline.order.order import OrderSpec
from trainer.cluster.tf_config import ALONE
from trainer.config import parse

IMAGE_SHAPE = (4, 3, 1)
CLASSES = 5


@pytest.fixture(autouse=True)
def _precision():
    """A model of another --precision leaves that to no other test of the process."""
    yield
    if keras := sys.modules.get("keras"):
        keras.config.set_dtype_policy("float32")


@pytest.fixture
def config_of():
    """Returns a function that makes a config from flags, without averaged weights; None leaves a flag out."""

    def config_of(**flags):
        given = {"data_dir": "D", "model_dir": "M", "ema": 0, **flags}
        return parse([f"--{name}={value}" for name, value in given.items() if value is not None])

    return config_of


@pytest.fixture
def spec():
    return OrderSpec("d" * 64, "train", 0, 8, 1, 1 << 20, "pad", True)


@pytest.fixture
def make_strategy(config_of):
    """Returns a function that makes a strategy of this process, as the trainer does."""

    def make(replicas=1, name="mirrored"):
        from trainer.cluster import strategies

        return strategies.create(config_of(strategy=name, num_replicas=replicas).run, 24, ALONE)

    return make


@pytest.fixture
def make_state(config_of):
    """Returns a function that makes a state on a strategy: of a small mlp, or of the model that `build` returns."""

    def make(
        strategy, optimizer="sgd", seed=0, build=None, rate=0.5, labels=None, shape=IMAGE_SHAPE, names=None, **flags
    ):
        import tensorflow as tf

        from trainer.config.phases import Phases
        from trainer.step import state
        from trainer.task import DataSpec, Task

        class Given(Task):
            def build_model(self):
                return build() if build else super().build_model()

        if build:
            flags.setdefault("model", "own:model")  # whose defaults are not those of mlp
        config = config_of(optimizer=optimizer, seed=seed, **flags)
        images = tf.TensorSpec([None, *shape], tf.float32)
        names = names or tuple(map(str, range(CLASSES)))
        spec = DataSpec(images, labels or tf.TensorSpec([None], tf.int64), names)
        phases = Phases.of(config.optimizer.phases, 10, 100)
        rates = rate if callable(rate) else lambda step: tf.constant(rate)
        return state.build(config, spec, strategy, Given, rates, phases)

    return make


@pytest.fixture
def make_stepper(make_strategy, make_state, config_of):
    """Returns a function that makes a stepper on a number of replicas, with `make_state`'s state and the command's
    flags.
    """

    def make(replicas=1, optimizer="sgd", name="mirrored", **options):
        from trainer.step import train_step

        flags = {key: value for key, value in options.items() if key not in ("build", "rate", "labels", "shape")}
        strategy = make_strategy(replicas, name)
        state = make_state(strategy, optimizer, **options)
        return train_step.create(strategy, state, config_of(optimizer=optimizer, **flags), None)

    return make


@pytest.fixture
def step_and_evaluation():
    """Returns a function that makes one update on a batch, then evaluates on it: the values of both, by name."""

    def both(stepper, batch):
        import tensorflow as tf

        from trainer.step.evaluation import EvaluationStep

        batches = stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat())
        result = stepper.run(iter(batches), 1)
        evaluation = EvaluationStep(stepper.strategy, stepper.state, stepper.virtual_replicas)
        sums = evaluation.evaluate(iter(batches), tf.constant(1, tf.int64))
        found = {name: float(value) for name, value in stepper.state.measure.results(sums).items()}
        return dict(zip(stepper.value_names, result.values.numpy().tolist(), strict=True)), found

    return both


@pytest.fixture
def make_checkpoints(tmp_path, spec, config_of):
    """Returns a function that makes the CheckpointManager of a state, with changes to the flags or the order.

    The run has 30 steps of 10 per epoch; `dataset` is the name of its data set of 9 records.
    """

    def make(state, is_chief=True, order=None, dataset="digits", **flags):
        from trainer.checkpoint.manager import CheckpointManager

        order = dataclasses.replace(spec, **(order or {}))
        part = types.SimpleNamespace(
            spec=order,
            manifest=types.SimpleNamespace(dataset=dataset, pixel_rule=None),
            order=types.SimpleNamespace(counts=(9,)),
        )
        training = types.SimpleNamespace(spec=order, steps_per_epoch=10, parts=(part,))
        evaluation = {flags.get("eval_split", "test"): types.SimpleNamespace(spec=spec)}
        config = config_of(**{"model_dir": tmp_path, **flags})
        return CheckpointManager(config, training, evaluation, state, {}, is_chief=is_chief, say=print)

    return make


@pytest.fixture
def make_trained(make_strategy, make_state, make_checkpoints, tmp_path):
    """Returns a function that makes the model of a checkpoint: of step 7, the last of the run in `run`.

    The data set, in `data`, has 2 training examples and a test split of 11 in three shards; `kind` says how it is made.
    """

    def make(kind=None, data_dir=None, **flags):
        from tests.helpers.datasets import Kind, write_dataset
        from trainer import inference
        from trainer.checkpoint import reader
        from trainer.config.trained import CheckpointFlags

        (tmp_path / "run").mkdir()
        manifest = write_dataset(tmp_path / "data", (2,), IMAGE_SHAPE, (4, 3, 4), CLASSES, kind or Kind())
        state = make_state(make_strategy(1, "one_device"), **flags)
        state.global_step.assign(7)
        data_dir = data_dir or tmp_path / "data"
        given = {"model_dir": tmp_path / "run", "data_dir": data_dir, "train_steps": 7, "global_batch_size": 4}
        make_checkpoints(state, order={"manifest_digest": manifest.digest}, **{**given, **flags}).save()
        return inference.build(reader.read(tmp_path / "run" / "ckpt-7"), CheckpointFlags(str(tmp_path / "run")))

    return make


@pytest.fixture
def batch():
    """A global batch of 8 whose rows 4 to 7, all that the second of two replicas gets, are padding."""
    draw = np.random.default_rng(0)
    images = draw.normal(size=(8, *IMAGE_SHAPE)).astype(np.float32)
    labels = draw.integers(0, CLASSES, 8)
    weights = np.array([1, 1, 1, 0, 0, 0, 0, 0], np.float32)
    return images, labels, weights
