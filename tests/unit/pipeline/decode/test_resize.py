"""Resizing in two passes against `tf.image.resize`."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.decode import resize


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


def test_a_flat_image_stays_flat():
    for value in (0, 1, 128, 255):
        assert (resize(tf.fill([375, 500, 3], tf.constant(value, tf.uint8)), (224, 224)).numpy() == value).all()
