import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.checkpoint.reader import load_first_weights
from trainer.config.model import FirstWeights
from trainer.step.measures import RowMeasure
from trainer.task import DataSpec, Task, classes_of, gives_probabilities, shape_of, uncalled


def task(config_of, **flags):
    spec = DataSpec(tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64), ("a", "b", "c"))
    return Task(config_of(**flags), spec)


def test_label_smoothing_is_that_of_keras(config_of):
    logits = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float32)
    labels = tf.constant([0, 1, 2, 1, 0], tf.int64)
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2, reduction=None)
    found = task(config_of, label_smoothing=0.2).loss(labels, logits)
    np.testing.assert_allclose(found, expected(tf.one_hot(labels, 3), logits), rtol=1e-6)
    plain = task(config_of).loss(labels, logits)
    np.testing.assert_allclose(plain, task(config_of).loss(tf.one_hot(labels, 3), logits), rtol=1e-6)


def test_soft_labels(config_of):
    logits = tf.constant([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    soft = tf.constant([[0.7, 0.3, 0.0], [0.6, 0.0, 0.4]])
    made = task(config_of)
    expected = -np.sum(soft * tf.nn.log_softmax(logits), axis=1)
    np.testing.assert_allclose(made.loss(soft, logits), expected, rtol=1e-6)
    assert made.metrics(soft, logits)["accuracy"].numpy().tolist() == [1.0, 0.0]


class Returns(Task):
    given = None

    def evaluate(self, model, features, labels):
        return self.given


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda: tf.zeros(4), r"Returns.evaluate: must return losses \(rows,\) and a dict"),
        (lambda: (tf.zeros(()), {}), r"loss must have one number for each of 4 rows, shape \(4,\); got shape \(\)"),
        (
            lambda: (tf.zeros(4), {"error": tf.zeros((4, 2))}),
            r"error must have one number for each of 4 rows.*got shape \(4, 2\)",
        ),
        (lambda: (tf.zeros(4), {"loss": tf.zeros(4)}), "called weight or loss"),
        (
            lambda: (tf.zeros(4), {"error": 3.0}),
            r"error must have one number for each of 4 rows.*got 3.0",
        ),
    ],
)
def test_what_a_task_may_not_return(give, message, config_of):
    made = Returns(config_of(), None)
    made.given = give()
    with pytest.raises(UsageError, match=message):
        RowMeasure(made).evaluation_sums(None, None, None, tf.ones(4))


def test_a_step_of_its_own(make_strategy, config_of, batch):
    """Two passes of the model in one step: the loss is on both."""
    from trainer.step import state, train_step

    class Twice(Task):
        def build_model(self):
            keras.utils.set_random_seed(2)
            return keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(5)])

        def train_step(self, model, features, labels):
            outputs = model(features, training=True), model(-features, training=True)
            losses = [self.loss(labels, one) for one in outputs]
            return losses[0] + 0.5 * losses[1], {"second": losses[1]}

    images, labels, weights = batch
    config = config_of(optimizer="sgd")
    spec = DataSpec(tf.TensorSpec([None, 4, 3, 1]), tf.TensorSpec([None], tf.int64), tuple("abcde"))
    strategy = make_strategy(2)
    made = state.build(config, spec, strategy, Twice, lambda step: 0.1)
    stepper = train_step.create(strategy, made, config, None)
    model = stepper.state.model
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(sign * images)).numpy()[:3] for sign in (1, -1)
    ]
    batches = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors((images, labels, weights))))
    result = stepper.run(batches, 1)
    values = dict(zip(stepper.value_names, result.values.numpy().tolist(), strict=True))
    assert values["loss"] == pytest.approx(np.mean(losses[0] + 0.5 * losses[1]), rel=1e-5)
    assert values["second"] == pytest.approx(np.mean(losses[1]), rel=1e-5)


def weights_of(state):
    return [v.numpy() for v in state.model.trainable_variables]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def make(make_strategy, make_state):
    """Returns a function that makes a state of a seed."""
    return lambda seed, **flags: make_state(make_strategy(), seed=seed, **flags)


@pytest.fixture
def saved(make, make_checkpoints):
    """A state whose checkpoints at steps 10 and 20 differ."""
    state = make(1)
    checkpoints = make_checkpoints(state)
    for step in (10, 20):
        state.global_step.assign(step)
        state.model.trainable_variables[0].assign_add(tf.ones(state.model.trainable_variables[0].shape))
        checkpoints.save()
    return state


