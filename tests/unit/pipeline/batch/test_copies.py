"""Several augmented copies of a record: copy 0 as ever, copy c by the key of (seed, epoch, record, c)."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import RandomAccess, Shard, StepIterator, augment, augment_fn, distribute, input_fn
from pipeline.augmentation.base import ImageStatistics
from pipeline.augmentation.recipes import make_recipe
from pipeline.decode.images import resize
from pipeline.errors import UsageError
from pipeline.manifest import load
from pipeline.order.hashing import Domain, derive_key
from tests.helpers.datasets import Kind, images_of, write_dataset

SHAPE, COUNTS, SEED = (10, 8, 3), (20, 0, 9, 8), 5
TRAIN = {"global_batch_size": 8, "training": True, "seed": SEED, "epochs": 2, "record_ids": True}
# By encoding: at its border, the part of a JPEG that is decoded alone has colours without their neighbours.
TOLERANCES = {"png": 0.0, "jpeg": 4.0}
ENCODINGS = ("png", pytest.param("jpeg", marks=pytest.mark.slow))
WINDOWS = {"shuffle_bytes": 3000, "streams": 2}
STEPS = 5  # of an epoch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, COUNTS, SHAPE, (7,))
    return path


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Returns a function that writes images of several sizes in an encoding, once."""

    @functools.cache
    def written(encoding):
        path = tmp_path_factory.mktemp(encoding)
        write_dataset(path, (11, 10), (20, 18, 3), (7,), kind=Kind(encoding, varied=True))
        return path

    return written


def keys_of(epoch, records, copy):
    return derive_key(Domain.AUGMENT, SEED, epoch, records, *([copy] if copy else []))


def as_keys(images, keys):
    return keys


