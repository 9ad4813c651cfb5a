"""`model.fit(input_fn(...))`, without a strategy and with two replicas."""

import functools
import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, distribute, input_fn, steps_per_epoch
from pipeline.errors import UsageError
from tests.helpers.datasets import Kind, images_of, write_dataset

SHAPE = (8, 6, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (5, 0, 4, 4), SHAPE)  # 13 records
    return path


def linear_model():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
    )


def strategies():
    return {
        "none": tf.distribute.get_strategy(),
        "mirrored x2": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    }


@pytest.mark.parametrize("name", ["none", "mirrored x2"])
def test_fit_of_a_padded_batch_makes_the_exact_update(folder, name):
    """One step on 13 records in a batch of 16 is the gradient step of the mean over the 13.

    Two replicas only: a process that has reduced over two cannot reduce over four (TensorFlow 2.21).
    """
    with strategies()[name].scope():
        model = linear_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, weighted_metrics=["accuracy"])
    before = [w.numpy() for w in model.trainable_variables]
    dataset = input_fn(folder, global_batch_size=16, training=True, weights="mean")
    history = model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)
    images, labels = images_of(0, 13, SHAPE).reshape(13, -1) / 255.0, np.arange(13) % 3
    logits = images @ before[0] + before[1]
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    error = (probabilities - np.eye(3)[labels]) / 13
    np.testing.assert_allclose(model.trainable_variables[0].numpy(), before[0] - 0.5 * images.T @ error, atol=2e-6)
    np.testing.assert_allclose(model.trainable_variables[1].numpy(), before[1] - 0.5 * error.sum(0), atol=2e-6)
    np.testing.assert_allclose(history.history["loss"], -np.log(probabilities[np.arange(13), labels]).mean(), rtol=1e-5)


@pytest.mark.parametrize("name", ["none", "mirrored x2"])
def test_predictions_without_those_of_weight_0_are_the_examples_in_their_order(folder, name):
    with strategies()[name].scope():
        model = linear_model()
    dataset = input_fn(folder, global_batch_size=8, training=False)
    predictions = model.predict(dataset, verbose=0)
    assert len(predictions) == 16
    weights = np.concatenate([weights for _, _, weights in dataset.as_numpy_iterator()])
    expected = model(images_of(0, 13, SHAPE))
    np.testing.assert_allclose(predictions[weights != 0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["none", "mirrored x2"])
@pytest.mark.parametrize("size", [12, pytest.param(64, marks=pytest.mark.slow)])
def test_weighted_metrics_are_exact_over_a_padded_split(folder, name, size):
    with strategies()[name].scope():
        model = linear_model()
        cross_entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, weighted_metrics=["accuracy", cross_entropy])
    dataset = input_fn(folder, "train", global_batch_size=size, training=False)
    got = model.evaluate(dataset, verbose=0, return_dict=True)
    labels = np.arange(13) % 3
    logits = model.predict(images_of(0, 13, SHAPE).astype(np.float32), verbose=0)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(13), labels]
    np.testing.assert_allclose(got["accuracy"], (logits.argmax(1) == labels).mean(), rtol=1e-6)
    np.testing.assert_allclose(got["sparse_categorical_crossentropy"], losses.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "jit"),
    [
        ("none", False),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("none", True), ("mirrored x2", False))),
    ],
)
def test_evaluations_without_weights_are_exact_over_the_split(folder, name, jit):
    """13 records: 8 + 5 rows of 8, 12 or 64; plain metrics, loss and predictions, of `evaluate` and of `fit`.

    Trained is the model of the test above: a process that has reduced gradients of one size cannot reduce others
    (TensorFlow 2.21).
    """
    with strategies()[name].scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.Flatten()]
        convolutional = keras.Sequential([keras.Input(SHAPE), *layers, keras.layers.Dense(3)])  # fails without rows
        trained = linear_model()
        for model in (convolutional, trained):
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=jit)
    train = input_fn(folder, global_batch_size=8, training=True, weights="mean")
    for size in (8, 12, 64):
        test = input_fn(folder, "train", global_batch_size=size, training=False, weights="none")
        got = convolutional.evaluate(test, verbose=0, return_dict=True)
        np.testing.assert_allclose([got["loss"], got["accuracy"]], expected(convolutional), rtol=1e-5)
        logits = convolutional(images_of(0, 13, SHAPE).astype(np.float32), training=False)
        np.testing.assert_allclose(convolutional.predict(test, verbose=0), logits, rtol=1e-4, atol=1e-3)
        history = trained.fit(train, steps_per_epoch=2, epochs=1, validation_data=test, verbose=0).history
        got = [history["val_loss"][0], history["val_accuracy"][0]]
        np.testing.assert_allclose(got, expected(trained), rtol=1e-5)


def expected(model):
    """The mean loss and the accuracy over the split, by NumPy."""
    labels = np.arange(13) % 3
    logits = np.asarray(model(images_of(0, 13, SHAPE).astype(np.float32), training=False), np.float64)
    top = logits.max(1, keepdims=True)
    losses = np.log(np.exp(logits - top).sum(1)) + top[:, 0] - logits[np.arange(13), labels]
    return losses.mean(), (logits.argmax(1) == labels).mean()


