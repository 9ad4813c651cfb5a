"""Compiled models with several outputs and losses, against Keras itself."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

SHAPE = (4, 3, 1)
REAL = 10  # rows of the batch; the others have the weight 0, as padding


def two_outputs(style, loss_weights=True):
    """Returns a function that builds a model of a class and a number, whose arguments are dicts or lists."""

    def build():
        keras.utils.set_random_seed(1)
        images = keras.Input(SHAPE)
        flat = keras.layers.Flatten()(images)
        kind, size = keras.layers.Dense(5, name="kind")(flat), keras.layers.Dense(1, name="size")(flat)
        parts = {
            "loss": {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
            "loss_weights": {"kind": 1.0, "size": 0.25},
            "weighted_metrics": {"kind": ["accuracy"], "size": ["mae"]},
        }
        if not loss_weights:
            del parts["loss_weights"]
        outputs = {"kind": kind, "size": size}
        if style == "list":
            outputs, parts = [*outputs.values()], {name: [*value.values()] for name, value in parts.items()}
        model = keras.Model(images, outputs)
        model.compile(keras.optimizers.SGD(0.1), **parts)
        return model

    return build


def structured(style, kind, size):
    return {"kind": kind, "size": size} if style == "dict" else (kind, size)


def rows_of(style):
    draw = np.random.default_rng(0)
    images = draw.normal(size=(16, *SHAPE)).astype(np.float32)
    kinds, sizes = draw.integers(5, size=16), draw.normal(size=(16, 1)).astype(np.float32)
    weights = (np.arange(16) < REAL).astype(np.float32)
    return images, structured(style, kinds, sizes), weights


@pytest.fixture
def steps(make_stepper, step_and_evaluation):
    """Returns a function that makes one update, then evaluates: the stepper, its values, the results."""

    def steps(replicas, style, build):
        labels = structured(style, tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 1], tf.float32))
        stepper = make_stepper(replicas, optimizer="momentum", build=build, labels=labels)
        return stepper, *step_and_evaluation(stepper, rows_of(style))

    return steps


@pytest.mark.parametrize(("replicas", "style"), [(2, "dict"), pytest.param(1, "list", marks=pytest.mark.slow)])
def test_several_outputs_are_trained_and_evaluated_as_by_keras(replicas, style, steps):
    stepper, values, found = steps(replicas, style, two_outputs(style))
    images, labels, _ = tf.nest.map_structure(lambda part: part[:REAL], rows_of(style))
    model = two_outputs(style)()
    before = model.evaluate(images, labels, verbose=0, return_dict=True)
    model.train_on_batch(images, labels)
    after = model.evaluate(images, labels, verbose=0, return_dict=True)
    names = {"loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae"}
    assert (set(after), set(found)) == (names, names)
    assert after["loss"] == pytest.approx(after["kind_loss"] + 0.25 * after["size_loss"], rel=1e-6)
    assert {name: values[name] for name in names} == pytest.approx(before, rel=1e-5)
    assert found == pytest.approx(after, rel=1e-5)
    for one, other in zip(stepper.state.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_weight_of_a_single_loss_and_two_losses_of_one_output(make_state, make_strategy):
    def measured(loss, **options):
        def build():
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(1)])
            model.compile("sgd", loss, **options)
            return model

        state = make_state(make_strategy(), "momentum", build=build, labels=tf.TensorSpec([None, 1], tf.float32))
        images, (_, sizes), weights = rows_of("list")
        sums = state.measure.evaluation_sums(state.model, images, tf.constant(sizes), tf.constant(weights))
        return float(state.measure.results(sums)["loss"])

    squared, absolute = measured("mse"), measured("mae")
    assert measured("mse", loss_weights=0.5) == pytest.approx(0.5 * squared, rel=1e-6)
    assert measured(["mse", "mae"]) == pytest.approx(squared + absolute, rel=1e-6)
