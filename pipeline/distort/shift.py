"""Small shifts, for digits: the one distortion that keeps a 6 from becoming a 9 and needs no interpolation."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline.distort import geometry
from pipeline.distort.base import ImageStatistics, Recipe, check_bounds


@dataclasses.dataclass(frozen=True)
class Shift(Recipe):
    """Shift by up to `pixels` in each direction, zeros moving in; float32 in [0, 1]."""

    pixels: int = 2

    def __post_init__(self) -> None:
        check_bounds("pixels", self.pixels, 0, 64)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; the images' shape."""
        shifted = geometry.to_images(geometry.random_shift(images, keys, self.pixels), images.shape[3])
        return self.evaluate(shifted, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`: scaled to [0, 1] only."""
        del keys, statistics
        return tf.cast(images, tf.float32) / 255.0
