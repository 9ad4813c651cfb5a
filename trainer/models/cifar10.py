"""The networks for CIFAR-10: the tutorial's and a fast one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.lazily import Lazy, keras
from trainer.config.model import MODELS

if TYPE_CHECKING:
    from trainer.models import layers
else:
    layers = Lazy("trainer.models.layers")

_WEIGHT_DECAY = 0.004  # for the tutorial's two local layers, in terms of tf.nn.l2_loss
_WIDTHS = (64, 256, 256)
_PATCH = 2  # pixels on a side
_LOGIT_SCALE = 1 / 9
_STATISTICS_DECAY = 0.9  # decay of the moving means and variances; low, since a run has only a few thousand steps


# As in the tutorial: batch 128, rate 0.1 times 0.1 every 350 epochs, augmented 24x24 crops, averaged weights for #
# evaluation.
@MODELS.named(
    "cifar10_cnn",
    epochs=100,
    defaults={
        "global_batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "decay_factor": 0.1,
        "decay_epochs": 350.0,
        "augment": "cifar10_tutorial",
        "ema": 0.9999,
    },
)
def cifar10_cnn(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network of the CIFAR-10 tutorial, for images of any size.

    It corresponds to `inference()` in models/tutorials/image/cifar10/cifar10.py: shapes, order of layers, initial
    values and weight decay are the tutorial's. With its 24x24x3 crops it has 1,068,298 parameters.
    """
    return keras.Sequential(
        [
            keras.Input(image_shape, dtype=image_dtype),
            layers.ScalePixels(),
            _tutorial_convolution(bias=0.0),
            _pool(),
            layers.LocalResponseNorm(),
            _tutorial_convolution(bias=0.1),
            layers.LocalResponseNorm(),
            _pool(),
            keras.layers.Flatten(),
            _local(384),
            _local(192),
            keras.layers.Dense(num_classes, kernel_initializer=keras.initializers.TruncatedNormal(stddev=1 / 192)),
        ],
        name="cifar10_cnn",
    )


def _tutorial_convolution(bias: float) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(
        64,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=5e-2),
        bias_initializer=keras.initializers.Constant(bias),
    )


def _pool() -> layers.MaxPooling2D:
    return layers.MaxPooling2D(3, strides=2, padding="same")


def _local(units: int) -> keras.layers.Dense:
    return keras.layers.Dense(
        units,
        "relu",
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.04),
        bias_initializer=keras.initializers.Constant(0.1),
        kernel_regularizer=layers.l2_loss(_WEIGHT_DECAY),
    )


# After airbench94 (Jordan 2024): Nesterov, decoupled decay, label smoothing, a rate that rises and falls, mirrored #
# images in evaluation; cutout as in its longer recipe.
@MODELS.named(
    "fast_cifar",
    epochs=20,
    defaults={
        "global_batch_size": 128,
        "optimizer": "nesterov",
        "learning_rate": 0.125,
        "schedule": "linear",
        "warmup_epochs": 2.0,
        "weight_decay": 0.01,
        "label_smoothing": 0.2,
        "eval_flip": True,
        "augment": "pad_crop_flip(pad=4) | cutout(size=8)",
    },
)
def fast_cifar(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns a network for short CIFAR-10 runs, after airbench94.

    airbench94 (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU") follows Page ("How to train your
    ResNet", DAWNBench 2018) and hlb-CIFAR10 (Balsam 2023). This network keeps 2x2 patches whitened by fixed filters, in
    both signs; three groups of two convolutions with widths of 64, 256 and 256, the first of each group pooled;
    normalisation without a scale; identity initialisation; the maximum over the last pixels; scaled logits. ReLU
    replaces GELU, which is slower on a CPU.

    The filters are not fitted to the data. They are the discrete cosine transform of a patch, which approximates the
    principal components of natural images (Ahmed, Natarajan, Rao 1974, "Discrete cosine transform"); batch statistics
    scale their outputs. On 32x32x3 with 10 classes there are 1,971,328 trainable parameters.

    Raises:
      ValueError: the images are smaller than 9 pixels on a side.
    """
    if min(image_shape[:2]) < 9:
        raise ValueError("it needs 9 pixels or more on each side")
    images = keras.Input(image_shape, dtype=image_dtype)
    found = _whitened(layers.ScalePixels()(images), patch_cosines(image_shape[2]))
    for width in _WIDTHS:
        found = _activated(layers.MaxPooling2D()(_identity_convolution(found, width)))
        found = _activated(_identity_convolution(found, width))
    found = keras.layers.GlobalMaxPooling2D()(found)
    logits = keras.layers.Dense(num_classes, use_bias=False, dtype="float32")(found)
    return keras.Model(images, logits * _LOGIT_SCALE, name="fast_cifar")


def patch_cosines(channels: int) -> npt.NDArray[np.float32]:
    """Returns orthonormal filters (2, 2, channels, 4 * channels): cosines over height, width and channels."""
    pixel, channel = _cosines(_PATCH), _cosines(channels)
    filters = np.einsum("ay,bx,kc->yxcabk", pixel, pixel, channel)
    return filters.reshape(_PATCH, _PATCH, channels, -1).astype(np.float32)


def _cosines(size: int) -> npt.NDArray[np.float64]:
    """Returns the orthonormal DCT-II matrix, one basis function per row."""
    angles = np.outer(np.arange(size), np.arange(size) + 0.5) * math.pi / size
    return np.cos(angles) * np.sqrt(np.where(np.arange(size) == 0, 1, 2) / size)[:, None]


def _whitened(images: keras.KerasTensor, filters: npt.NDArray[np.float32]) -> keras.KerasTensor:
    """Returns the components of each patch, normalised and split into their positive and negative parts."""
    layer = keras.layers.Conv2D(filters.shape[-1], _PATCH, use_bias=False, trainable=False)
    components = layer(images)
    layer.kernel.assign(filters)
    components = layers.BatchNormalization(momentum=_STATISTICS_DECAY, center=False, scale=False)(components)
    return keras.layers.ReLU()(keras.layers.Concatenate()([components, -components]))


def _identity_convolution(values: keras.KerasTensor, width: int) -> keras.KerasTensor:
    """Returns a 3x3 convolution whose first channels are initialised to the identity of its inputs."""
    initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
    layer = keras.layers.Conv2D(width, 3, padding="same", use_bias=False, kernel_initializer=initializer)
    convolved = layer(values)
    kernel = np.array(layer.kernel)
    kept = np.arange(min(kernel.shape[2:]))
    kernel[..., kept] = 0
    kernel[1, 1, kept, kept] = 1
    layer.kernel.assign(kernel)
    return convolved


def _activated(values: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.ReLU()(layers.BatchNormalization(momentum=_STATISTICS_DECAY, scale=False)(values))
