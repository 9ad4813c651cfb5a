"""The images as they are stored."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort.base import ImageStatistics, Recipe


@dataclasses.dataclass(frozen=True)
class Undistorted(Recipe):
    """No distortion: uint8 of the images' shape, in training and evaluation."""

    compiled: ClassVar[bool] = False

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del keys, statistics
        return images

    evaluate = distort
