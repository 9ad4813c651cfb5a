"""Recipes that begin by taking a part of each image, of one size, at a place that the image's key decides."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import ImageStatistics, Recipe


class PartRecipe(Recipe):
    """A distortion of a part of each image. Who has the images in memory may take the parts, and call `of_parts`."""

    @property
    def margin(self) -> int:
        """How many pixels of zeros are put around an image first; 0: a part lies inside the image."""
        return 0

    def part_size(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """Returns the height and width of the parts of images of this (height, width, channels)."""
        raise NotImplementedError

    def corners(self, image_shape: tuple[int, int, int], keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the top and the left of each image's part, int32 of `keys`' shape, in pixels, margin included.

        Args:
          image_shape: (height, width, channels), without the margin.
          keys: as of `distort`.
        """
        raise NotImplementedError

    def distort_parts(self, parts: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns what `distort` does, of the parts, uint8 (rows, *part_size, channels)."""
        raise NotImplementedError

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        _, height, width, channels = images.shape
        shape, around = (height, width, channels), [self.margin, self.margin]
        padded = tf.pad(images, [[0, 0], around, around, [0, 0]]) if self.margin else images
        lanes = kernels.crop(padded, *self.corners(shape, keys), *self.part_size(shape))
        return self.distort_parts(kernels.to_images(lanes, channels), keys, statistics)


@dataclasses.dataclass(frozen=True)
class OfParts(Recipe):
    """The distortion of a `PartRecipe` whose parts are taken already; in evaluation these are the images.

    Attributes:
      recipe: that recipe.
    """

    recipe: PartRecipe

    @property
    def normalizes(self) -> bool:
        """See `Recipe.normalizes`."""
        return self.recipe.normalizes

    def gives_floats(self, floats: bool) -> bool:
        """See `Recipe.gives_floats`."""
        return self.recipe.gives_floats(floats)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        return self.recipe.distort_parts(images, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        return self.recipe.evaluate(images, keys, statistics)
