"""A random part of random size and shape of each PNG or JPEG, resized: the crop of the Inception papers.

Source: Szegedy et al., Going deeper with convolutions (2015), section 6: 8% to 100% of the area, shapes of 3/4 to 4/3.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import geometry
from pipeline.distort.base import Framing, ImageStatistics, check_bounds
from pipeline.order import hashing_tf

_AREA, _SHAPE, _TOP, _LEFT, _FLIP = range(5)


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop:
    """Crop, resize, flip, normalise by the training images' mean and standard deviation.

    In evaluation the middle: `central` of the shorter side, as in 224 of 256.

    Attributes:
      size: height and width of the result, pixels.
      min_area: the least part of the image's area.
      max_shape: width / height is at most this, and at least its inverse.
      central: part of the shorter side in evaluation.
      flip: mirror half of the images.
      normalize: off: uint8, 0..255.
    """

    compiled: ClassVar[bool] = True

    size: int = 224
    min_area: float = 0.08
    max_shape: float = 4 / 3
    central: float = 0.875
    flip: bool = True
    normalize: bool = True

    def __post_init__(self) -> None:
        check_bounds("size", self.size, 1, 4096)
        check_bounds("min_area", self.min_area, 1e-4, 1)
        check_bounds("max_shape", self.max_shape, 1, 16)
        check_bounds("central", self.central, 0.01, 1)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Any image will do."""

    def framing(self, training: bool) -> Framing:
        """See `CroppingRecipe.framing`."""
        return _RandomPart(self) if training else _Middle((self.size, self.size), self.central)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        return geometry.flip_and_normalise(images, keys, _FLIP if self.flip else None, statistics, self.normalize)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        return geometry.flip_and_normalise(images, keys, None, statistics, self.normalize)


@dataclasses.dataclass(frozen=True)
class _RandomPart:
    recipe: RandomResizedCrop

    @property
    def size(self) -> tuple[int, int]:
        """See `Framing.size`."""
        return self.recipe.size, self.recipe.size

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """See `Framing.box`; a part that would be wider or taller than the image ends at its border."""
        tall, wide = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
        least = self.recipe.min_area
        area = tall * wide * (least + (1 - least) * hashing_tf.uniform(key, _AREA))
        spread = math.log(self.recipe.max_shape)
        shape = tf.exp(spread * (2 * hashing_tf.uniform(key, _SHAPE) - 1))
        part_wide = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area * shape)), tf.int32), 1, width)
        part_tall = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area / shape)), tf.int32), 1, height)
        top = hashing_tf.uniform(key, _TOP) * tf.cast(height - part_tall + 1, tf.float32)
        left = hashing_tf.uniform(key, _LEFT) * tf.cast(width - part_wide + 1, tf.float32)
        return tf.stack([tf.cast(top, tf.int32), tf.cast(left, tf.int32), part_tall, part_wide], axis=-1)


@dataclasses.dataclass(frozen=True)
class _Middle:
    size: tuple[int, int]
    part: float

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """See `Framing.box`."""
        del key
        side = tf.cast(tf.round(tf.cast(tf.minimum(height, width), tf.float32) * self.part), tf.int32)
        side = tf.maximum(side, 1)
        return tf.stack([(height - side) // 2, (width - side) // 2, side, side], axis=-1)
