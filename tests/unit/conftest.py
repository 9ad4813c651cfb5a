"""Fixtures for the tests of all packages."""

import numpy as np
import pytest

from pipeline.order.hashing import splitmix64


@pytest.fixture
def pixels():
    """A function that returns images by a hash, uint8 (n, height, width, channels)."""

    def make(count, shape=(6, 5, 3), seed=0):
        numbers = np.arange(count * int(np.prod(shape))) + (seed << 32)
        return (splitmix64(numbers) >> np.uint64(56)).astype(np.uint8).reshape(count, *shape)

    return make


@pytest.fixture
def op_determinism():
    """TensorFlow's op determinism, for one test."""
    import tensorflow as tf
    from tensorflow.python.framework.config import disable_op_determinism

    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()
