"""Makes batches out of a window: rows of the order, one gather, the distortion, the weights; one XLA function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from pipeline import hashing_tf, order_tf
from pipeline.hashing import Domain
from pipeline.order import Order
from pipeline.recipes.base import ImageStatistics, Recipe

UserDistort = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]



@dataclasses.dataclass(frozen=True)
class Batches:
    """Everything that a batch is made from.

    Attributes:
      order: which records a step takes.
      images: uint8 (N, height, width, channels), row i being record id i.
      labels: int64 (N,).
      statistics: of the training images.
      distort: a recipe, or the user's own function of (images, keys).
      weights: `mask` or `mean`.
      record_ids: add the record ids to the element.
    """

    order: Order
    images: tf.Tensor
    labels: tf.Tensor
    statistics: ImageStatistics
    distort: Recipe | UserDistort
    weights: str
    record_ids: bool

    def make(self, rows_of_replica: int) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tuple]:
        """Returns the function of (epoch, step of epoch, first row, records by position) that gives one element."""
        own = not hasattr(self.distort, "distort")

        def gathered(epoch: tf.Tensor, step: tf.Tensor, first: tf.Tensor, by_position: tf.Tensor) -> tuple:
            rows = first + tf.range(rows_of_replica, dtype=tf.int64)
            positions, real = order_tf.positions(self.order, step, rows)
            records = tf.gather(by_position, positions)
            keys = hashing_tf.derive_key(Domain.DISTORT, self.order.seed, epoch, records)
            images = tf.gather(self.images, records)
            if not own:
                images = self._distorted(images, keys)
            return images, tf.gather(self.labels, records), self._weights(real, step), keys, records

        compiled = tf.function(gathered, jit_compile=True)

        def element(epoch: tf.Tensor, step: tf.Tensor, first: tf.Tensor, by_position: tf.Tensor) -> tuple:
            images, labels, weights, keys, records = compiled(epoch, step, first, by_position)
            if own:  # may hold ops that XLA does not have
                images = self.distort(images, keys)
            return (images, labels, weights, records) if self.record_ids else (images, labels, weights)

        return element

    def _distorted(self, images: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        if self.order.training:
            return self.distort.distort(images, keys, self.statistics)
        return self.distort.evaluate(images, self.statistics)

    def _weights(self, real: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        mask = tf.cast(real, tf.float32)
        if self.weights == "mask":
            return mask
        size = self.order.global_batch_size
        real_rows = tf.minimum(self.order.num_records - step * size, size)  # in the global batch of this step
        return mask * (size / tf.cast(real_rows, tf.float32))
