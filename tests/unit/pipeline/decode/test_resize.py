"""Resizing in two passes against `tf.image.resize`."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import operations
from pipeline.decode import resize

by_operation = pytest.mark.usefixtures("compiled_operation")


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 50), (50, 1), (24, 32), (23, 33), (100, 75), (7, 200), (375, 500)], ids=str
)
def test_bytes_are_those_of_tensorflow(shape, channels):
    image = np.random.default_rng(0).integers(0, 256, (*shape, channels), np.uint8)
    found = tf.function(resize, reduce_retracing=True)(tf.constant(image), (24, 32)).numpy()
    expected = np.clip(np.round(tf.image.resize(image, (24, 32), antialias=True).numpy()), 0, 255)
    assert (found.dtype, found.shape) == (np.uint8, (24, 32, channels))
    differs = np.abs(found - expected)
    assert differs.max() <= 1  # where it is a half to the last bit
    assert (differs > 0).mean() < 0.001


@by_operation
@pytest.mark.skipif(not operations.can_resize(), reason="the operation repeats what TensorFlow does on x86-64")
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_operation_gives_the_same_bytes(channels):
    random = np.random.default_rng(channels)
    to_size = tf.function(lambda image: resize(image, (24, 31)), reduce_retracing=True, autograph=False)
    for number in range(60):
        shape = random.integers(1, (3, 40, 300)[number % 3], 2)
        steps = random.integers(-9, 10, (*shape, channels))  # smooth ones meet halves more often
        image = np.clip(np.cumsum(steps, axis=1) + 128, 0, 255).astype(np.uint8)
        image = image if number % 2 else random.integers(0, 256, image.shape, np.uint8)
        found = operations.resize(tf.constant(image), (24, 31)).numpy()
        np.testing.assert_array_equal(found, to_size(tf.constant(image)).numpy(), strict=True)


@by_operation
@pytest.mark.parametrize(
    ("shape", "size", "reason"),
    [
        ((0, 4, 3), (2, 2), "height and width of 1 to 524288"),
        ((4, 4, 3), (0, 2), "height and width of 1 to 524288"),
        ((4, 4, 3), (2, (1 << 19) + 1), "height and width of 1 to 524288"),
        ((4, 4, 0), (2, 2), "1 to 65536 channels"),
        ((4, 4), (2, 2), "three dimensions"),
        ((4, 4, 3), (2, 2, 2), "two numbers"),
    ],
    ids=str,
)
def test_what_is_no_image_is_refused(shape, size, reason):
    with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
        operations.resize(tf.zeros(shape, tf.uint8), size)


def test_a_flat_image_stays_flat():
    for value in (0, 1, 128, 255):
        assert (resize(tf.fill([375, 500, 3], tf.constant(value, tf.uint8)), (224, 224)).numpy() == value).all()
