"""The networks of the MNIST tutorials and papers."""

from __future__ import annotations

import keras
from keras.initializers import Constant, TruncatedNormal

from trainer.models.layers import MaxPooling2D, ScalePixels, l2_loss

_MLP_HIDDEN = 500
_MLP_DECAY = 1e-4
_CNN_WIDTHS, _CNN_UNITS = (32, 64), 512
_CNN_DECAY = 5e-4  # of the dense layers and their biases, in tf.nn.l2_loss form


def softmax_regression(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network of the tutorial "MNIST for ML beginners" (mnist_softmax.py), one matrix; any image shape.

    On 28x28x1 with 10 classes it has 7,850 parameters, all 0 at first, whatever the seed.
    """
    layers = [keras.layers.Flatten(), keras.layers.Dense(num_classes, kernel_initializer="zeros")]
    return _network("softmax_regression", image_shape, image_dtype, layers)


def mlp(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns 784-500-10, the network of the TensorFlow book's MNIST chapter (mnist_inference.py); any image shape."""
    layers = [
        keras.layers.Flatten(),
        _dense(_MLP_HIDDEN, "relu", kernel_regularizer=l2_loss(_MLP_DECAY)),
        _dense(num_classes, None, kernel_regularizer=l2_loss(_MLP_DECAY)),
    ]
    return _network("mlp", image_shape, image_dtype, layers)


def lenet(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns LeNet-5 with ReLU and max pooling.

    LeCun et al. 1998, "Gradient-based learning applied to document recognition". On 28x28x1 it has the 61,706
    parameters of the usual count (full connections to the third layer).

    Raises:
      ValueError: the images are smaller than 12 pixels on a side.
    """
    _check_sides(image_shape, 12)
    layers = [
        keras.layers.Conv2D(6, 5, padding="same", activation="relu"),
        MaxPooling2D(),
        keras.layers.Conv2D(16, 5, activation="relu"),
        MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(120, "relu"),
        keras.layers.Dense(84, "relu"),
        keras.layers.Dense(num_classes),
    ]
    return _network("lenet", image_shape, image_dtype, layers)


def mnist_cnn(
    image_shape: tuple[int, int, int], image_dtype: str, num_classes: int, dropout: float = 0.5
) -> keras.Model:
    """Returns the network of the MNIST tutorial (models/tutorials/image/mnist/convolutional.py): two convolutions.

    Shapes, initial values, dropout and weight decay are the tutorial's; on 28x28x1 with 10 classes there are 1,663,370
    parameters. `dropout` is the share of the hidden units that is dropped in training.

    Raises:
      ValueError: the images are smaller than 4 pixels on a side.
    """
    _check_sides(image_shape, 4)
    decay = {"kernel_regularizer": l2_loss(_CNN_DECAY), "bias_regularizer": l2_loss(_CNN_DECAY)}
    layers = [
        _convolution(_CNN_WIDTHS[0], bias=0.0),
        MaxPooling2D(),
        _convolution(_CNN_WIDTHS[1], bias=0.1),
        MaxPooling2D(),
        keras.layers.Flatten(),
        _dense(_CNN_UNITS, "relu", **decay),
        keras.layers.Dropout(dropout),
        _dense(num_classes, None, **decay),
    ]
    return _network("mnist_cnn", image_shape, image_dtype, layers)


def _check_sides(image_shape: tuple[int, int, int], least: int) -> None:
    if min(image_shape[:2]) < least:
        raise ValueError(f"it needs {least} pixels or more on each side")


def _network(
    name: str, image_shape: tuple[int, int, int], image_dtype: str, layers: list[keras.layers.Layer]
) -> keras.Model:
    return keras.Sequential([keras.Input(image_shape, dtype=image_dtype), ScalePixels(), *layers], name=name)


def _convolution(width: int, bias: float) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(
        width,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=TruncatedNormal(stddev=0.1),
        bias_initializer=Constant(bias),
    )


def _dense(units: int, activation: str | None, **decay: keras.regularizers.Regularizer) -> keras.layers.Dense:
    initial = {"kernel_initializer": TruncatedNormal(stddev=0.1), "bias_initializer": Constant(0.1)}
    return keras.layers.Dense(units, activation, **initial, **decay)
