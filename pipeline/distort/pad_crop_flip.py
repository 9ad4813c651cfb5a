"""Pad, crop, flip, normalise: the augmentation of the ResNet paper's CIFAR-10 runs (He et al. 2015, section 4.2)."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline.distort import geometry
from pipeline.distort.base import ImageStatistics, Recipe, check_bounds
from pipeline.order import hashing_tf

_FLIP = 2  # the draw, after those of the shift


@dataclasses.dataclass(frozen=True)
class PadCropFlip(Recipe):
    """Zero-pad, crop to the image's own size, flip, normalise by the training images' mean and standard deviation.

    Attributes:
      pad: pixels on each side.
      flip: mirror half of the images.
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_bounds("pad", self.pad, 0, 64)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; float32 of the images' shape."""
        channels = images.shape[3]
        lanes = geometry.random_shift(images, keys, self.pad)
        if self.flip:
            lanes = geometry.flip(lanes, hashing_tf.uniform(keys, _FLIP) < 0.5, channels)
        return geometry.normalise(geometry.to_images(lanes, channels), statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`: normalised only."""
        del keys
        return geometry.normalise(images, statistics)