@pytest.mark.parametrize(
    ("memory", "workers", "start"),
    [
        ({}, 1, 0),
        (WINDOWS, 2, 3),
        pytest.param({}, 2, 3, marks=pytest.mark.slow),
        pytest.param({"portable": True}, 1, 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.quick(1)
def test_each_copy_has_its_key_on_any_workers_from_any_step_and_in_any_memory(memory, workers, start, folder):
    for worker in range(workers):
        shard = Shard(worker, workers) if workers > 1 else None
        made = input_fn(folder, augment=as_keys, copies=3, **TRAIN, **memory, start_step=start, shard=shard)
        for step, (keys, labels, weights, ids) in enumerate(made, start):
            assert (keys.shape, labels.shape, weights.shape) == ((8 // workers, 3), *[(8 // workers,)] * 2)
            for copy in range(3):
                np.testing.assert_array_equal(keys[:, copy], keys_of(step // STEPS, ids.numpy(), copy))


@pytest.mark.slow
def test_an_iterator_resumes_with_the_same_copies(folder):
    iterator, other = (StepIterator(folder, augment=as_keys, copies=3, **TRAIN) for _ in range(2))
    next(iterator)
    other.set_state(iterator.get_state())
    np.testing.assert_array_equal(next(other)[0], next(iterator)[0])


@functools.cache
def augments(text, data):
    """Returns a function from images and keys to the images augmented by a recipe on its own."""
    made = load(data)
    statistics = ImageStatistics(made.image_mean, made.image_std)
    recipe = make_recipe(text)
    return tf.function(lambda *given: recipe.augment(*given, statistics), autograph=False)


def augmented(text, data, images, keys):
    return augments(text, data)(images, tf.constant(keys))


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("pad_crop_flip(pad=2) | cutout(size=3)", {}),
        pytest.param("flip", WINDOWS, marks=pytest.mark.slow),
        pytest.param("cifar10_tutorial(crop=6)", {}, marks=pytest.mark.slow),
        pytest.param("color_jitter | normalize", WINDOWS, marks=pytest.mark.slow),
    ],
)
def test_copies_are_what_the_recipe_makes_of_the_stored_images(text, memory, folder):
    options = {**TRAIN, **memory, "augment": text}
    stored = images_of(0, sum(COUNTS), SHAPE)
    both = zip(input_fn(folder, **options), input_fn(folder, **options, copies=2), strict=True)
    for step, (one, two) in enumerate(both):
        np.testing.assert_array_equal(two[0][:, 0], one[0])
        for mine, theirs in zip(two[1:], one[1:], strict=True):
            np.testing.assert_array_equal(mine, theirs)
        ids = two[3].numpy()
        expected = augmented(text, folder, stored[ids], keys_of(step // STEPS, ids, 1))
        np.testing.assert_allclose(two[0][:, 1], expected, rtol=0, atol=2e-5)
        assert not np.array_equal(two[0][:, 1], two[0][:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("memory", [{}, WINDOWS])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_copy_decodes_a_part_of_its_own(encoding, memory, photographs):
    data, text = photographs(encoding), "random_resized_crop(size=8, normalize=False)"
    options = {**TRAIN, **memory, "augment": text}
    recipe, stored = make_recipe(text), dict(_stored(data, "train"))
    both = zip(input_fn(data, **options), input_fn(data, **options, copies=2), strict=True)
    for step, (one, two) in enumerate(both):
        np.testing.assert_array_equal(two[0][:, 0], one[0])
        for image, record in zip(two[0][:, 1], two[3].numpy().tolist(), strict=True):
            key = keys_of(step // 3, record, 1)
            expected = augmented(text, data, _part(recipe, stored[record], key)[None], key[None])[0]
            assert _distance(image, expected) <= TOLERANCES[encoding]


def _distance(one, other):
    """Returns the mean difference of the values of two images."""
    return np.abs(np.subtract(one, other, dtype=np.float64)).mean()


def _part(recipe, image, key):
    """Returns the part of an image that a recipe of crops decodes in training."""
    top, left, height, width = recipe.crop(True).box(*image.shape[:2], tf.constant(key)).numpy()
    return resize(tf.constant(image[top : top + height, left : left + width]), recipe.crop(True).size)


def _stored(data, split):
    """Yields (record, image) of a split whose images differ in size."""
    examples = RandomAccess(data, split)
    for record in range(len(examples)):
        yield record, examples[record]["image"]


@pytest.mark.parametrize(
    ("place", "text", "spec"),
    [
        ("device", "flip | normalize", {"image": [8, *SHAPE], "distort_key": [8, 2]}),
        ("both", "flip | normalize", {"image": [8, 2, *SHAPE], "distort_key": [8, 2]}),
    ],
)
@pytest.mark.quick(1)
def test_a_step_makes_the_copies_that_the_host_would_have_fed(place, text, spec, folder):
    options = {**TRAIN, "augment": text, "copies": 2, "record_ids": False}
    check_step(folder, options, place, spec)


@pytest.mark.slow
def test_a_step_augments_parts_that_the_host_has_decoded_for_each_copy(photographs):
    options = {**TRAIN, "augment": "random_crop(size=8) | cutout(size=3)", "copies": 2, "record_ids": False}
    check_step(photographs("jpeg"), options, "device", {"image": [8, 2, 8, 8, 3], "distort_key": [8, 2]})


def check_step(data, options, place, spec):
    made = augment_fn(data, **options, augment_on=place)
    step = tf.function(lambda batch: made(*batch), autograph=False)
    fed = input_fn(data, **options, augment_on=place)
    assert {name: one.shape.as_list() for name, one in fed.element_spec[0].items()} == spec
    for batch, (images, labels, weights) in zip(fed, input_fn(data, **options), strict=True):
        found = step(batch)
        np.testing.assert_allclose(found[0], images, rtol=0, atol=2e-5)
        np.testing.assert_array_equal(found[1], labels)
        np.testing.assert_array_equal(found[2], weights)


def test_layers_of_keras_draw_by_the_key_of_each_copy(folder):
    own = augment(keras.Sequential([keras.layers.RandomFlip("horizontal"), keras.layers.RandomTranslation(0.3, 0.3)]))
    stored, options = images_of(0, sum(COUNTS), SHAPE), {**TRAIN, "augment": own}
    images, _, _, ids = next(iter(input_fn(folder, **options, copies=3)))
    called = tf.function(lambda *given: own(*given, training=True), autograph=False)
    for copy in range(3):
        keys = tf.constant(keys_of(0, ids.numpy(), copy))
        np.testing.assert_array_equal(images[:, copy], called(tf.constant(stored[ids.numpy()]), keys))


@pytest.mark.slow
@pytest.mark.parametrize("is_mixture", [True, False])
def test_replicas_and_sources_share_the_rows_of_copies(is_mixture, folder):
    data = [(folder, 3), (f"{folder}:test", 1)] if is_mixture else folder
    options = {"global_batch_size": 8, "training": True, "seed": SEED, "augment": "flip"}
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    one, two = (next(iter(input_fn(data, **options, copies=copies))) for copies in (1, 2))
    np.testing.assert_array_equal(two[0][:, 0], one[0])
    np.testing.assert_array_equal(two[1], one[1])
    parts = next(iter(distribute(strategy, data, **options, copies=2)))
    images = np.concatenate(strategy.experimental_local_results(parts[0]))
    np.testing.assert_array_equal(images, two[0])


@pytest.mark.parametrize("text", [pytest.param("shift", marks=pytest.mark.slow), "shift | mixup(alpha=1.0)"])
def test_an_evaluation_has_its_own_image_first_and_then_augmented_ones(text, folder):
    options = {"split": "test", "global_batch_size": 4, "training": False, "seed": SEED, "augment": text, "epochs": 2}
    stored, records = images_of(0, 7, SHAPE), np.arange(7)
    plain = [one[:2] for one in input_fn(folder, **options, weights="none")]
    several = [one[:2] for one in input_fn(folder, **options, weights="none", eval_copies=3)]
    found = np.concatenate([images for images, _ in several])
    np.testing.assert_array_equal(found[:, 0], np.concatenate([images for images, _ in plain]))
    np.testing.assert_array_equal(
        np.concatenate([labels for _, labels in several]), np.concatenate([labels for _, labels in plain])
    )
    np.testing.assert_array_equal(found[:7], found[7:])  # the second epoch
    for copy in (1, 2):
        expected = augmented("shift", folder, stored, keys_of(0, records, copy))
        np.testing.assert_allclose(found[:7, copy], expected, rtol=0, atol=2e-5)
    other = input_fn(folder, **{**options, "global_batch_size": 7, "epochs": 1}, eval_copies=3)
    np.testing.assert_array_equal(next(iter(other))[0], found[:7])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_copies_of_an_evaluation_decode_the_parts_that_training_would(encoding, photographs):
    data, text = photographs(encoding), "random_resized_crop(size=8, normalize=False)"
    options = {"split": "test", "global_batch_size": 7, "training": False, "seed": SEED, "augment": text}
    [(plain, _, _)] = input_fn(data, **options)
    [(found, _, _)] = input_fn(data, **options, eval_copies=2)
    np.testing.assert_array_equal(found[:, 0], plain)
    recipe = make_recipe(text)
    for record, image in _stored(data, "test"):
        key = keys_of(0, record, 1)
        expected = augmented(text, data, _part(recipe, image, key)[None], key[None])[0]
        assert _distance(found[record, 1], expected) <= TOLERANCES[encoding]


def unlike(images, training):
    return images[:, :4] if training else images


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0, "augment": "flip"}, "copies=0: "),
        ({"copies": 2}, "copies=2 with no augment: all copies would be equal"),
        ({"copies": 1025, "augment": "flip"}, "copies=1025: must be 1024 or less"),
        (
            {"copies": 2, "augment": "resize(height=4, width=4) | normalize"},
            "copies=2 with augment='resize.* nothing draws",
        ),
        (
            {"eval_copies": 2, "augment": "mixup", "training": False},
            "eval_copies=2 with augment='mixup', .* nothing draws",
        ),
        ({"copies": 2, "parse": as_keys}, "copies=2 with parse: the parse function returns everything"),
        ({"copies": 2, "augment": "flip | mixup"}, r"copies=2 with augment='flip \| mixup': each mixed copy"),
        ({"copies": 2, "augment": "flip", "training": False}, "copies=2 with training=False: .* eval_copies"),
        ({"eval_copies": 2, "augment": "flip"}, "eval_copies=2 with training=True: it is for evaluations"),
        (
            {"eval_copies": 2, "augment": "flip", "training": False, "augment_on": "device"},
            "eval_copies=2 with augment_on='device': ",
        ),
        ({"eval_copies": 2, "augment": unlike, "training": False}, "eval_copies: the augment function returns uint8"),
    ],
)
def test_what_cannot_work_is_said(options, message, folder):
    with pytest.raises(UsageError, match=f"^{message}"):
        input_fn(folder, **{"global_batch_size": 8, "training": True, **options})
