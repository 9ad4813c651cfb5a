"""Layers of Keras by keys: equal draws for a record, whoever asks for it, whenever, and in whatever batch."""

import hashlib
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import augment, input_fn
from pipeline.errors import UsageError
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.order.sharding import Shard
from tests.helpers import forked
from tests.helpers.datasets import images_of, write_dataset
from tests.helpers.lanes import examples

SHAPE, COUNTS, SEED, EPOCHS = (8, 6, 3), (5, 0, 4, 3), 7, 2
TRAIN = {"global_batch_size": 6, "training": True, "seed": SEED, "epochs": EPOCHS, "record_ids": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("libraries")
    write_dataset(path, COUNTS, SHAPE)
    return path


def layers():
    return keras.Sequential([keras.layers.RandomFlip("horizontal"), keras.layers.RandomTranslation(0.3, 0.3)])


def keys_of(epoch, records):
    return tf.constant(hashing.derive_key(Domain.AUGMENT, SEED, epoch, np.asarray(records)))


@pytest.fixture(scope="module")
def expected():
    """The augmented image of each record in each epoch, each computed by itself."""
    augmentation, images = augment(layers()), images_of(0, sum(COUNTS), SHAPE)
    one = tf.function(lambda image, key: augmentation(image, key, training=True))
    return {
        (epoch, record): one(images[record : record + 1], keys_of(epoch, [record]))[0].numpy()
        for epoch in range(EPOCHS)
        for record in range(len(images))
    }


@settings(max_examples=examples(6), deadline=None)
@given(st.data())
def test_draws_follow_from_seed_epoch_and_record_alone(folder, expected, data):
    workers = data.draw(st.sampled_from([1, 2, 3]))
    step = data.draw(st.integers(0, 2 * EPOCHS - 1))
    made = input_fn(
        folder,
        **TRAIN,
        augment=augment(layers()),
        start_step=step,
        shard=Shard(data.draw(st.integers(0, workers - 1)), workers),
        shuffle_bytes=data.draw(st.sampled_from([1 << 30, 6 * 144])),
    )
    for at, (images, _, weights, records) in enumerate(made.as_numpy_iterator(), step):
        for row in np.flatnonzero(weights):
            np.testing.assert_array_equal(images[row], expected[at // 2, records[row]])


def digest(images, keys):
    made = augment(layers())(tf.constant(images), tf.constant(keys), training=True)
    return hashlib.sha256(made.numpy().tobytes()).hexdigest()


@pytest.mark.slow
def test_another_process_draws_the_same():
    keys = np.arange(5, dtype=np.uint64) * np.uint64(hashing.GAMMA)
    code = "import hashlib, keras, numpy as np, tensorflow as tf\nfrom pipeline import augment\n"
    code += f"from tests.helpers.datasets import images_of\n{inspect.getsource(layers)}\n{inspect.getsource(digest)}\n"
    code += f"print(digest(images_of(0, 5, {SHAPE}), np.array({keys.tolist()}, np.uint64)))"
    done = forked.run(["-c", code])
    assert done.stdout.split()[-1] == digest(images_of(0, 5, SHAPE), keys), done.stderr


def test_rows_are_what_the_layer_makes_of_the_same_state(expected):
    """Flips are mirrored images, about half of them; the generator of the layer itself is not touched."""
    images, layer = images_of(0, 64, SHAPE), keras.layers.RandomFlip("horizontal", seed=3)
    before = layer.generator.state.numpy().tolist()
    made = augment(layer)(tf.constant(images), keys_of(0, np.arange(64)), training=True).numpy()
    mirrored = (made == images[:, :, ::-1]).all((1, 2, 3))
    assert 20 < mirrored.sum() < 44
    np.testing.assert_array_equal(made[~mirrored], images[~mirrored])
    assert layer.generator.state.numpy().tolist() == before
    assert len({image.tobytes() for image in expected.values()}) == len(expected)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.quick(1)
def test_evaluations_get_the_images_as_they_are(folder, portable):
    draws_in_evaluations = keras.layers.RandomGrayscale(1.0)
    augmentation = augment(keras.layers.Pipeline([layers(), draws_in_evaluations, keras.layers.Rescaling(0.5)]))
    made = input_fn(folder, global_batch_size=6, training=False, augment=augmentation, portable=portable)
    images = np.concatenate([images for images, *_ in made.as_numpy_iterator()])
    np.testing.assert_array_equal(images, images_of(0, sum(COUNTS), SHAPE).astype(np.float32) / 2)


def test_a_parser_augments_by_the_keys_it_gets(folder, expected):
    augmentation = augment(layers())

    def parse(records, keys, training):
        images = tf.io.parse_example(records, {"image": tf.io.FixedLenFeature([], tf.string)})["image"]
        return augmentation(tf.reshape(tf.io.decode_raw(images, tf.uint8), [-1, *SHAPE]), keys, training)

    made = input_fn(folder, **TRAIN, parse=parse, portable=True)
    for at, (images, _, records) in enumerate(made.as_numpy_iterator()):
        for image, record in zip(images, records, strict=True):
            np.testing.assert_array_equal(image, expected[at // 2, record])


class Scales(keras.layers.Layer):
    """Draws whether it trains or not."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator()

    def call(self, images, training=False):
        return tf.cast(images, tf.float32) * keras.random.uniform((), seed=self.generator) * (1 if training else 2)


def test_what_a_layer_draws_in_evaluations_depends_on_the_key():
    own, images = augment(Scales()), tf.constant(images_of(0, 1, SHAPE)[[0] * 4])
    trained, judged = (own(images, keys_of(0, np.arange(4)), training) for training in (True, False))
    np.testing.assert_allclose(judged, trained * 2)
    assert len(np.unique(judged[:, -1, -1, -1])) == 4


class Unseeded(keras.layers.Layer):
    def call(self, images):
        return tf.cast(images, tf.float32) * keras.random.uniform(())


class Counts(keras.layers.Layer):
    def build(self, _):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, images):
        self.calls.assign_add(1.0)
        return tf.cast(images, tf.float32) * self.calls


class Cuts(keras.layers.Layer):
    def call(self, images, training=False):
        return images[:, :4] if training else images


class Fails(keras.layers.Layer):
    def call(self, images):
        raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("made", "facts"),
    [
        (keras.layers.MixUp, "MixUp of Keras mixes the rows .*recipe mixup"),
        (lambda: keras.Sequential([keras.layers.RandomFlip(), keras.layers.CutMix()]), "CutMix of Keras mixes"),
        (keras.layers.AugMix, "AugMix of Keras draws from Python's generator"),
        (
            lambda: keras.Sequential([keras.layers.RandomFlip(data_format="channels_first")]),
            r"Sequential has data_format='channels_first', .*\(2, 8, 6, 3\)",
        ),
        (lambda: len, "not a layer of Keras 3.* function of .*directly"),
        (Unseeded, "Unseeded draws from a generator that is not its own.*SeedGenerator"),
        (Counts, "Counts changes .*calls"),
        (Fails, r"Fails fails on uint8 \(1, 8, 6, 3\): .*ValueError: no such thing"),
    ],
)
def test_what_cannot_be_seeded_is_refused_by_name(made, facts):
    with pytest.raises(UsageError, match=f"augment: .*{facts}"):
        augment(made())(tf.zeros([2, *SHAPE], tf.uint8), keys_of(0, [0, 1]), training=True)


def test_evaluations_of_another_size_need_a_transform_of_their_own(folder):
    arguments = {"global_batch_size": 6, "training": False}
    with pytest.raises(UsageError, match=r"Cuts makes uint8 \(4, 6, 3\) .*evaluation="):
        input_fn(folder, **arguments, augment=augment(Cuts()))
    judged = keras.layers.Pipeline([keras.layers.CenterCrop(4, 6), keras.layers.RandomFlip()])
    made = input_fn(folder, **arguments, augment=augment(Cuts(), evaluation=judged))
    images, *_ = next(made.as_numpy_iterator())
    np.testing.assert_array_equal(images, images_of(0, 6, SHAPE)[:, 2:6])


def test_a_function_that_drops_training_does_not_augment_evaluations(folder):
    own = augment(layers())
    with pytest.raises(UsageError, match=r"missing 1 required positional argument: 'training'"):
        input_fn(folder, global_batch_size=6, training=False, augment=lambda i, k: own(i, keys=k))


def test_a_layer_that_is_not_wrapped_is_told_how(folder):
    with pytest.raises(UsageError, match=r"augment: RandomFlip of Keras draws by itself; .*pipeline.augment\("):
        input_fn(folder, **TRAIN, augment=keras.layers.RandomFlip())
    flip = keras.layers.RandomFlip()
    with pytest.raises(UsageError, match=r"AssignVariableOp.*pipeline.augment\(layer\)"):
        input_fn(folder, **TRAIN, augment=lambda images: flip(images, training=True))
