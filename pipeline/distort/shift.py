"""Small shifts, for digits: the one distortion that keeps a 6 from becoming a 9 and needs no interpolation."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import geometry
from pipeline.distort.base import ImageStatistics, check_bounds

_TOP, _LEFT = range(2)


@dataclasses.dataclass(frozen=True)
class Shift:
    """Shift by up to `pixels` in each direction, zeros where nothing was; float32 in [0, 1]."""

    compiled: ClassVar[bool] = True

    pixels: int = 2

    def __post_init__(self) -> None:
        check_bounds("pixels", self.pixels, 0, 64)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Any image can be shifted."""

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; the images' shape."""
        del statistics
        _, height, width, channels = images.shape
        top = geometry.random_offset(keys, _TOP, 2 * self.pixels + 1)
        left = geometry.random_offset(keys, _LEFT, 2 * self.pixels + 1)
        lanes = geometry.crop(geometry.pad(images, self.pixels), top, left, height, width)
        return tf.cast(geometry.to_images(lanes, channels), tf.float32) / 255.0

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`: scaled to [0, 1] only."""
        del keys, statistics
        return tf.cast(images, tf.float32) / 255.0