@pytest.mark.parametrize("name", ["", "ckpt-20"])
def test_the_newest_or_the_named_checkpoint(name, saved, make, tmp_path):
    state = make(2)
    assert not same(weights_of(state), weights_of(saved))
    load_first_weights(state.model, str(tmp_path / name))
    assert same(weights_of(state), weights_of(saved))
    assert state.step == 0
    load_first_weights(state.model, str(tmp_path / "ckpt-10"))
    assert not same(weights_of(state), weights_of(saved))


def test_the_average_where_there_is_one(make, make_checkpoints, tmp_path):
    averaged = make(1, ema=0.5)
    for value in averaged.averages.values:
        value.assign(tf.fill(value.shape, 0.25))
    averaged.global_step.assign(3)
    make_checkpoints(averaged, ema=0.5).save()
    state = make(2)
    load_first_weights(state.model, str(tmp_path))
    assert all(np.all(value == 0.25) for value in weights_of(state))


def test_a_file_of_keras(make, make_state, make_strategy, tmp_path):
    one, path = make(1), str(tmp_path / "model.weights.h5")
    one.model.save_weights(path)
    other = make_state(make_strategy(), seed=2, initialize_from=path)
    other.task.initialize(other.model)
    assert same(weights_of(one), weights_of(other))
    assert (other.task.first_weights, other.task.left_out) == (FirstWeights.of(path), "")


@pytest.mark.parametrize("change", ["", "gone", "moved", "other bytes", "left out", "another", "added"])
@pytest.mark.quick(3)
def test_a_run_that_began_with_a_file_is_resumed_with_no_other(change, make, make_checkpoints, tmp_path):
    first, moved, path = (tmp_path / f"{name}.weights.h5" for name in ("first", "moved", "another"))
    state = make(1)
    for file in (first, moved, path):
        state.model.save_weights(file) if file != path else path.write_bytes(b"another")
    moved.write_bytes(first.read_bytes())
    given = {} if change == "added" else {"initialize_from": first}
    if given:
        state.task.first_weights = FirstWeights.of(first)
    state.global_step.assign(10)
    make_checkpoints(state, **given).save()
    match change:
        case "gone":
            first.unlink()
        case "moved":
            given = {"initialize_from": moved}
        case "other bytes":
            first.write_bytes(b"other")
        case "left out":
            given = {}
        case "another" | "added":
            given = {"initialize_from": path}
    resumed = make(2)
    manager = make_checkpoints(resumed, **given)
    if change in ("", "gone", "moved"):
        manager.restore()
        assert resumed.task.first_weights == state.task.first_weights
        assert resumed.task.first_weights.name == "first.weights.h5"
        resumed.global_step.assign(20)
        manager.save()
        make_checkpoints(make(3), **given).restore()
        return
    with pytest.raises(UsageError) as caught:
        manager.restore()
    said = "did not begin with" if change == "added" else r"began with first\.weights\.h5 \(SHA-256 \w{12}"
    assert re.search(rf"ckpt-10: the run {said}", str(caught.value))
    assert ("--initialize_from is not given; give" in str(caught.value)) == (change == "left out")