@pytest.mark.parametrize(
    "more",
    [{}, *(pytest.param(m, marks=pytest.mark.slow) for m in ({"features": ("key", "scores")}, {"shuffle_bytes": 864}))],
)
def test_batches_without_weights_have_each_record_once(tmp_path, more):
    write_dataset(tmp_path, (5, 0, 4, 4), SHAPE, kind=Kind("png", extra=True))
    given = {"training": False, "weights": "none", "epochs": 2, "record_ids": True} | more
    for size, rows in ((1, [1] * 13), (4, [4, 4, 3, 2]), (5, [5, 5, 3]), (8, [8, 5]), (13, [13]), (64, [8, 5])):
        dataset = input_fn(tmp_path, global_batch_size=size, **given)
        batches = list(dataset)
        assert [len(ids) for *_, ids in batches] == rows * 2
        assert len(dataset) == len(batches)
        assert np.concatenate([ids for *_, ids in batches]).tolist() == [*range(13)] * 2
        assert np.concatenate([labels for _, labels, _ in batches]).tolist() == [i % 3 for i in range(13)] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"training": True},
        {"start_step": 1},
        {"shard": Shard(0, 2)},
        {"on_corrupt": "skip"},
        {"remainder": "drop"},
    ],
)
def test_without_weights_what_cannot_be_is_refused(folder, wrong):
    with pytest.raises(UsageError, match=f"weights='none' with {next(iter(wrong))}="):
        input_fn(folder, **{"global_batch_size": 8, "training": False, "weights": "none"} | wrong)
    with pytest.raises(UsageError, match="weights='none' with distribute"):
        distribute(tf.distribute.get_strategy(), folder, global_batch_size=8, training=False, weights="none")


@pytest.mark.parametrize("name", ["augment", "parse"])
def test_a_layer_that_counts_its_draws_is_refused(folder, name):
    """Keras' RandomFlip(seed=1) gave other pixels after a resume."""
    flip = keras.layers.RandomFlip(seed=1)

    def augment(images, keys):
        return flip(images, training=True)

    def parse(records):
        pixels = tf.reshape(tf.io.decode_raw(tf.strings.substr(records, 0, 12), tf.uint8), (-1, 2, 2, 3))
        return flip(pixels, training=True), tf.zeros([records.shape[0]])

    given = {"global_batch_size": 8, "training": True, name: {"augment": augment, "parse": parse}[name]}
    with pytest.raises(
        UsageError, match=f"^{name}: the function changes .* by the op AssignVariableOp; .*seed_generator"
    ):
        input_fn(folder, **given)


DRAWS = {
    "NumPy": np.random.random,
    "a generator": lambda: np.random.default_rng().random(),
    "a coin": lambda: 1.0 if random.random() < 0.5 else 2.0,
    "the clock": lambda: time.time() % 1,
}


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_that_python_draws_while_a_function_is_traced_are_refused(folder, draw):
    """They are in the graph: one for all rows and epochs, and another one after a resume."""

    def augment(images, keys):
        return tf.cast(images, tf.float32) + DRAWS[draw]()

    with pytest.raises(UsageError, match="^augment: the function computes other numbers each time that TensorFlow"):
        input_fn(folder, global_batch_size=8, training=True, augment=augment)


def test_numbers_that_python_draws_the_same_each_time_are_taken(folder):
    """So is a layer that the first trace makes, of a seed that Python draws."""
    state = random.getstate()

    @functools.cache
    def layer():
        with tf.init_scope():
            return keras.layers.Dense(3)

    def augment(images, keys):
        drawn = np.random.default_rng(3).random(3).astype(np.float32) + random.Random(2).random()
        return layer()(tf.cast(images, tf.float32)) + drawn

    one, two = (
        next(iter(input_fn(folder, global_batch_size=8, training=True, augment=augment)))[0].numpy() for _ in range(2)
    )
    np.testing.assert_array_equal(one, two)
    assert random.getstate() != state


def test_images_that_a_step_should_augment_are_refused_by_fit(folder):
    data = input_fn(folder, global_batch_size=8, training=True, augment="shift(pixels=1)", augment_on="device")
    model = linear_model()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(UsageError, match="^augment_on='device': Keras does not call augment_fn"):
        model.fit(data, steps_per_epoch=1)


def test_fit_sees_another_order_and_other_augmentations_in_its_second_epoch(folder):
    seen = []

    class Recording(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, images):
            return self.dense(tf.reshape(images, (-1, 144)))

        def train_step(self, data):
            seen.append([component.numpy() for component in data])
            return super().train_step(data)

    model = Recording()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    steps = steps_per_epoch(folder, global_batch_size=8)
    dataset = input_fn(folder, global_batch_size=8, training=True, augment="shift(pixels=1)", weights="mean")
    model.fit(dataset, steps_per_epoch=steps, epochs=2, verbose=0)
    plain = list(
        input_fn(folder, global_batch_size=8, training=True, augment="shift(pixels=1)", epochs=2, record_ids=True)
    )
    assert len(seen) == len(plain) == 2 * steps == 4
    for (images, labels, _), (expected, expected_labels, _, _) in zip(seen, plain, strict=True):
        assert np.array_equal(images, expected)
        assert np.array_equal(labels, expected_labels)
    first, second = (np.concatenate([p[3].numpy()[p[2].numpy() > 0] for p in plain[i : i + 2]]) for i in (0, 2))
    assert sorted(first) == sorted(second) == list(range(13))
    assert not np.array_equal(first, second)
    assert not np.array_equal(seen[0][0], seen[2][0])
