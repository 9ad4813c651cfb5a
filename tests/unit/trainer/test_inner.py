import json

import numpy as np
import pytest
import tensorflow as tf

from pipeline.audit.key_log import Header, KeyLogWriter
from trainer import optimizers, strategies
from trainer.cluster import ALONE
from trainer.config import TrainConfig
from trainer.inner import InnerLoop, LoggedInnerLoop
from trainer.step import Stepper

KEYS = [f"k{i}" for i in range(8)]


def stepper_of(replicas, make_state):
    config = TrainConfig.for_model(
        "mlp", data_dir="", model_dir="", strategy="mirrored", num_replicas=replicas, global_batch_size=8
    )
    strategy = strategies.create(config, ALONE)
    return Stepper(strategy, make_state(strategy, "momentum"), optimizers.StaircaseDecay(0.5, 0.9, 2))


def with_keys(batch):
    """Returns the batch as the input gives it with features=("key",)."""
    images, labels, weights = batch
    return {"image": images, "key": np.array(KEYS)}, labels, weights


def iterator_of(stepper, *batches):
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    return iter(stepper.strategy.experimental_distribute_dataset(dataset.repeat(), options))


@pytest.fixture
def log(tmp_path, spec):
    with KeyLogWriter(tmp_path / "logs" / "log.jsonl", Header.of(spec, 1, 2, 4)) as log:
        yield log


def lines_of(tmp_path):
    return [json.loads(line) for line in (tmp_path / "logs" / "log.jsonl").read_text().splitlines()][1:]


@pytest.mark.parametrize("replicas", [1, 2])
def test_logged_or_not_the_updates_are_the_same(replicas, make_state, batch, log):
    plain, logged = stepper_of(replicas, make_state), stepper_of(replicas, make_state)
    result = InnerLoop(plain, iterator_of(plain, batch))(5)
    assert LoggedInnerLoop(logged, iterator_of(logged, with_keys(batch)), log, 0)(5) == result
    assert (result.step, result.finite) == (5, True)
    for one, other in zip(plain.state.model.variables, logged.state.model.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_every_replica_of_a_step_is_a_line_that_is_there_when_the_loop_ends(make_state, batch, log, tmp_path):
    stepper = stepper_of(2, make_state)
    stepper.state.global_step.assign(40)
    LoggedInnerLoop(stepper, iterator_of(stepper, with_keys(batch)), log, first_replica=2)(2)
    assert lines_of(tmp_path) == [
        {"step": step, "replica": replica, "keys": keys, "weights": weights}
        for step in (40, 41)
        for replica, keys, weights in ((2, KEYS[:4], [1, 1, 1, 0]), (3, KEYS[4:], [0, 0, 0, 0]))
    ]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_bad_step_is_the_last(replicas, make_state, batch, log, tmp_path):
    images, labels, weights = batch
    bad = images.copy()
    bad[1, 0, 0, 0] = np.nan
    stepper = stepper_of(replicas, make_state)
    batches = iterator_of(stepper, with_keys(batch), with_keys((bad, labels, weights)))
    result = LoggedInnerLoop(stepper, batches, log, 0)(5)
    assert (result.step, result.finite) == (2, False)
    assert [line["step"] for line in lines_of(tmp_path)] == sorted([0, 1] * replicas)
