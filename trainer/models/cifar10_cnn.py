"""The network of the CIFAR-10 tutorial: `inference()` of models/tutorials/image/cifar10/cifar10.py.

Shapes, order, initial values and weight decay are the tutorial's; on its 24x24x3 crops there are 1,068,298 parameters.
"""

from __future__ import annotations

import keras
from keras.initializers import TruncatedNormal

from trainer.models.layers import LocalResponseNorm, ScalePixels, l2_loss

WEIGHT_DECAY = 0.004  # of the two local layers, in tf.nn.l2_loss form


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network for images of any size."""
    return keras.Sequential(
        [
            keras.Input(image_shape, dtype=image_dtype),
            ScalePixels(),
            _convolution(bias=0.0),
            _pool(),
            LocalResponseNorm(),
            _convolution(bias=0.1),
            LocalResponseNorm(),
            _pool(),
            keras.layers.Flatten(),
            _local(384),
            _local(192),
            keras.layers.Dense(num_classes, kernel_initializer=TruncatedNormal(stddev=1 / 192)),
        ],
        name="cifar10_cnn",
    )


def _convolution(bias: float) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(
        64,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=TruncatedNormal(stddev=5e-2),
        bias_initializer=keras.initializers.Constant(bias),
    )


def _pool() -> keras.layers.MaxPooling2D:
    return keras.layers.MaxPooling2D(3, strides=2, padding="same")


def _local(units: int) -> keras.layers.Dense:
    return keras.layers.Dense(
        units,
        "relu",
        kernel_initializer=TruncatedNormal(stddev=0.04),
        bias_initializer=keras.initializers.Constant(0.1),
        kernel_regularizer=l2_loss(WEIGHT_DECAY),
    )
