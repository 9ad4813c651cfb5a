"""A random part of each PNG or JPEG, as large as the result: nothing is resized, and a JPEG is decoded there only."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort.base import Crop
from pipeline.distort.cropping import CroppingRecipe, random_below

_TOP, _LEFT, _FLIP = range(3)


@dataclasses.dataclass(frozen=True)
class RandomCrop(CroppingRecipe):
    """Crop, flip, normalise; the middle in evaluation. Smaller images are scaled up so that the shorter side fits."""

    flip_draw: ClassVar[int] = _FLIP

    def crop(self, training: bool) -> Crop:
        """See `CroppingRecipe.crop`."""
        return _SquareCrop((self.size, self.size), training)


@dataclasses.dataclass(frozen=True)
class _SquareCrop:
    size: tuple[int, int]
    training: bool

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """See `Crop.box`."""
        side = tf.minimum(tf.minimum(height, width), self.size[0])
        top, left = (height - side) // 2, (width - side) // 2
        if self.training:
            top = random_below(height - side + 1, key, _TOP)
            left = random_below(width - side + 1, key, _LEFT)
        return tf.stack([top, left, side, side], axis=-1)
