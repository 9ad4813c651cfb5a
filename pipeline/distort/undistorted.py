"""The images as they are stored."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort.base import ImageStatistics


@dataclasses.dataclass(frozen=True)
class Undistorted:
    """No distortion: uint8 of the images' shape, in training and evaluation."""

    compiled: ClassVar[bool] = False

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Any image will do."""

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del keys, statistics
        return images

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        del keys, statistics
        return images
