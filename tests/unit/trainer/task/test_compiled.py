import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError

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
def steps(make_stepper, rows):
    """Returns a function that makes one update, then evaluates: the stepper, its values, the results."""

    def steps(replicas, build, **flags):
        stepper = make_stepper(replicas, optimizer="momentum", build=build, **flags)
        rows_of = rows
        if virtual := flags.get("virtual_replicas"):
            rows_of = [part.reshape(virtual, -1, *part.shape[1:]) for part in rows]
        batches = stepper.strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensors(tuple(rows_of)).repeat()
        )
        result = stepper.run(iter(batches), 1)
        sums = stepper.evaluate(iter(batches), tf.constant(1, tf.int64))
        found = {name: float(value) for name, value in stepper.state.measure.results(sums).items()}
        return stepper, dict(zip(stepper.value_names, result.values.numpy().tolist(), strict=True)), found

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


class Subclassed(keras.Model):
    """Has no output_shape."""

    def __init__(self):
        super().__init__()
        self.flatten, self.last = keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")

    def call(self, images):
        return self.last(self.flatten(images))


def subclassed():
    model = Subclassed()
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
        (classifier("mse", outputs=2), {}, "with 2 outputs; one loss of one output"),
        (classifier("categorical_crossentropy"), {}, "compiled with a loss or a metric that does not work: .*rank"),
        (
            classifier("sparse_categorical_crossentropy", ["categorical_crossentropy"]),
            {},
            "compiled with a loss or a metric that does not work: .*rank",
        ),
        (compiled(lambda: keras.losses.BinaryCrossentropy(reduction="sum")), {}, "reduction='sum'"),
        (compiled(["mse", "mse"]), {}, "one loss of one output"),
        (compiled(), {"learning_rate": 0.3}, "--learning_rate=0.3: .* compiled with an optimizer of its own"),
        (compiled(), {"weight_decay": 0.1}, "--weight_decay=0.1: "),
        (compiled(), {"label_smoothing": 0.1}, "--label_smoothing=0.1: .* compiled with a loss of its own"),
        (compiled(loss_weights=0.5), {}, "loss_weights=0.5"),
    ],
)
def test_what_cannot_work_is_one_line(build, flags, message, make_stepper):
    with pytest.raises(UsageError, match=message) as caught:
        make_stepper(1, optimizer="momentum", build=build, **flags)
    assert "\n" not in str(caught.value)
