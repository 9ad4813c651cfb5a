"""784-500-10: the fully connected network of the TensorFlow book's MNIST chapter (mnist_inference.py)."""

from __future__ import annotations

import keras
from keras.initializers import TruncatedNormal

from trainer.models.layers import ScalePixels, l2_loss

HIDDEN = 500
WEIGHT_DECAY = 1e-4


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network for images of any shape."""
    return keras.Sequential(
        [
            keras.Input(image_shape, dtype=image_dtype),
            ScalePixels(),
            keras.layers.Flatten(),
            _dense(HIDDEN, "relu"),
            _dense(num_classes, None),
        ],
        name="mlp",
    )


def _dense(units: int, activation: str | None) -> keras.layers.Dense:
    return keras.layers.Dense(
        units,
        activation,
        kernel_initializer=TruncatedNormal(stddev=0.1),
        bias_initializer=keras.initializers.Constant(0.1),
        kernel_regularizer=l2_loss(WEIGHT_DECAY),
    )
