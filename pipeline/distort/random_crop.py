"""A random part of each PNG or JPEG, as large as the result: nothing is resized, and a JPEG is decoded there only."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import geometry
from pipeline.distort.base import Framing, ImageStatistics, check_bounds
from pipeline.order import hashing_tf

_TOP, _LEFT, _FLIP = range(3)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """Crop, flip, normalise by the training images' mean and standard deviation; the middle in evaluation.

    An image that is smaller is scaled up so that its shorter side fits.

    Attributes:
      size: height and width of the result, pixels.
      flip: mirror half of the images.
      normalize: off: uint8, 0..255.
    """

    compiled: ClassVar[bool] = True

    size: int = 224
    flip: bool = True
    normalize: bool = True

    def __post_init__(self) -> None:
        check_bounds("size", self.size, 1, 4096)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Any image will do."""

    def framing(self, training: bool) -> Framing:
        """See `CroppingRecipe.framing`."""
        return _Part((self.size, self.size), training)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        return geometry.flip_and_normalise(images, keys, _FLIP if self.flip else None, statistics, self.normalize)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        return geometry.flip_and_normalise(images, keys, None, statistics, self.normalize)


@dataclasses.dataclass(frozen=True)
class _Part:
    size: tuple[int, int]
    training: bool

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """See `Framing.box`."""
        side = tf.minimum(tf.minimum(height, width), self.size[0])
        top, left = (height - side) // 2, (width - side) // 2
        if self.training:
            top = _below(hashing_tf.uniform(key, _TOP), height - side + 1)
            left = _below(hashing_tf.uniform(key, _LEFT), width - side + 1)
        return tf.stack([top, left, side, side], axis=-1)


def _below(uniform: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    """Returns a whole number in 0..bound-1 of one in [0, 1)."""
    return tf.cast(uniform * tf.cast(bound, tf.float32), tf.int32)
