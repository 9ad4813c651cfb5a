"""Recipes that move an image by some pixels, zeros moving in, and that mirror it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import Augmentation, ImageStatistics, check_argument, check_bounds, check_fits
from pipeline.distort.crop_first import CropFirst
from pipeline.order import hashing_tf

_TOP, _LEFT, _FLIP = range(3)  # draws


class _RandomShift(CropFirst):
    """Begins with an image of the same size, moved by up to `padding` pixels in each direction."""

    def crop_size(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """See `CropFirst.crop_size`."""
        return image_shape[:2]

    def corners(self, image_shape: tuple[int, int, int], keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `CropFirst.corners`."""
        del image_shape
        top = kernels.random_below(2 * self.padding + 1, keys, _TOP)
        return top, kernels.random_below(2 * self.padding + 1, keys, _LEFT)


@dataclasses.dataclass(frozen=True)
class Shift(_RandomShift):
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

    @property
    def padding(self) -> int:
        """See `CropFirst.padding`."""
        return self.pixels

    def distort_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `CropFirst.distort_crops`."""
        return self.evaluate(crops, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`: scaled to [0, 1] only."""
        del keys, statistics
        return tf.cast(images, tf.float32) / 255.0


@dataclasses.dataclass(frozen=True)
class PadCropFlip(_RandomShift):
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

    @property
    def padding(self) -> int:
        """See `CropFirst.padding`."""
        return self.pad

    def distort_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `CropFirst.distort_crops`."""
        if self.flip:
            crops = kernels.flip_images(crops, hashing_tf.uniform(keys, _FLIP) < 0.5)
        return self.evaluate(crops, keys, statistics)

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
        return kernels.flip_images(images, hashing_tf.uniform(keys, 0) < self.prob)
