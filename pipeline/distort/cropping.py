"""Recipes that decode a part of each PNG or JPEG: what they share, and the two of them."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import kernels
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
    sets_size: ClassVar[bool] = True

    size: int = 224
    flip: bool = True
    normalize: bool = True

    def __post_init__(self) -> None:
        check_bounds("size", self.size, 1, 4096)

    @property
    def normalizes(self) -> bool:
        """See `Recipe.normalizes`."""
        return self.normalize

    def gives_floats(self, floats: bool) -> bool:
        """See `Recipe.gives_floats`."""
        del floats
        return self.normalize

    def crop(self, training: bool) -> Crop:
        """Returns the part of each image that is decoded."""
        raise NotImplementedError

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`; `images` are the decoded parts."""
        if self.flip:
            images = kernels.flip_images(images, hashing_tf.uniform(keys, self.flip_draw) < 0.5)
        return self.evaluate(images, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        del keys
        return kernels.normalise(images, statistics) if self.normalize else images


def _box(
    height: tf.Tensor, width: tf.Tensor, tall: tf.Tensor, wide: tf.Tensor, key: tf.Tensor | None = None, draw: int = 0
) -> tf.Tensor:
    """Returns the boxes, as `Crop.box`, of parts of this size: in the middle, or as draws `draw` and the next say."""
    if key is None:
        top, left = (height - tall) // 2, (width - wide) // 2
    else:
        top, left = (
            kernels.random_below(height - tall + 1, key, draw),
            kernels.random_below(width - wide + 1, key, draw + 1),
        )
    return tf.stack([top, left, tall, wide], axis=-1)


@dataclasses.dataclass(frozen=True)
class RandomCrop(CroppingRecipe):
    """A random part as large as the result, so nothing is resized: crop, flip, normalise; the middle in evaluation.

    Smaller images are scaled up so that the shorter side fits.
    """

    flip_draw: ClassVar[int] = 2  # after those of the box

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
        return _box(height, width, side, side, key if self.training else None)


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(CroppingRecipe):
    """A part of random size and shape, resized: crop, resize, flip, normalise.

    In evaluation the middle: `central` of the shorter side, as in 224 of 256. Source: Szegedy et al., Going deeper with
    convolutions (2015), section 6: 8% to 100% of the area, shapes of 3/4 to 4/3.

    Attributes:
      min_area: the least part of the image's area.
      max_shape: width / height is at most this, and at least its inverse.
      central: part of the shorter side in evaluation.
    """

    flip_draw: ClassVar[int] = 4  # after those of area, shape and box

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
        area = image_area * (self.min_area + (1 - self.min_area) * hashing_tf.uniform(key, 0))
        shape = tf.exp(math.log(self.max_shape) * (2 * hashing_tf.uniform(key, 1) - 1))
        wide = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area * shape)), tf.int32), 1, width)
        tall = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area / shape)), tf.int32), 1, height)
        return _box(height, width, tall, wide, key, draw=2)


@dataclasses.dataclass(frozen=True)
class _CentralCrop:
    size: tuple[int, int]
    part: float

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """See `Crop.box`."""
        del key
        side = tf.cast(tf.round(tf.cast(tf.minimum(height, width), tf.float32) * self.part), tf.int32)
        side = tf.maximum(side, 1)
        return _box(height, width, side, side)
