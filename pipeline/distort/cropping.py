"""What recipes share that choose the part of an encoded image to decode."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import geometry
from pipeline.distort.base import Crop, ImageStatistics, Recipe, check_bounds
from pipeline.order import hashing_tf


@dataclasses.dataclass(frozen=True)
class CroppingRecipe(Recipe):
    """Decodes a part of each PNG or JPEG; flips it, and normalises it by the training images' mean and deviation.

    Attributes:
      flip_draw: the draw that decides which images are mirrored.
      size: height and width of the result, pixels.
      flip: mirror half of the images.
      normalize: off: uint8, 0..255.
    """

    flip_draw: ClassVar[int]

    size: int = 224
    flip: bool = True
    normalize: bool = True

    def __post_init__(self) -> None:
        check_bounds("size", self.size, 1, 4096)

    def crop(self, training: bool) -> Crop:
        """Returns the part of each image that is decoded."""
        raise NotImplementedError

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; `images` are the decoded parts."""
        if self.flip:
            rows, height, width, channels = images.shape
            lanes = tf.reshape(images, (rows, height, width * channels))
            lanes = geometry.flip(lanes, hashing_tf.uniform(keys, self.flip_draw) < 0.5, channels)
            images = geometry.to_images(lanes, channels)
        return self.evaluate(images, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        del keys
        return geometry.normalise(images, statistics) if self.normalize else images


def random_below(bound: tf.Tensor, key: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns int32 of the shape of `bound` and `key`, uniform in 0..bound-1."""
    return tf.cast(hashing_tf.uniform(key, draw) * tf.cast(bound, tf.float32), tf.int32)
