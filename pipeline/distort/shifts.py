"""Recipes that move an image by some pixels, zeros moving in, and that mirror it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import Augmentation, ImageStatistics, Recipe, check_argument, check_bounds, check_fits
from pipeline.order import hashing_tf

_TOP, _LEFT, _FLIP = range(3)  # draws


def _random_shift(images: tf.Tensor, keys: tf.Tensor, pixels: int) -> tf.Tensor:
    """Returns the images shifted by up to `pixels` in each direction as rows of lanes."""
    height, width = images.shape[1:3]
    top, left = (kernels.random_below(2 * pixels + 1, keys, draw) for draw in (_TOP, _LEFT))
    padded = tf.pad(images, [[0, 0], [pixels, pixels], [pixels, pixels], [0, 0]])
    return kernels.crop(padded, top, left, height, width)


@dataclasses.dataclass(frozen=True)
class Shift(Recipe):
    """Shift by up to `pixels` in each direction, zeros moving in; float32 in [0, 1]. A 6 never becomes a 9."""

    pixels: int = 2

    def __post_init__(self) -> None:
        check_bounds("pixels", self.pixels, 0, 64)

    def gives_floats(self, floats: bool) -> bool:
        """See `Recipe.gives_floats`."""
        del floats
        return True

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError where a shift may leave nothing of an image."""
        check_fits("shift", "pixels", self.pixels, 0, min(image_shape[:2]) - 1, image_shape)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; the images' shape."""
        shifted = kernels.to_images(_random_shift(images, keys, self.pixels), images.shape[3])
        return self.evaluate(shifted, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`: scaled to [0, 1] only."""
        del keys, statistics
        return tf.cast(images, tf.float32) / 255.0


@dataclasses.dataclass(frozen=True)
class PadCropFlip(Recipe):
    """Zero-pad, crop to the image's own size, flip, normalise by the training images' mean and standard deviation.

    The augmentation of the ResNet paper's CIFAR-10 runs (He et al. 2015, section 4.2).

    Attributes:
      pad: pixels on each side.
      flip: mirror half of the images.
      normalize: off: uint8, 0..255.
    """

    pad: int = 4
    flip: bool = True
    normalize: bool = True

    def __post_init__(self) -> None:
        check_bounds("pad", self.pad, 0, 64)

    @property
    def normalizes(self) -> bool:
        """See `Recipe.normalizes`."""
        return self.normalize

    def gives_floats(self, floats: bool) -> bool:
        """See `Recipe.gives_floats`."""
        del floats
        return self.normalize

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError where a crop may hold nothing of an image."""
        check_fits("pad_crop_flip", "pad", self.pad, 0, min(image_shape[:2]) - 1, image_shape)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; the images' shape."""
        channels = images.shape[3]
        lanes = _random_shift(images, keys, self.pad)
        if self.flip:
            lanes = kernels.flip(lanes, hashing_tf.uniform(keys, _FLIP) < 0.5, channels)
        return self.evaluate(kernels.to_images(lanes, channels), keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`: normalised only."""
        del keys
        return kernels.normalise(images, statistics) if self.normalize else images


@dataclasses.dataclass(frozen=True)
class Flip(Augmentation):
    """Mirrors some of the images, left to right.

    Attributes:
      prob: the part of the images.
    """

    takes_floats: ClassVar[bool] = True

    prob: float = 0.5

    def __post_init__(self) -> None:
        check_argument("flip", "prob", self.prob, 0, 1)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del statistics
        rows, height, width, channels = images.shape
        lanes = tf.reshape(images, (rows, height, width * channels))
        flipped = kernels.flip(lanes, hashing_tf.uniform(keys, 0) < self.prob, channels)
        return kernels.to_images(flipped, channels)
