"""Makes batches out of a window: which records (XLA), one gather, the distortion (XLA)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from pipeline import hashing_tf, order_tf
from pipeline.hashing import Domain
from pipeline.order import Order
from pipeline.recipes.base import ImageStatistics, Recipe


@dataclasses.dataclass(frozen=True)
class Batches:
    """Everything that a batch is made from.

    Attributes:
      order: which records a step takes.
      images: uint8 (N, height, width, channels), row i being record id i.
      labels: int64 (N,).
      statistics: of the training images.
      recipe: the distortion.
      weights: `mask` or `mean`.
      record_ids: add the record ids to the element.
    """

    order: Order
    images: tf.Tensor
    labels: tf.Tensor
    statistics: ImageStatistics
    recipe: Recipe
    weights: str
    record_ids: bool

    def element_maker(self, replica_rows: list[tuple[int, int]]) -> Callable[[tuple, tf.Tensor], tuple]:
        """Returns the function of ((epoch, records by position), number) that makes one element.

        Element `number` of an epoch is step `number // L` for local replica `number % L` of the L whose rows of the
        global batch are given.
        """
        taken = tf.function(lambda *arguments: self._taken(replica_rows, *arguments), jit_compile=True)
        distorted = self._distortion()

        def element(epoch_order: tuple[tf.Tensor, tf.Tensor], number: tf.Tensor) -> tuple:
            records, keys, weights = taken(*epoch_order, number)
            # Outside XLA, whose gather of bytes goes byte by byte: TensorFlow's copies whole images.
            images, labels = tf.gather(self.images, records), tf.gather(self.labels, records)
            batch = distorted(images, keys), labels, weights
            return (*batch, records) if self.record_ids else batch

        return element

    def _taken(
        self, replica_rows: list[tuple[int, int]], epoch: tf.Tensor, by_position: tf.Tensor, number: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what an element takes: record ids int64, distortion keys uint64 and weights float32, all (rows,)."""
        step = number // len(replica_rows)
        positions, real = order_tf.positions(self.order, step, _rows(replica_rows, number % len(replica_rows)))
        records = tf.gather(by_position, positions)
        return (
            records,
            hashing_tf.derive_key(Domain.DISTORT, self.order.seed, epoch, records),
            self._weights(real, step),
        )

    def _distortion(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        return tf.function(self._distorted, jit_compile=True) if self.recipe.compiled else self._distorted

    def _distorted(self, images: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        if self.order.training:
            return self.recipe.distort(images, keys, self.statistics)
        return self.recipe.evaluate(images, keys, self.statistics)

    def _weights(self, real: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        mask = tf.cast(real, tf.float32)
        if self.weights == "mask":
            return mask
        size = self.order.global_batch_size
        real_rows = tf.minimum(self.order.num_records - step * size, size)  # in the global batch of this step
        return mask * (size / tf.cast(real_rows, tf.float32))


def _rows(replica_rows: list[tuple[int, int]], local_replica: tf.Tensor) -> tf.Tensor:
    """Returns the rows of the global batch of one local replica, int64 (rows of a replica,)."""
    first = tf.gather(tf.constant([start for start, _ in replica_rows], tf.int64), local_replica)
    return first + tf.range(replica_rows[0][1] - replica_rows[0][0], dtype=tf.int64)
