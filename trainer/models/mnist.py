"""The networks of the MNIST tutorials and papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.lazily import Lazy, keras
from trainer.config.model import MODELS

if TYPE_CHECKING:
    from trainer.models import layers
else:
    layers = Lazy("trainer.models.layers")

_MLP_HIDDEN = 500
_MLP_DECAY = 1e-4
_CNN_WIDTHS, _CNN_UNITS = (32, 64), 512
_CNN_DECAY = 5e-4  # for the dense layers and their biases, in terms of tf.nn.l2_loss


# As in the tutorial: batch 100, a rate of 0.5.
@MODELS.named(
    "softmax_regression", epochs=10, defaults={"optimizer": "sgd", "learning_rate": 0.5, "schedule": "constant"}
)
def softmax_regression(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network of the tutorial "MNIST for ML beginners" (mnist_softmax.py), one matrix, for any image shape.

    On 28x28x1 with 10 classes it has 7,850 parameters, all initialised to 0, whatever the seed.
    """
    network = [keras.layers.Flatten(), keras.layers.Dense(num_classes, kernel_initializer="zeros")]
    return _network("softmax_regression", image_shape, image_dtype, network)


# "TensorFlow: a practical Google deep-learning framework" (Zheng, Gu): batch 100, decay 0.99 per epoch, averaged
# weights with decay 0.99. Its plain SGD at a rate of 0.8 reaches 98.2% on MNIST in 8 epochs, but only 14% on our 1,429
# digits; momentum at 0.05 reaches the usual accuracy on both (98.2%, 96.5%).
@MODELS.named("mlp", epochs=20, defaults={"learning_rate": 0.05, "ema": 0.99})
def mlp(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns 784-500-10, the network of the TensorFlow book's MNIST chapter (mnist_inference.py), for any shape."""
    network = [
        keras.layers.Flatten(),
        _dense(_MLP_HIDDEN, "relu", kernel_regularizer=layers.l2_loss(_MLP_DECAY)),
        _dense(num_classes, None, kernel_regularizer=layers.l2_loss(_MLP_DECAY)),
    ]
    return _network("mlp", image_shape, image_dtype, network)


# Momentum is common today.
@MODELS.named("lenet", epochs=10, defaults={"learning_rate": 0.01, "decay_factor": 0.98})
def lenet(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns LeNet-5 with ReLU and max pooling.

    LeCun et al. 1998, "Gradient-based learning applied to document recognition". On 28x28x1 it has the 61,706
    parameters of the usual count (full connections to the third layer).

    Raises:
      ValueError: the images are smaller than 12 pixels on a side.
    """
    _check_sides(image_shape, 12)
    network = [
        keras.layers.Conv2D(6, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        keras.layers.Conv2D(16, 5, activation="relu"),
        layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(120, "relu"),
        keras.layers.Dense(84, "relu"),
        keras.layers.Dense(num_classes),
    ]
    return _network("lenet", image_shape, image_dtype, network)


# As in the tutorial: batch 64, momentum 0.9, a rate of 0.01 times 0.95 every epoch, 10 epochs.
@MODELS.named("mnist_cnn", epochs=10, defaults={"global_batch_size": 64, "learning_rate": 0.01, "decay_factor": 0.95})
def mnist_cnn(
    image_shape: tuple[int, int, int], image_dtype: str, num_classes: int, dropout: float = 0.5
) -> keras.Model:
    """Returns the network of the MNIST tutorial (models/tutorials/image/mnist/convolutional.py): two convolutions.

    Shapes, initial values, dropout and weight decay are the tutorial's; on 28x28x1 with 10 classes there are 1,663,370
    parameters. `dropout` is the share of hidden units dropped in training.

    Raises:
      ValueError: the images are smaller than 4 pixels on a side.
    """
    _check_sides(image_shape, 4)
    decay = {"kernel_regularizer": layers.l2_loss(_CNN_DECAY), "bias_regularizer": layers.l2_loss(_CNN_DECAY)}
    network = [
        _convolution(_CNN_WIDTHS[0], bias=0.0),
        layers.MaxPooling2D(),
        _convolution(_CNN_WIDTHS[1], bias=0.1),
        layers.MaxPooling2D(),
        keras.layers.Flatten(),
        _dense(_CNN_UNITS, "relu", **decay),
        keras.layers.Dropout(dropout),
        _dense(num_classes, None, **decay),
    ]
    return _network("mnist_cnn", image_shape, image_dtype, network)


def _check_sides(image_shape: tuple[int, int, int], least: int) -> None:
    if min(image_shape[:2]) < least:
        raise ValueError(f"it needs {least} pixels or more on each side")


def _network(
    name: str, image_shape: tuple[int, int, int], image_dtype: str, network: list[keras.layers.Layer]
) -> keras.Model:
    return keras.Sequential([keras.Input(image_shape, dtype=image_dtype), layers.ScalePixels(), *network], name=name)


def _convolution(width: int, bias: float) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(
        width,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.1),
        bias_initializer=keras.initializers.Constant(bias),
    )


def _dense(units: int, activation: str | None, **decay: keras.regularizers.Regularizer) -> keras.layers.Dense:
    kernel, bias = keras.initializers.TruncatedNormal(stddev=0.1), keras.initializers.Constant(0.1)
    return keras.layers.Dense(units, activation, kernel_initializer=kernel, bias_initializer=bias, **decay)
