"""What a window reads, and which of its rows each step takes."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class WindowPlan(NamedTuple):
    """What one window needs and gives. n rows are read (1 if none); a row of the tail is named by -1 - its number.

    Attributes:
      epoch: int64 scalar.
      pieces: int64 (p, 3): segment, first record and end of what is read, in this order.
      records: int64 (n,): the record ids of the rows that are read.
      take: int64 (elements, rows): for each element of this window, its rows.
      real: bool (elements, rows): which are no padding.
      real_rows: float32 (elements,): rows of each element's global batch that are no padding.
      keep: int64 (m,): the rows of this window and its tail that are the next window's tail; m >= 1.
      place: int64 (n,): the row at which each record that is read is put.
      whole: int64 (2,): from the first of these elements to before the second, each has its rows side by side in the
        window, which begins with them.
    """

    epoch: tf.Tensor
    pieces: tf.Tensor
    records: tf.Tensor
    take: tf.Tensor
    real: tf.Tensor
    real_rows: tf.Tensor
    keep: tf.Tensor
    place: tf.Tensor
    whole: tf.Tensor

    @property
    def num_elements(self) -> tf.Tensor:
        """Elements of the window, int64 scalar."""
        return tf.shape(self.take, tf.int64)[0]

    def side_by_side(self) -> WindowPlan:
        """Returns the plan that puts the rows of whole elements side by side, so that nothing has to be gathered."""
        first, stop = self._whole()
        taken = tf.reshape(self.take[first:stop], [-1])
        count = tf.size(taken, tf.int64)
        place = tf.fill([tf.size(self.records)], tf.constant(-1, tf.int64))
        place = tf.tensor_scatter_nd_update(place, taken[:, None], tf.range(count))
        rest = place < 0  # rows of a step that another window completes, of a padded one, or of other replicas
        place = tf.where(rest, count + tf.cumsum(tf.cast(rest, tf.int64)) - 1, place)

        def placed(rows: tf.Tensor) -> tf.Tensor:
            return tf.where(rows >= 0, tf.gather(place, tf.maximum(rows, 0)), rows)

        return self._replace(
            records=tf.scatter_nd(place[:, None], self.records, tf.shape(self.records, tf.int64)),
            take=placed(self.take),
            keep=placed(self.keep),
            place=place,
            whole=tf.stack([first, stop]),
        )

    def _whole(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the bounds of the elements without a row of the tail, as the first ones have, or of padding."""
        numbers = tf.range(self.num_elements)
        has_tail, is_padded = tf.reduce_any(self.take < 0, axis=1), ~tf.reduce_all(self.real, axis=1)
        first = tf.maximum(tf.reduce_max(tf.where(has_tail, numbers + 1, 0)), 0)
        stop = tf.minimum(tf.reduce_min(tf.where(is_padded, numbers, self.num_elements)), self.num_elements)
        return first, tf.maximum(first, stop)
