"""A random part of random size and shape of each PNG or JPEG, resized: the crop of the Inception papers.

Source: Szegedy et al., Going deeper with convolutions (2015), section 6: 8% to 100% of the area, shapes of 3/4 to 4/3.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from pipeline.distort.base import Crop, check_bounds
from pipeline.distort.cropping import CroppingRecipe, random_below
from pipeline.order import hashing_tf

_AREA, _SHAPE, _TOP, _LEFT, _FLIP = range(5)


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(CroppingRecipe):
    """Crop, resize, flip, normalise. In evaluation the middle: `central` of the shorter side, as in 224 of 256.

    Attributes:
      min_area: the least part of the image's area.
      max_shape: width / height is at most this, and at least its inverse.
      central: part of the shorter side in evaluation.
    """

    flip_draw: ClassVar[int] = _FLIP

    min_area: float = 0.08
    max_shape: float = 4 / 3
    central: float = 0.875

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds("min_area", self.min_area, 1e-4, 1)
        check_bounds("max_shape", self.max_shape, 1, 16)
        check_bounds("central", self.central, 0.01, 1)

    def crop(self, training: bool) -> Crop:
        """See `CroppingRecipe.crop`."""
        size = (self.size, self.size)
        return _RandomCrop(size, self.min_area, self.max_shape) if training else _CentralCrop(size, self.central)


@dataclasses.dataclass(frozen=True)
class _RandomCrop:
    size: tuple[int, int]
    min_area: float
    max_shape: float

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """See `Crop.box`; a part that would be wider or taller than the image ends at its border."""
        image_area = tf.cast(height, tf.float32) * tf.cast(width, tf.float32)
        area = image_area * (self.min_area + (1 - self.min_area) * hashing_tf.uniform(key, _AREA))
        shape = tf.exp(math.log(self.max_shape) * (2 * hashing_tf.uniform(key, _SHAPE) - 1))
        part_width = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area * shape)), tf.int32), 1, width)
        part_height = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area / shape)), tf.int32), 1, height)
        top = random_below(height - part_height + 1, key, _TOP)
        left = random_below(width - part_width + 1, key, _LEFT)
        return tf.stack([top, left, part_height, part_width], axis=-1)


@dataclasses.dataclass(frozen=True)
class _CentralCrop:
    size: tuple[int, int]
    part: float

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """See `Crop.box`."""
        del key
        side = tf.cast(tf.round(tf.cast(tf.minimum(height, width), tf.float32) * self.part), tf.int32)
        side = tf.maximum(side, 1)
        return tf.stack([(height - side) // 2, (width - side) // 2, side, side], axis=-1)
