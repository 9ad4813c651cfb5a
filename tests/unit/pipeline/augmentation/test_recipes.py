"""Each recipe against its definition in float64 NumPy, draw by draw."""

import re

import numpy as np
import pytest
import tensorflow as tf

from pipeline.augmentation.base import ImageStatistics, output_spec
from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.order import hashing
from pipeline.order.hashing import Domain

STATISTICS = ImageStatistics((120.0, 110.0, 100.0), (60.0, 50.0, 40.0))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), np.uint8)


@pytest.fixture(scope="module")
def keys():
    return hashing.derive_key(Domain.AUGMENT, 5, 2, np.arange(64))


def run(text, images, keys, training=True):
    recipe = make_recipe(text)
    function = recipe.augment if training else recipe.evaluate
    compiled = tf.function(lambda i, k: function(i, k, STATISTICS), jit_compile=True)
    return compiled(tf.constant(images), tf.constant(keys)).numpy()


def standardize(image):
    return (image - image.mean()) / max(image.std(), 1 / np.sqrt(image.size))


def tutorial(image, key, crop, brightness, low, high, standard):
    """The tutorial's steps, one after another, for one image."""
    u = [float(hashing.uniform(key, draw)) for draw in range(5)]
    span = image.shape[0] - crop + 1
    top, left = int(np.float32(u[0]) * np.float32(span)), int(np.float32(u[1]) * np.float32(span))
    out = image[top : top + crop, left : left + crop].astype(np.float64)
    if u[2] < 0.5:
        out = out[:, ::-1]
    out = out + (2 * u[3] - 1) * brightness
    means = out.mean((0, 1))
    out = (out - means) * (low + u[4] * (high - low)) + means
    return standardize(out) if standard else out


@pytest.mark.parametrize(
    ("text", "crop", "brightness", "low", "high", "standard"),
    [
        ("cifar10_tutorial", 24, 63, 0.2, 1.8, True),
        pytest.param(
            "cifar10_tutorial(crop=28, contrast_low=0.5, contrast_high=1)",
            28,
            63,
            0.5,
            1.0,
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param("cifar10_tutorial(standardize=False)", 24, 63, 0.2, 1.8, False, marks=pytest.mark.slow),
        ("cifar10_tutorial(standardize=False, brightness=10, crop=32)", 32, 10, 0.2, 1.8, False),
    ],
)
def test_cifar10_tutorial_is_its_steps(images, keys, text, crop, brightness, low, high, standard):
    got = run(text, images, keys)
    expected = [tutorial(i, k, crop, brightness, low, high, standard) for i, k in zip(images, keys, strict=True)]
    assert got.dtype == np.float32
    assert got.shape == (64, crop, crop, 3)
    np.testing.assert_allclose(got, np.stack(expected), atol=2e-5 if standard else 1e-3)


def test_cifar10_tutorial_evaluates_the_central_crop(images, keys):
    got = run("cifar10_tutorial", images, keys, training=False)
    np.testing.assert_allclose(
        got, np.stack([standardize(i[4:28, 4:28].astype(np.float64)) for i in images]), atol=2e-5
    )
    official = tf.image.per_image_standardization(tf.image.resize_with_crop_or_pad(images, 24, 24))
    np.testing.assert_allclose(got, official.numpy(), atol=1e-4)


def test_cifar10_tutorial_of_tall_images_is_exact(keys):
    images = np.random.default_rng(0).integers(250, 256, (2, 310, 300, 3), np.uint8)
    got = run("cifar10_tutorial(crop=300)", images, keys[:2], training=False)
    np.testing.assert_allclose(got, np.stack([standardize(i[5:305].astype(np.float64)) for i in images]), atol=2e-5)


def test_a_constant_image_stays_finite(keys):
    assert (run("cifar10_tutorial", np.full((64, 32, 32, 3), 7, np.uint8), keys) == 0).all()


def test_pad_crop_flip_is_its_steps(images, keys):
    got = run("pad_crop_flip(pad=3)", images, keys)
    for image, key, out in zip(images, keys, got, strict=True):
        padded = np.pad(image, ((3, 3), (3, 3), (0, 0))).astype(np.float64)
        top, left = (int(hashing.uniform(key, draw) * np.float32(7)) for draw in (0, 1))
        crop = padded[top : top + 32, left : left + 32]
        crop = crop[:, ::-1] if hashing.uniform(key, 2) < 0.5 else crop
        np.testing.assert_allclose(out, (crop - STATISTICS.mean) / STATISTICS.std, atol=1e-5)
    plain = run("pad_crop_flip", images, keys, training=False)
    np.testing.assert_allclose(plain, (images - np.array(STATISTICS.mean)) / STATISTICS.std, atol=1e-5)


def test_shift_is_its_steps(images, keys):
    got = run("shift(pixels=2)", images[..., :1], keys)
    for image, key, out in zip(images[..., :1], keys, got, strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        top, left = (int(hashing.uniform(key, draw) * np.float32(5)) for draw in (0, 1))
        np.testing.assert_allclose(out, padded[top : top + 32, left : left + 32] / 255.0, atol=1e-6)
    np.testing.assert_allclose(run("shift", images, keys, training=False), images / 255.0, atol=1e-6)


def test_output_spec_tells_shape_and_dtype_without_data():
    assert output_spec(make_recipe("cifar10_tutorial"), (32, 32, 3)) == tf.TensorSpec((1, 24, 24, 3), tf.float32)
    assert output_spec(make_recipe("none"), (9, 8, 1)) == tf.TensorSpec((1, 9, 8, 1), tf.uint8)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("cifar10_tutorial(crop=21)", "1..20"),
        ("cifar10_tutorial(crop=0)", "1..20"),
        ("shift(pixels=20)", "0..19"),
        ("pad_crop_flip(pad=20)", "0..19"),
    ],
)
def test_what_leaves_nothing_of_an_image_or_exceeds_it_is_refused(text, bounds):
    with pytest.raises(UsageError, match=f"^augment: {re.escape(text)}: .* {re.escape(bounds)} .*20x32$"):
        output_spec(make_recipe(text), (20, 32, 3))
    last = int(bounds.split("..")[1])
    make_recipe(re.sub(r"\d+\)", f"{last})", text)).check((20, 32, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar10_tutorail", "'cifar10_tutorail'.*'cifar10_tutorial'"),
        ("shift(pixel=1)", "shift: .*'pixel'.*'pixels'"),
        ("shift(3)", r"'shift\(3\)'"),
        ("shift(pixels='a')", "'a'.* int"),
        ("shift(pixels=True)", "True.* int"),
        ("shift(pixels=-1)", r"pixels=-1.*0\.\.64"),
        ("none(a=1)", "none .*'a'"),
        ("__import__('os')", "not a recipe"),
        ("shift(pixels=__import__('os'))", "not a recipe"),
        ("a.b(c=1)", "not a recipe"),
        ("", "not a recipe"),
        ("shift(", "not a recipe"),
        ("cifar10_tutorial(contrast_low=2.0)", r"contrast_low=2.0.*0\.\.1.8"),
        ("cifar10_tutorial(contrast_high=1e999)", r"contrast_high=inf.*0\.\.255"),
        ("cifar10_tutorial(brightness=300)", r"brightness=300.*0\.\.255"),
    ],
)
def test_a_wrong_recipe_is_one_clear_error(text, message):
    with pytest.raises(UsageError, match=message):
        make_recipe(text)


