"""Recipes without randomness: they are the same in training and evaluation."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import ImageStatistics, Recipe, check_argument


@dataclasses.dataclass(frozen=True)
class Normalize(Recipe):
    """Takes out the training images' mean and standard deviation, channel by channel; float32."""

    def gives_floats(self, floats: bool) -> bool:
        """See `Recipe.gives_floats`."""
        del floats
        return True

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del keys
        return kernels.normalise(images, statistics)

    evaluate = distort


@dataclasses.dataclass(frozen=True)
class Resize(Recipe):
    """Stretches images to one size, uint8: bilinear, antialiased where it makes them smaller.

    As `tf.image.resize(..., antialias=True)`, rounded.

    Attributes:
      height, width: of the result, pixels.
    """

    sets_size: ClassVar[bool] = True

    height: int = 224
    width: int = 224

    def __post_init__(self) -> None:
        check_argument("resize", "height", self.height, 1, 4096)
        check_argument("resize", "width", self.width, 1, 4096)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del keys, statistics
        _, height, width, _ = images.shape
        return kernels.resize(images, resize_weights(height, self.height), resize_weights(width, self.width))

    evaluate = distort


def resize_weights(before: int, after: int) -> np.ndarray:
    """Returns float64 (after, before): what each pixel of a line gives to each of the new line; rows of sum 1.

    A triangle about the pixel's place in the old line, of the width of the larger of both pixels.
    """
    pixel = max(before / after, 1.0)
    places = (np.arange(after)[:, None] + 0.5) * (before / after)
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(before)[None, :] + 0.5 - places) / pixel)
    return weights / weights.sum(axis=1, keepdims=True)