def test_another_model_is_one_line(saved, make, tmp_path):
    layers = [keras.Input((4, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(5)]
    small = make(0, build=lambda: keras.Sequential(layers)).model
    for path in (str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(UsageError, match=f"^--initialize_from={path}: ") as caught:
            load_first_weights(small, path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["--initialize_from", "task"])
@pytest.mark.quick(1)
def test_a_new_run_begins_with_them_and_so_does_the_average(text, saved, make_strategy, make_state, tmp_path):
    flags = {"initialize_from": tmp_path} if text == "--initialize_from" else {}
    state = make_state(make_strategy(), seed=2, ema=0.9, **flags)
    state.task.initialize(state.model)
    assert same(weights_of(state), weights_of(saved)) == bool(flags)
    state.averages.reset()
    assert same([value.numpy() for value in state.averages.values], weights_of(state))


NAMES = ("ape", "bee", "cat")


def model_of(*last):
    return keras.Sequential([keras.Input((4,)), *last])


def spec(shape=(None,), dtype=tf.int64, names=NAMES):
    return DataSpec(tf.TensorSpec((None, 4)), tf.TensorSpec(shape, dtype), names)


@pytest.mark.parametrize(
    ("units", "data", "classes"),
    [
        (3, spec(), NAMES),
        (3, spec(dtype=tf.int32), NAMES),
        (3, spec(names=()), ("0", "1", "2")),
        (4, spec(), None),
        (1, spec(names=("one",)), None),
        (3, spec(dtype=tf.float32), None),
        (3, spec((None, 3)), None),
        (3, spec((None, 3), dtype=tf.float32), NAMES),  # mixed
        (3, DataSpec(tf.TensorSpec((None, 4)), {"label": tf.TensorSpec((None,), tf.int64)}, NAMES), None),
    ],
)
def test_classes_are_those_of_which_there_is_a_number_each(units, data, classes):
    assert classes_of(model_of(keras.layers.Dense(units)), data) == classes


class Subclassed(keras.Model):
    """Has no output_shape."""

    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(3)

    def call(self, features):
        return self.last(features)


def test_the_shape_of_a_subclassed_model_is_found():
    model = Subclassed()
    model(tf.zeros((1, 4)))
    assert shape_of(model, spec()) == (None, 3)
    assert classes_of(model, spec()) == NAMES


def test_outputs_of_more_axes_or_several_are_no_classes():
    assert classes_of(model_of(keras.layers.Reshape((2, 2))), spec()) is None
    inputs = keras.Input((4,))
    assert classes_of(keras.Model(inputs, [keras.layers.Dense(3)(inputs)] * 2), spec()) is None


@pytest.mark.parametrize(
    ("last", "loss", "expected"),
    [
        ([keras.layers.Dense(3)], None, False),
        ([keras.layers.Dense(3, "softmax")], None, True),
        ([keras.layers.Dense(3), keras.layers.Softmax()], None, True),
        ([keras.layers.Dense(3), keras.layers.Activation("softmax")], None, True),
        ([keras.layers.Dense(3)], "sparse_categorical_crossentropy", True),
        ([keras.layers.Dense(3)], keras.losses.SparseCategoricalCrossentropy(), True),
        ([keras.layers.Dense(3)], keras.losses.SparseCategoricalCrossentropy(from_logits=True), False),
        ([keras.layers.Dense(3)], "mse", False),
    ],
)
def test_probabilities_are_known_by_the_last_layer_or_the_loss(last, loss, expected):
    model = model_of(*last)
    if loss:
        model.compile("sgd", loss)
    assert gives_probabilities(model) is expected


SHAPE = (4, 3, 1)


def compiled(loss="binary_crossentropy", **options):
    def build():
        keras.utils.set_random_seed(1)
        layers = [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")]
        model = keras.Sequential(layers)
        model.compile(
            keras.optimizers.SGD(0.5),
            loss() if callable(loss) else loss,
            metrics=["accuracy", keras.metrics.AUC(name="auc")],
            **options,
        )
        return model

    return build


@pytest.fixture
def rows():
    draw = np.random.default_rng(0)
    images = draw.normal(size=(16, *SHAPE)).astype(np.float32)
    labels = (images.sum(axis=(1, 2, 3)) > 0).astype(np.int64)
    weights = np.ones(16, np.float32)
    weights[10:] = 0  # of which all but two are those of the second of two replicas
    return images, labels, weights


@pytest.fixture
def steps(make_stepper, rows, step_and_evaluation):
    """Returns a function that makes one update, then evaluates: the stepper, its values, the results."""

    def steps(replicas, build, **flags):
        stepper = make_stepper(replicas, optimizer="momentum", build=build, **flags)
        rows_of = rows
        if virtual := flags.get("virtual_replicas"):
            rows_of = [part.reshape(virtual, -1, *part.shape[1:]) for part in rows]
        return stepper, *step_and_evaluation(stepper, tuple(rows_of))

    return steps


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_update_is_that_of_keras_on_the_real_rows(replicas, steps, rows):
    stepper, values, found = steps(replicas, compiled())
    images, labels, _ = (part[:10] for part in rows)
    model = compiled()()
    before = model.evaluate(images, labels, verbose=0, return_dict=True)
    model.train_on_batch(images, labels)
    after = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert values["total_loss"] == pytest.approx(before["loss"], rel=1e-5)
    for name in ("loss", "accuracy", "auc"):
        assert values[name] == pytest.approx(before[name], rel=1e-5)
        assert found[name] == pytest.approx(after[name], rel=1e-5)
    for one, other in zip(stepper.state.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
def test_with_virtual_replicas_the_metrics_have_the_same_bits(steps):
    one, two = (steps(replicas, compiled(), virtual_replicas=4, global_batch_size=16)[1:] for replicas in (1, 2))
    assert one == two


def test_losses_as_functions_and_objects(steps, rows):
    names = ("binary_crossentropy", keras.losses.BinaryCrossentropy, lambda: keras.losses.binary_crossentropy)
    first, *others = ([v.numpy() for v in steps(2, compiled(loss))[0].state.model.variables] for loss in names)
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-7)


def test_a_schedule_of_its_own_is_followed(make_stepper, rows):
    def build():
        model = compiled()()
        decay = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.1)
        model.compile(keras.optimizers.SGD(decay), "binary_crossentropy")
        return model

    stepper = make_stepper(1, optimizer="momentum", build=build)
    rates = [float(stepper.state.rate(None))]
    batches = iter(stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(rows).repeat()))
    for _ in range(2):
        stepper.run(batches, 1)
        rates.append(float(stepper.state.rate(None)))
    assert rates == pytest.approx([0.5, 0.05, 0.005])


def classifier(loss, metrics=(), outputs=1):
    def build():
        inputs = keras.Input(SHAPE)
        heads = [keras.layers.Dense(5, "softmax")(keras.layers.Flatten()(inputs)) for _ in range(outputs)]
        model = keras.Model(inputs, heads if outputs > 1 else heads[0])
        model.compile("sgd", loss, metrics=list(metrics))
        return model

    return build


class SubclassedRegression(keras.Model):
    """Has no output_shape."""

    def __init__(self):
        super().__init__()
        self.flatten, self.last = keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")

    def call(self, images):
        return self.last(self.flatten(images))


def subclassed():
    model = SubclassedRegression()
    model(np.zeros((1, *SHAPE), np.float32))
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model


def test_a_subclassed_model(steps):
    _, values, found = steps(2, subclassed)
    assert set(values) >= {"loss", "accuracy"}
    assert set(found) == {"loss", "accuracy"}


@pytest.mark.parametrize(
    ("build", "flags", "message"),
    [
        (classifier("sparse_categorical_crossentropi"), {}, "Could not interpret .*sparse_categorical_crossentropi"),
        (classifier("mse", ["acuracy"]), {}, "Could not interpret .*acuracy"),
        (classifier("mse", outputs=2), {}, "compiled, with 2 outputs, but the data have 1 label"),
        (classifier("categorical_crossentropy"), {}, "compiled with a loss or a metric that does not work: .*rank"),
        (
            classifier("sparse_categorical_crossentropy", ["categorical_crossentropy"]),
            {},
            "compiled with a loss or a metric that does not work: .*rank",
        ),
        (compiled(lambda: keras.losses.BinaryCrossentropy(reduction="sum")), {}, "reduction='sum'"),
        (compiled(["mse", "crossentropi"]), {}, "compiled with a loss .*: .*crossentropi"),
        (compiled(), {"learning_rate": 0.3}, "--learning_rate=0.3: .* compiled with an optimizer of its own"),
        (compiled(), {"weight_decay": 0.1}, "--weight_decay=0.1: "),
        (compiled(), {"label_smoothing": 0.1}, "--label_smoothing=0.1: .* compiled with a loss of its own"),
        (compiled(loss_weights=[0.5, 0.5]), {}, "compiled with a loss .*`loss_weights` must match"),
    ],
)
@pytest.mark.quick(5)
def test_what_cannot_work_is_one_line(build, flags, message, make_stepper):
    with pytest.raises(UsageError, match=message) as caught:
        make_stepper(1, optimizer="momentum", build=build, **flags)
    assert "\n" not in str(caught.value)


class Helps:
    def shuffled(self):
        """A method of a base that is not a task."""


class Odd(Helps, Task):
    """A port of a program whose base class had other methods."""

    parse = staticmethod(lambda records: (records, records))
    helper = 3

    def train_sums(self, model, features, labels, weights):
        raise SystemExit

    def shuffled(self):
        return super().shuffled()

    def loss(self, labels, outputs):
        return self._own(labels)

    def _own(self, labels):
        return labels


class Odder(Odd):
    def restore(self):
        """Never called, either."""


def test_methods_that_the_trainer_never_calls_are_named_with_the_one_that_may_be_meant():
    assert uncalled(Task) is None
    assert re.match(r"Odd: the trainer does not call train_sums \(did you mean train_step\?\): ", uncalled(Odd))
    assert re.match(
        r"Odder: .* not call restore, train_sums \(did you mean train_step\?\): .* these names; ", uncalled(Odder)
    )
