"""`pipeline.order.order` for tensors: what a window reads and which of its rows each step takes, while the data is fed.

A worker reads its streams window by window, all of them at the same window number w. A step whose rows begin in
window w and end in w + 1 belongs to w + 1; its rows of window w are kept as the *tail*. Neither is ever empty: a window
without a record, and every tail, has one row more, which no step takes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.order import hashing_tf
from pipeline.order.hashing import Domain
from pipeline.order.order import Order
from pipeline.order.window_plan import WindowPlan


@dataclasses.dataclass(frozen=True)
class Feed:
    """The part of an order that one input pipeline feeds.

    Attributes:
      order: the order.
      first_row: of the rows of every global batch that it feeds; inside a `tf.function` also an int64 scalar tensor.
      local_replicas: L; each gets the next `replica_rows` of them.
      replica_rows: rows of a replica.
    """

    order: Order
    first_row: int | tf.Tensor
    local_replicas: int
    replica_rows: int

    @property
    def rows(self) -> int:
        """Rows of every global batch that are fed."""
        return self.local_replicas * self.replica_rows

    @property
    def streams(self) -> range:
        """The streams that fill them, where `first_row` is an int."""
        return range(*self._stream_range())

    def _stream_range(self) -> tuple[Any, Any]:
        """Returns the first of the streams and the one after the last, of the type of `first_row`."""
        width = self.order.rows_per_stream
        return self.first_row // width, -(-(self.first_row + self.rows) // width)

    def _bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns where the streams begin and their lengths, int64 (streams,) each."""
        first, stop = self._stream_range()
        bounds = tf.constant(self.order.stream_bounds())[first : stop + 1]
        return bounds[:-1], bounds[1:] - bounds[:-1]

    def steps_before(self, window: tf.Tensor) -> tf.Tensor:
        """Returns the steps of an epoch that are complete before a window (0..W), int64 scalar; T at the end."""
        _, lengths = self._bounds()
        read = tf.reduce_min(window * lengths // self.order.windows)
        steps = tf.minimum(read // self.order.rows_per_stream, self.order.steps_per_epoch)
        return tf.where(window == self.order.windows, tf.constant(self.order.steps_per_epoch, tf.int64), steps)

    def first_window(self, step_of_epoch: int) -> tf.Tensor:
        """Returns the window in which the rows of a step begin, int64 scalar."""
        _, lengths = self._bounds()
        at = tf.minimum(tf.maximum(lengths - 1, 0), step_of_epoch * self.order.rows_per_stream)
        # Window w begins at floor(wL / W): position p is in the last w of which wL < (p + 1)W.
        return tf.reduce_min(-(-(at + 1) * self.order.windows // tf.maximum(lengths, 1)) - 1)

    @property
    def window_records(self) -> int:
        """Records of the largest window, over all streams, at most."""
        return int(tf.reduce_sum(tf.maximum(-(-self._bounds()[1] // self.order.windows), 1)))

    def rows_of(self, plan: WindowPlan, number: tf.Tensor) -> tf.Tensor:
        """Returns the rows of element `number` of a plan: int64 (replica_rows,)."""
        return tf.ensure_shape(plan.take[number], [self.replica_rows])

    def plan(self, epoch: tf.Tensor, window: tf.Tensor) -> WindowPlan:
        """Returns the plan of a window; `epoch` and `window` (0..W-1) are int64 scalars."""
        starts, lengths = self._bounds()
        begin = starts + window * lengths // self.order.windows
        end = starts + (window + 1) * lengths // self.order.windows
        # A stream without a position reads, in its last window, the one that its padding copies.
        end += tf.cast((window == self.order.windows - 1) & (lengths == 0), tf.int64)
        pieces, records = _Laid(self.order, epoch).read(begin, end)
        row_of = tf.concat([self._permuted(epoch, window, end - begin), _any()], axis=0)
        offsets = tf.cumsum(end - begin, exclusive=True)
        first, stop = self.steps_before(window), self.steps_before(window + 1)
        tail_begin = starts + first * self.order.rows_per_stream
        tail_sizes = tf.maximum(begin - tail_begin, 0)
        layout = _Layout(begin, offsets, row_of, tail_begin, tf.cumsum(tail_sizes, exclusive=True))
        rows = self.first_row + tf.range(self.rows, dtype=tf.int64)
        streams = rows // self.order.rows_per_stream - self._stream_range()[0]
        positions, real = _positions(self.order, tf.range(first, stop)[:, None], rows)
        take = layout.rows(positions, streams)
        shape = [-1, self.replica_rows]
        batch = self.order.num_records - tf.range(first, stop) * self.order.global_batch_size
        real_rows = tf.cast(tf.minimum(batch, self.order.global_batch_size), tf.float32)
        records = tf.cond(tf.size(records) > 0, lambda: records, _any)
        take = tf.reshape(take, shape)
        return WindowPlan(
            epoch,
            pieces,
            records,
            take,
            tf.reshape(real, shape),
            tf.repeat(real_rows, self.local_replicas),
            self._keep(layout, starts + stop * self.order.rows_per_stream, end),
            tf.range(tf.size(records, tf.int64)),
            tf.zeros([2], tf.int64),
        )

    def _permuted(self, epoch: tf.Tensor, window: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
        """Returns the row that each position of the window is read to, int64 (n,), stream after stream."""
        if not self.order.training:
            return tf.range(tf.reduce_sum(sizes))
        streams = tf.range(*self._stream_range(), dtype=tf.int64)
        keys = hashing_tf.derive_key(Domain.WINDOW, self.order.seed, epoch, streams, window)
        # The streams' windows differ by a record at most: sorted as the rows of one matrix, what is not there last.
        index = tf.range(tf.reduce_max(sizes))
        hashes = hashing_tf.permutation_hashes(keys[:, None], index[None, :])
        is_there = index[None, :] < sizes[:, None]
        rows = tf.argsort(tf.where(is_there, hashes, tf.int64.max), stable=True)
        first = tf.cumsum(sizes, exclusive=True)
        return tf.boolean_mask(tf.cast(rows, tf.int64) + first[:, None], is_there)

    def _keep(self, layout: _Layout, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        sizes = tf.maximum(end - begin, 0)
        total = tf.reduce_sum(sizes)
        streams = tf.repeat(tf.range(tf.size(sizes, tf.int64)), sizes)
        kept = layout.rows(ramp(begin, sizes, total)[None, :], streams)[0]
        return tf.concat([kept, _any()], axis=0)


class _Layout(NamedTuple):
    """Where the positions of a window lie: int64 (streams,) each, and `row_of` (n + 1,)."""

    begin: tf.Tensor
    offsets: tf.Tensor
    row_of: tf.Tensor
    tail_begin: tf.Tensor
    tail_offsets: tf.Tensor

    def rows(self, positions: tf.Tensor, streams: tf.Tensor) -> tf.Tensor:
        """Returns the rows, or -1 - the tail's rows, of positions (any, m) of local streams (m,)."""
        begin = tf.gather(self.begin, streams)
        here = positions - begin
        row = tf.gather(self.row_of, tf.where(here >= 0, here + tf.gather(self.offsets, streams), 0))
        kept = positions - tf.gather(self.tail_begin, streams) + tf.gather(self.tail_offsets, streams)
        return tf.where(here >= 0, row, -1 - kept)


class _Laid:
    """The segments of an epoch laid end to end, permuted by (seed, epoch)."""

    def __init__(self, order: Order, epoch: tf.Tensor) -> None:
        counts = np.asarray(order.counts, np.int64)
        if order.training:
            key = hashing_tf.derive_key(Domain.SHARDS, order.seed, epoch)
            self.segments = hashing_tf.permutation(key, len(counts))
        else:
            self.segments = tf.range(len(counts), dtype=tf.int64)
        self.first_record = tf.gather(tf.constant(np.cumsum(counts) - counts), self.segments)
        self.ends = tf.cumsum(tf.gather(tf.constant(counts), self.segments))
        self.begins = self.ends - tf.gather(tf.constant(counts), self.segments)

    def read(self, begin: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the pieces that hold positions begin[i]..end[i]-1 and their records, int64 (p, 3) and (n,)."""
        low = tf.searchsorted(self.ends, begin, side="right", out_type=tf.int64)
        high = tf.searchsorted(self.begins, end, side="left", out_type=tf.int64)
        count = tf.maximum(high - low, 0)
        owner = tf.repeat(tf.range(tf.size(begin)), count)
        at = ramp(low, count, tf.reduce_sum(count))
        first = tf.gather(self.begins, at)
        start = tf.maximum(tf.gather(begin, owner), first) - first
        stop = tf.minimum(tf.gather(end, owner), tf.gather(self.ends, at)) - first
        pieces = tf.boolean_mask(tf.stack([tf.gather(self.segments, at), start, stop, at], axis=1), start < stop)
        sizes = pieces[:, 2] - pieces[:, 1]
        records = ramp(tf.gather(self.first_record, pieces[:, 3]) + pieces[:, 1], sizes, tf.reduce_sum(sizes))
        return pieces[:, :3], records


def _any() -> tf.Tensor:
    """Returns a row, record or position that stands where one must, and is not used: int64 (1,)."""
    return tf.zeros([1], tf.int64)


def ramp(first: tf.Tensor, counts: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Returns first[0], first[0] + 1, ... (counts[0] of them), first[1], ...: int64 (total,)."""
    return tf.range(total) + tf.repeat(first - tf.cumsum(counts, exclusive=True), counts)


def _positions(order: Order, step: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the positions (s, n) of rows (n,) of the global batches of steps (s, 1), and which are real."""
    bounds = order.stream_bounds()
    stream, row = rows // order.rows_per_stream, rows % order.rows_per_stream
    start, length = tf.gather(tf.constant(bounds[:-1]), stream), tf.gather(tf.constant(np.diff(bounds)), stream)
    offset = step * order.rows_per_stream + row
    real = offset < length
    last_window = tf.maximum(length - (order.windows - 1) * length // order.windows, 1)
    padding = tf.maximum(length - 1 - (offset - length) % last_window, 0)
    return start + tf.where(real, offset, padding), real
