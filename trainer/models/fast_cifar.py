"""A network for short CIFAR-10 runs, after airbench94 (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU").

airbench94 stands in the line of records of Page ("How to train your ResNet", DAWNBench 2018) and of hlb-CIFAR10 (Balsam
2023). Its design is kept: 2x2 patches whitened by fixed filters, in both signs; three groups of two convolutions, the
first of each pooled; normalisation without a scale; identity initialisation; the maximum over the last pixels; scaled
logits; so are its widths of 64, 256 and 256. ReLU stands for GELU, which takes a CPU longer.

The filters are not fitted to the data. They are the cosine transform of a patch, which is close to the principal
components of any natural image (Ahmed, Natarajan, Rao 1974, "Discrete cosine transform"); batch statistics scale them.
On 32x32x3 with 10 classes there are 1,971,328 trainable parameters.
"""

from __future__ import annotations

import math

import keras
import numpy as np
import numpy.typing as npt

from trainer.models.layers import ScalePixels

WIDTHS = (64, 256, 256)
PATCH = 2  # pixels on a side
LOGIT_SCALE = 1 / 9
STATISTICS_DECAY = 0.9  # of the moving means and variances: a run has a few thousand steps


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network.

    Raises:
      ValueError: the images are smaller than 9 pixels on a side.
    """
    if min(image_shape[:2]) < 9:
        raise ValueError("it needs 9 pixels or more on each side")
    images = keras.Input(image_shape, dtype=image_dtype)
    found = _whitened(ScalePixels()(images), patch_cosines(image_shape[2]))
    for width in WIDTHS:
        found = _activated(keras.layers.MaxPooling2D()(_convolution(found, width)))
        found = _activated(_convolution(found, width))
    found = keras.layers.GlobalMaxPooling2D()(found)
    logits = keras.layers.Dense(num_classes, use_bias=False, dtype="float32")(found)
    return keras.Model(images, logits * LOGIT_SCALE, name="fast_cifar")


def patch_cosines(channels: int) -> npt.NDArray[np.float32]:
    """Returns the orthonormal filters (2, 2, channels, 4 * channels): cosines over height, width and channels."""
    pixel, channel = _cosines(PATCH), _cosines(channels)
    filters = np.einsum("ay,bx,kc->yxcabk", pixel, pixel, channel)
    return filters.reshape(PATCH, PATCH, channels, -1).astype(np.float32)


def _cosines(size: int) -> npt.NDArray[np.float64]:
    """Returns the orthonormal DCT-II, one function per row."""
    angles = np.outer(np.arange(size), np.arange(size) + 0.5) * math.pi / size
    return np.cos(angles) * np.sqrt(np.where(np.arange(size) == 0, 1, 2) / size)[:, None]


def _whitened(images: keras.KerasTensor, filters: npt.NDArray[np.float32]) -> keras.KerasTensor:
    """Returns the patches' components, normalised, and split into their positive and negative parts."""
    layer = keras.layers.Conv2D(filters.shape[-1], PATCH, use_bias=False, trainable=False)
    components = layer(images)
    layer.kernel.assign(filters)
    components = keras.layers.BatchNormalization(momentum=STATISTICS_DECAY, center=False, scale=False)(components)
    return keras.layers.ReLU()(keras.layers.Concatenate()([components, -components]))


def _convolution(values: keras.KerasTensor, width: int) -> keras.KerasTensor:
    """Returns a 3x3 convolution that passes on what it gets, as far as it has channels for it, and adds others."""
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
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=STATISTICS_DECAY, scale=False)(values))
