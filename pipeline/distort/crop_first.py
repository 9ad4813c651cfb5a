"""Recipes that begin by taking a crop of each image, of one size, at a place that the image's key decides."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import ImageStatistics, Recipe


class CropFirst(Recipe):
    """A distortion of a crop of each image. Who has the images in memory may take the crops, and call `of_crops`."""

    @property
    def padding(self) -> int:
        """How many pixels of zeros are put around an image first; 0: a crop lies inside the image."""
        return 0

    def crop_size(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """Returns the height and width of the crops of images of this (height, width, channels)."""
        raise NotImplementedError

    def corners(self, image_shape: tuple[int, int, int], keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the top and the left of each image's crop, int32 of `keys`' shape, in pixels, padding included.

        Args:
          image_shape: (height, width, channels), without the padding.
          keys: as of `distort`.
        """
        raise NotImplementedError

    def distort_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns what `distort` does, of the crops, uint8 (rows, *crop_size, channels)."""
        raise NotImplementedError

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        _, height, width, channels = images.shape
        shape, around = (height, width, channels), [self.padding, self.padding]
        padded = tf.pad(images, [[0, 0], around, around, [0, 0]]) if self.padding else images
        lanes = kernels.crop(padded, *self.corners(shape, keys), *self.crop_size(shape))
        return self.distort_crops(kernels.to_images(lanes, channels), keys, statistics)


@dataclasses.dataclass(frozen=True)
class OfCrops(Recipe):
    """The distortion of a `CropFirst` whose crops are taken already; in evaluation these are the images.

    Attributes:
      recipe: that recipe.
    """

    recipe: CropFirst

    @property
    def normalizes(self) -> bool:
        """See `Recipe.normalizes`."""
        return self.recipe.normalizes

    def gives_floats(self, floats: bool) -> bool:
        """See `Recipe.gives_floats`."""
        return self.recipe.gives_floats(floats)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        return self.recipe.distort_crops(images, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        return self.recipe.evaluate(images, keys, statistics)
