"""A whole split in memory, from which batches take rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.crop_first import CropFirst
from pipeline.read.gather_crops import gather_crops
from pipeline.read.window import RECORD_ID, Columns, gather


@dataclasses.dataclass(frozen=True, eq=False)
class Crops:
    """Takes the crops of images that a recipe begins with, which costs less than to take whole images.

    Attributes:
      recipe: that recipe.
      image_shape: (height, width, channels) of the images.
      keys_of: from an epoch and its records to their keys, uint64.
    """

    recipe: CropFirst
    image_shape: tuple[int, int, int]
    keys_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the crops."""
        return *self.recipe.crop_size(self.image_shape), self.image_shape[2]

    def take(self, images: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns the crops of some images, uint8 (..., pixels of a crop).

        Args:
          images: uint8 (n, pixels).
          epoch: int64 scalar.
          rows: of the images, and their records: int64 (...).
        """
        height, width, channels = self.image_shape
        tall, wide, _ = self.shape

        def corners(epoch: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            top, left = self.recipe.corners(self.image_shape, self.keys_of(epoch, rows))
            return top - self.recipe.padding, (left - self.recipe.padding) * channels

        lanes, flat = tf.reshape(images, (-1, height, width * channels)), tf.reshape(rows, [-1])
        top, left = kernels.separate(corners)(epoch, flat)
        crops = gather_crops(lanes, flat, top, left, tall, wide * channels)
        return tf.reshape(crops, (*rows.shape, tall * wide * channels))


@dataclasses.dataclass(frozen=True, eq=False)
class ResidentRows:
    """A whole split in memory.

    Attributes:
      columns: one row per record, in the selection's order.
      crops: takes crops of the images of column `image`; None: they are taken whole.
    """

    columns: Columns
    crops: Crops | None = None

    def take(self, epoch: tf.Tensor, rows: tf.Tensor) -> Columns:
        """Returns the columns of some rows, int64 (...), and their record ids, which are these."""
        if self.crops is None:
            return {RECORD_ID: rows, **gather(self.columns, rows)}
        others = {name: column for name, column in self.columns.items() if name != "image"}
        image = self.crops.take(self.columns["image"], epoch, rows)
        return {RECORD_ID: rows, "image": image, **gather(others, rows)}
