"""Softmax regression: the network of TensorFlow's tutorial "MNIST for ML beginners" (mnist_softmax.py), one matrix.

On 28x28x1 with 10 classes it has 7,850 parameters, all 0 at first, whatever the seed.
"""

from __future__ import annotations

import keras

from trainer.models.layers import ScalePixels


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network for images of any shape."""
    return keras.Sequential(
        [
            keras.Input(image_shape, dtype=image_dtype),
            ScalePixels(),
            keras.layers.Flatten(),
            keras.layers.Dense(num_classes, kernel_initializer="zeros"),
        ],
        name="softmax_regression",
    )
