"""Resizing in two passes against `tf.image.resize`."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import operations
from pipeline.decode.images import resize

by_operation = pytest.mark.usefixtures("compiled_operation")


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 50), (50, 1), (24, 32), (23, 33), (100, 75), (7, 200), (375, 500)], ids=str
)
@pytest.mark.quick(6)
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
def test_the_operation_gives_the_same_bytes_of_parts(channels):
    """Of sizes with and without a rest of the eight lines and 32 values that are made together."""
    random = np.random.default_rng(channels)
    to_size = tf.function(resize, reduce_retracing=True, autograph=False)
    for number in range(90):
        shape, size = random.integers(1, (3, 40, 300)[number % 3], 2), ((24, 31), (16, 64), (1, 9))[number // 3 % 3]
        steps = random.integers(-9, 10, (*shape, channels))  # smooth ones meet halves more often
        image = np.clip(np.cumsum(steps, axis=1) + 128, 0, 255).astype(np.uint8)
        image = image if number % 2 else random.integers(0, 256, image.shape, np.uint8)
        corner = random.integers(0, shape)
        part = (*corner, *random.integers(1, shape - corner + 1))
        top, left, height, width = part
        expected = to_size(tf.constant(image[top : top + height, left : left + width]), size).numpy()
        for mirrored in (False, True):
            found = operations.resize(tf.constant(image), tf.constant(part, tf.int32), size, mirrored).numpy()
            np.testing.assert_array_equal(found, expected[:, ::-1] if mirrored else expected, strict=True)


@by_operation
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_part_of_the_size_of_the_result_is_copied(mirrored):
    image = np.random.default_rng(0).integers(0, 256, (30, 41, 3), np.uint8)
    found = operations.resize(tf.constant(image), tf.constant([5, 9, 24, 31]), (24, 31), mirrored).numpy()
    expected = image[5:29, 9:40]
    assert np.array_equal(found, expected[:, ::-1] if mirrored else expected)


@by_operation
@pytest.mark.parametrize(
    ("shape", "part", "size", "reason"),
    [
        ((4, 4, 3), (0, 0, 0, 4), (2, 2), "height and width of 1 to 524288"),
        ((4, 4, 3), (0, 0, 4, -1), (2, 2), "height and width of 1 to 524288"),
        ((4, 4, 3), (0, 0, 4, 4), (0, 2), "height and width of 1 to 524288"),
        ((4, 4, 3), (0, 0, 4, 4), (2, (1 << 19) + 1), "height and width of 1 to 524288"),
        ((4, 4, 0), (0, 0, 4, 4), (2, 2), "1 to 65536 channels"),
        ((4, 4), (0, 0, 4, 4), (2, 2), "three dimensions"),
        ((4, 4, 3), (0, 0, 4), (2, 2), "four numbers"),
        ((4, 4, 3), (0, 0, 4, 4), (2, 2, 2), "a new size two"),
        ((4, 5, 3), (1, 0, 4, 5), (2, 2), "a part must lie in its image"),
        ((4, 5, 3), (0, 1, 4, 5), (2, 2), "a part must lie in its image"),
        ((4, 5, 3), (-1, 0, 4, 5), (2, 2), "a part must lie in its image"),
        ((4, 5, 3), (0, -1, 4, 5), (2, 2), "a part must lie in its image"),
        ((0, 0, 3), (0, 0, 1, 1), (2, 2), "a part must lie in its image"),
    ],
    ids=str,
)
def test_what_is_no_part_of_an_image_is_refused(shape, part, size, reason):
    with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
        operations.resize(tf.zeros(shape, tf.uint8), tf.constant(part), size)


def test_a_flat_image_stays_flat():
    for value in (0, 1, 128, 255):
        assert (resize(tf.fill([375, 500, 3], tf.constant(value, tf.uint8)), (224, 224)).numpy() == value).all()
