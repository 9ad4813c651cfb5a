"""Recipes without randomness: they are the same in training and evaluation."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import ImageStatistics, Recipe, check_argument


@dataclasses.dataclass(frozen=True)
class Normalize(Recipe):
    """Takes out the training images' mean and standard deviation, channel by channel; float32."""

    @property
    def normalizes(self) -> bool:
        """See `Recipe.normalizes`."""
        return True

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
        return kernels.resize(images, self.height, self.width)

    evaluate = distort