def boxes_of(text, count, height, width):
    many = hashing.derive_key(Domain.AUGMENT, 3, 1, np.arange(count))
    sizes = (np.full(count, side, np.int32) for side in (height, width))
    return make_recipe(text).crop(True).box(*sizes, tf.constant(many)).numpy()


def test_random_crop_is_anywhere_alike():
    boxes = boxes_of("random_crop(size=24)", 20_000, 33, 28)
    assert (boxes[:, 2:] == 24).all()
    for places, choices in ((boxes[:, 0], 10), (boxes[:, 1], 5)):
        counts = np.bincount(places)
        assert len(counts) == choices
        assert np.abs(counts - 20_000 / choices).max() < 5 * np.sqrt(20_000 / choices)


def test_random_resized_crop_has_areas_of_8_to_100_percent_and_shapes_of_3_to_4():
    boxes = boxes_of("random_resized_crop", 20_000, 1000, 1000)
    tall, wide = boxes[:, 2].astype(float), boxes[:, 3].astype(float)
    whole = (tall < 1000) & (wide < 1000)  # what would be larger ends at the image's border
    areas, shapes = tall * wide / 1e6, np.log(wide / tall)
    assert areas.min() > 0.079
    assert areas.max() <= 1
    # Uniform in 0.08..1: below 0.5, where no shape reaches the border, a part of 0.42 / 0.92.
    assert abs((areas < 0.5).mean() - 0.42 / 0.92) < 5 * 0.5 / np.sqrt(20_000)
    low = areas[areas < 0.5]
    assert abs(low.mean() - 0.29) < 5 * 0.42 / np.sqrt(12 * len(low))
    assert np.abs(shapes[whole]).max() < np.log(4 / 3) + 0.01
    assert abs(shapes[areas < 0.5].mean()) < 5 * np.log(4 / 3) / np.sqrt(3 * len(low))
    room = 1000 - boxes[:, 2:] + 1
    places = (boxes[:, :2] / room)[(room > 100).all(axis=1)]
    assert np.abs(places.mean(axis=0) - 0.5).max() < 0.02


@pytest.mark.parametrize(
    "text", ["random_crop(size=32, normalize=False)", "random_resized_crop(size=32, normalize=False)"]
)
def test_cropped_images_are_flipped_by_halves(images, keys, text):
    got = run(text, images, keys)
    flipped = hashing.uniform(keys, 2 if text.startswith("random_crop") else 4) < 0.5
    assert 16 < flipped.sum() < 48
    assert np.array_equal(got, np.where(flipped[:, None, None, None], images[:, :, ::-1], images))
    assert np.array_equal(run(text, images, keys, training=False), images)
    expected = (got - np.array(STATISTICS.mean)) / STATISTICS.std
    np.testing.assert_allclose(run(text.replace(", normalize=False", ""), images, keys), expected, atol=1e-5)
