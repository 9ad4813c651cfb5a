"""The network of TensorFlow's MNIST tutorial (models/tutorials/image/mnist/convolutional.py): two convolutions.

Shapes, initial values, dropout and weight decay are the tutorial's; on 28x28x1 with 10 classes there are 1,663,370
parameters.
"""

from __future__ import annotations

import keras
from keras.initializers import Constant, TruncatedNormal

from trainer.models.layers import ScalePixels, l2_loss

WIDTHS, UNITS = (32, 64), 512
WEIGHT_DECAY = 5e-4  # of the dense layers and their biases, in tf.nn.l2_loss form


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int, dropout: float = 0.5) -> keras.Model:
    """Returns the network; `dropout` is the share of the hidden units that is dropped in training.

    Raises:
      ValueError: the images are smaller than 4 pixels on a side.
    """
    if min(image_shape[:2]) < 4:
        raise ValueError("it needs 4 pixels or more on each side")
    return keras.Sequential(
        [
            keras.Input(image_shape, dtype=image_dtype),
            ScalePixels(),
            _convolution(WIDTHS[0], bias=0.0),
            keras.layers.MaxPooling2D(),
            _convolution(WIDTHS[1], bias=0.1),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            _dense(UNITS, "relu"),
            keras.layers.Dropout(dropout),
            _dense(num_classes, None),
        ],
        name="mnist_cnn",
    )


def _convolution(width: int, bias: float) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(
        width,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=TruncatedNormal(stddev=0.1),
        bias_initializer=Constant(bias),
    )


def _dense(units: int, activation: str | None) -> keras.layers.Dense:
    return keras.layers.Dense(
        units,
        activation,
        kernel_initializer=TruncatedNormal(stddev=0.1),
        bias_initializer=Constant(0.1),
        kernel_regularizer=l2_loss(WEIGHT_DECAY),
        bias_regularizer=l2_loss(WEIGHT_DECAY),
    )
