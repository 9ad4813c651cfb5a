"""Recipes that cover a part of an image."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import Augmentation, ImageStatistics, check_argument, check_fits
from pipeline.order import hashing_tf


@dataclasses.dataclass(frozen=True)
class Cutout(Augmentation):
    """Covers a square with the training images' mean colour, which is 0 once images are normalised.

    Its middle is any pixel, so a part of it may lie outside. Source: DeVries and Taylor, Improved Regularization of
    Convolutional Neural Networks with Cutout (2017).

    Attributes:
      size: pixels on a side.
    """

    takes_floats: ClassVar[bool] = True

    size: int = 8

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError where the square is larger than the images."""
        check_fits("cutout", "size", self.size, 1, min(image_shape[:2]), image_shape)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; of floats the cover is 0."""
        size = images.shape[1], images.shape[2]
        top, left = (kernels.random_below(n, keys, draw) - self.size // 2 for draw, n in enumerate(size))
        cover = tf.zeros((), images.dtype)
        if images.dtype == tf.uint8:
            cover = tf.constant([round(mean) for mean in statistics.mean], tf.uint8)
        return tf.where(kernels.inside(top, left, self.size, self.size, size), cover, images)


@dataclasses.dataclass(frozen=True)
class RandomErasing(Augmentation):
    """Covers a rectangle of random size and shape with noise, in some of the images; uint8.

    Source: Zhong et al., Random Erasing Data Augmentation (2017), RE-R, shapes uniform in their logarithm. A rectangle
    that would be taller or wider than the image ends at its border.

    Attributes:
      prob: the part of the images.
      min_area, max_area: the rectangle's part of the image's area, uniform between these.
      max_shape: its height / width is at most this, and at least its inverse.
    """

    prob: float = 0.5
    min_area: float = 0.02
    max_area: float = 0.4
    max_shape: float = 10 / 3

    def __post_init__(self) -> None:
        check_argument("random_erasing", "prob", self.prob, 0, 1)
        check_argument("random_erasing", "max_area", self.max_area, 0, 1)
        check_argument("random_erasing", "min_area", self.min_area, 0, self.max_area)
        check_argument("random_erasing", "max_shape", self.max_shape, 1, 16)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del statistics
        _, height, width, channels = images.shape
        draw = lambda number: tf.cast(hashing_tf.uniform(keys, number), tf.float64)  # noqa: E731
        area = (self.min_area + (self.max_area - self.min_area) * draw(1)) * (height * width)
        shape = tf.exp(math.log(self.max_shape) * (2.0 * draw(2) - 1.0))
        tall = tf.minimum(tf.cast(tf.round(tf.sqrt(area * shape)), tf.int32), height)
        wide = tf.minimum(tf.cast(tf.round(tf.sqrt(area / shape)), tf.int32), width)
        top = kernels.random_below(height - tall + 1, keys, 3)
        left = kernels.random_below(width - wide + 1, keys, 4)
        covered = kernels.inside(top, left, tall, wide, (height, width))
        covered &= (hashing_tf.uniform(keys, 0) < self.prob)[:, None, None, None]
        seed = hashing_tf.splitmix64(keys + tf.constant(5, tf.uint64))
        return tf.where(covered, _noise(seed, (height, width, channels)), images)


def _noise(keys: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Returns uint8 (rows, *shape), uniform: the bytes of splitmix64(key + i), the lowest first."""
    size = math.prod(shape)
    hashes = hashing_tf.splitmix64(keys[:, None] + tf.cast(tf.range(-(-size // 8)), tf.uint64)[None, :])
    return tf.reshape(tf.reshape(tf.bitcast(hashes, tf.uint8), (keys.shape[0], -1))[:, :size], (-1, *shape))
