"""A step of virtual replicas: the same bits on any number of replicas, and the gradient of the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.models import layers
from trainer.step.evaluation import EvaluationStep

V, ROWS, CLASSES = 12, 2, 5
SHAPE = (6, 5, 2)


def build():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(4, 3, kernel_regularizer=keras.regularizers.L2(0.01)),
            layers.BatchNormalization(momentum=0.5),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(CLASSES),
        ]
    )


def train(stepper, batches, steps=1):
    """Returns the result of some updates, and its values by name."""
    iterator = iter(stepper.strategy.experimental_distribute_dataset(batches))
    result = stepper.run(iterator, steps)
    return result, dict(zip(result.names, result.values.numpy().tolist(), strict=True))


@pytest.fixture
def batches():
    """Three steps, (V, rows, ...); the last virtual replicas of the last step have padding only."""
    draw = np.random.default_rng(1)
    images = draw.normal(size=(3, V, ROWS, *SHAPE)).astype(np.float32)
    weights = np.ones((3, V, ROWS), np.float32)
    weights[2, 5:] = 0
    return images, draw.integers(0, CLASSES, (3, V, ROWS)), weights


@pytest.fixture
def trained(make_stepper, batches):
    """Returns a function that makes three updates; returns all variables, and what the steps tell."""

    def trained(replicas, optimizer="momentum", seed=7, count=V, **flags):
        given = {"build": build, "shape": SHAPE, "rate": 0.1, "seed": seed, "virtual_replicas": count, **flags}
        stepper = make_stepper(replicas, optimizer, global_batch_size=24, **given)
        state, strategy = stepper.state, stepper.strategy
        images, *others = (values.reshape(3, count, -1, *values.shape[3:]) for values in batches)
        dataset = tf.data.Dataset.from_tensor_slices((images, *others))
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        summaries = frozenset({"norm", "histograms"})
        results = [stepper.run(iterator, 1, summaries)._replace(waited=tf.constant(0.0), names=()) for _ in range(3)]
        again = iter(strategy.experimental_distribute_dataset(dataset))
        evaluation = EvaluationStep(strategy, state, count)
        sums = evaluation.evaluate(again, tf.constant(3, tf.int64))
        told = [value.numpy().tolist() for value in tf.nest.flatten([results, sums]) if value is not None]
        averages = state.averages.values if state.averages else []
        return [v.numpy() for v in (*state.model.variables, *state.optimizer.variables, *averages)], told

    return trained


@pytest.mark.parametrize(
    ("optimizer", "counts"),
    [
        ("momentum", (2,)),
        pytest.param("momentum", (4,), marks=pytest.mark.slow),
        pytest.param("adam", (3,), marks=pytest.mark.slow),
    ],
)
def test_weights_slots_statistics_and_metrics_have_the_same_bits_on_any_number_of_replicas(trained, optimizer, counts):
    variables, results = trained(1, optimizer)
    assert len(variables) > 10
    for replicas in counts:
        others, other_results = trained(replicas, optimizer)
        assert other_results == results
        for one, other in zip(variables, others, strict=True):
            assert one.tobytes() == other.tobytes()


RECIPES = {
    "matrices": {"optimizer": "muon", "weight_decay": 0.01},
    "bfloat16, decay, smoothing": {
        **{"precision": "bfloat16", "ema": 0.9, "optimizer": "adamw", "weight_decay": 0.1, "label_smoothing": 0.1}
    },
    "float16, clipped": {"precision": "float16", "clip_norm": 0.5, "ema": 0.9, "optimizer": "nesterov"},
    "XLA": {"jit_compile": True, "label_smoothing": 0.1},
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_the_same_bits(trained, recipe):
    given = RECIPES[recipe]
    flags = {"optimizer": "momentum", "rate": lambda step: 0.1 / tf.cast(step + 1, tf.float32), **given}
    (variables, told), (others, others_told) = (trained(replicas, **flags) for replicas in (1, 2))
    keras.config.set_dtype_policy("float32")
    assert told == others_told
    assert all(np.all(np.isfinite(one)) for one in variables)
    for one, other in zip(variables, others, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("pixel", "weight", "finite"),
    [(np.inf, 1, False), pytest.param(np.nan, 1, False, marks=pytest.mark.slow), (1.0, 0, True)],
)
@pytest.mark.quick(1)
def test_a_bad_row_ends_the_loop_and_a_step_of_padding_does_not(pixel, weight, finite, replicas, make_stepper):
    stepper = make_stepper(replicas, build=build, shape=SHAPE, rate=0.1, virtual_replicas=V, global_batch_size=24)
    images = np.ones((3, V, ROWS, *SHAPE), np.float32)
    images[1, 4, 1, 0, 0] = pixel
    rows = (images, np.zeros((3, V, ROWS), np.int64), np.full((3, V, ROWS), weight, np.float32))
    result, values = train(stepper, tf.data.Dataset.from_tensor_slices(rows), steps=3)
    assert bool(result.finite) == finite
    assert int(result.step) == (3 if finite else 2)
    if finite:  # of no rows: the regularisation is all there is
        assert values["total_loss"] == pytest.approx(float(tf.add_n(stepper.state.model.losses)), rel=0.01)
        assert values["accuracy"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_slots_that_fade_to_nothing_keep_the_bits(optimizer, make_stepper):
    """After a first gradient the weights of a pixel get none: its moments decay through all denormal numbers."""
    found = []
    for replicas in (1, 2):
        dense = lambda: [keras.Input((4,)), keras.layers.Dense(2, kernel_initializer="zeros")]  # noqa: E731
        made = {"build": lambda: keras.Sequential(dense()), "shape": (4,), "rate": 0.01}  # noqa: B023
        stepper = make_stepper(replicas, optimizer, virtual_replicas=2, global_batch_size=2, **made)
        state = stepper.state
        rows = np.ones((2, 1, 4), np.float32) * np.array([1, 1e-3, 1e-12, 0.5], np.float32)
        first, later = rows.copy(), rows * np.array([0, 0, 0, 1], np.float32)
        labels, weights = np.array([[0], [1]]), np.array([[[1.0]], [[0.25]]], np.float32)[:, :, 0]
        once = tf.data.Dataset.from_tensors((first, labels, weights))
        more = tf.data.Dataset.from_tensors((later, labels, weights)).repeat()
        train(stepper, once.concatenate(more), steps=1_200)
        found.append([v.numpy().tobytes() for v in (*state.model.variables, *state.optimizer.variables)])
    assert found[0] == found[1]


@pytest.mark.slow
def test_dropout_and_batch_norm_follow_the_virtual_replicas_and_the_seed(trained):
    one, _ = trained(1)
    for other, _ in (trained(1, seed=8), trained(1, count=V // 2)):
        assert any(not np.allclose(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_every_virtual_replica_and_every_step_has_a_dropout_mask_of_its_own(make_stepper):
    """From zero weights, one update of a feature's weight counts the virtual replicas whose mask kept the feature."""
    features, unit = 64, 0.5 / V / (1 - 0.4)  # the gradient's share of a virtual replica: (1 - p) / V, scaled up

    def kept(step, replicas):
        dense = keras.layers.Dense(2, kernel_initializer="zeros")
        layers = [keras.Input((features,)), keras.layers.Dropout(0.4, seed=0), dense]
        made = {"build": lambda: keras.Sequential(layers), "shape": (features,), "rate": 1.0}
        stepper = make_stepper(replicas, virtual_replicas=V, global_batch_size=V, **made)
        stepper.state.global_step.assign(step)
        rows = (np.ones((1, V, 1, features), np.float32), np.zeros((1, V, 1), np.int64), np.ones((1, V, 1), np.float32))
        train(stepper, tf.data.Dataset.from_tensor_slices(rows))
        counts = dense.kernel.numpy()[:, 0] / unit
        np.testing.assert_allclose(counts, counts.round(), atol=1e-4)
        return counts.round().tolist()

    first = kept(0, 2)
    assert set(first) - {0, V}  # as it would be with one mask for all
    assert sum(first) / features == pytest.approx(0.6 * V, rel=0.1)
    assert kept(0, 1) == first
    assert kept(1, 1) != first


def test_the_sum_of_the_parts_is_the_gradient_of_the_batch(make_stepper, batches):
    """Without dropout and BatchNorm, an update is that of plain gradient descent on all real rows."""

    def build():
        keras.utils.set_random_seed(3)
        regularised = keras.layers.Dense(CLASSES, kernel_regularizer=keras.regularizers.L2(0.01))
        return keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), regularised])

    stepper = make_stepper(2, build=build, shape=SHAPE, rate=0.5, virtual_replicas=V, global_batch_size=24)
    model = stepper.state.model
    images, labels, weights = (values[2:] for values in batches)
    rows, real = images.reshape(-1, *SHAPE), weights.reshape(-1)
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels.reshape(-1), model(rows))
        loss = tf.reduce_sum(losses * real) / real.sum() + tf.add_n(model.losses)
    sources = [v.value for v in model.trainable_variables]
    expected = [v.numpy() - 0.5 * g.numpy() for v, g in zip(sources, tape.gradient(loss, sources), strict=True)]
    _, values = train(stepper, tf.data.Dataset.from_tensor_slices((images, labels, weights)))
    assert values["total_loss"] == pytest.approx(float(loss), rel=1e-5)
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=2e-6)
