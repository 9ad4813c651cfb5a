"""Plans the part of an order that one input pipeline feeds: its rows of every global batch, and the windows to read.

The plan is only defined here. `input_fn` and `pipeline.audit` evaluate it with NumPy; datasets that run in other
processes evaluate it with tensors (`arrays`).

A worker reads its streams window by window, all of them with the same window number w. A step whose rows begin in
window w and end in w + 1 belongs to w + 1; its rows of window w are kept as the *tail*. Neither is ever empty: a window
without records, and every tail, has an extra row that no step takes.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from pipeline.order.arrays import Array, Arrays, Number, consecutive
from pipeline.order.hashing import Domain
from pipeline.order.order import MAX_STEP, Order
from pipeline.order.sharding import Shard
from pipeline.order.views import EpochPositions, is_skipped


class LaidShards(NamedTuple):
    """The shards (or their selected parts, segments) in the order of an epoch, int64 (S,) each.

    Attributes:
      arrays: operations that evaluate it.
      segments: segment numbers in the selection.
      first_records: id of the first record of each segment.
      ends: position after the last record of each segment.
      counts: number of positions of each segment: its records, or with a view the sum of their occurrences.
      first_stored: first of these positions in stored order; without a view, `first_records`.
      epoch: positions of a view; None if each record has one.
    """

    arrays: Arrays
    segments: Array
    first_records: Array
    ends: Array
    counts: Array
    first_stored: Array
    epoch: EpochPositions | None

    @classmethod
    def of(cls, order: Order, epoch: Number, arrays: Arrays, ends: Array | None = None) -> LaidShards:
        """Returns the shards of an epoch, permuted by (seed, epoch) when training.

        Args:
          order: order of the selection.
          epoch: number of the epoch.
          arrays: operations that evaluate it.
          ends: ends of a view in this epoch (`Arrays.ends`); None to compute them here.
        """
        counts = order.count_array
        firsts, positions = np.cumsum(counts) - counts, None
        stored = firsts
        if order.times is not None:
            ends = arrays.ends(order.times, epoch) if ends is None else ends
            positions = EpochPositions(arrays, order.times, ends)
            bounds = positions.before(order.times.counts(np.append(firsts, order.num_stored)))
            stored, counts = bounds[:-1], bounds[1:] - bounds[:-1]
        segments, num_segments = arrays.range(len(order.counts)), np.array([len(order.counts)])
        if order.training:
            segments = arrays.permutations(arrays.key(Domain.SHARDS, order.seed, epoch)[None], num_segments)
        laid, firsts = arrays.gather(counts, segments), arrays.gather(firsts, segments)
        first_stored = firsts if positions is None else arrays.gather(stored, segments)
        return cls(arrays, segments, firsts, arrays.sums_before(laid) + laid, laid, first_stored, positions)

    def between(self, begin: Array, end: Array) -> tuple[Array, Array, Array]:
        """Returns the records at positions begin[i]..end[i]-1, interval by interval.

        Returns:
          Fields of `pipeline.order.views.Located`.
        """
        arrays, gather = self.arrays, self.arrays.gather
        begins = self.ends - self.counts
        low = arrays.searchsorted(self.ends, begin, "right")
        high = arrays.searchsorted(begins, end, "left")
        count = arrays.maximum(high - low, 0)
        at, interval = consecutive(arrays, low, count), arrays.repeat(arrays.range(arrays.size(count)), count)
        first = gather(begins, at)
        start = arrays.maximum(gather(begin, interval), first) - first
        stop = arrays.minimum(gather(end, interval), gather(self.ends, at)) - first
        pieces = arrays.stack([gather(self.segments, at), start, stop])
        exists = start < stop
        pieces, at = arrays.select(pieces, exists), arrays.select(at, exists)
        if self.epoch is not None:
            begin, end = (gather(self.first_stored, at) + pieces[:, column] for column in (1, 2))
            return self.epoch.located(pieces[:, 0], gather(self.first_records, at), begin, end)
        records = consecutive(arrays, gather(self.first_records, at) + pieces[:, 1], pieces[:, 2] - pieces[:, 1])
        return pieces, records, arrays.range(0)


class WindowPlan(NamedTuple):
    """The records that a window reads, and the elements that it feeds. Arrays are int64 unless stated otherwise.

    The records are read into n >= 1 rows. Rows of the *tail*, left by the previous window, are numbered -1, -2, ...

    Attributes:
      epoch: number of the epoch, scalar.
      pieces: segment, first record and end of each piece to read, in order; (p, 3).
      times: number of rows that each record read fills, (records read,); empty if each fills one.
      records: record id in each row, (n,); for a view's copies, plus a multiple of the selection's size.
      slots: row of each record in reading order, with its copies following; (n,).
      num_elements: number of elements that this window completes, one per step and replica; scalar.
      take: rows of each element, (elements, rows of a replica).
      real: mask of rows that are not padding, bool (elements, rows of a replica).
      real_rows: number of rows of each element's global batch that are not padding, (elements,).
      next_tail: rows of this window and its tail that elements of the next window need, (m,) with m >= 1.
      contiguous: first and end of the elements whose rows follow one another at the beginning of the window; (2,).
    """

    epoch: Number
    pieces: Array
    times: Array
    records: Array
    slots: Array
    num_elements: Number
    take: Array
    real: Array
    real_rows: Array
    next_tail: Array
    contiguous: Array

    def with_contiguous_elements(self, arrays: Arrays) -> WindowPlan:
        """Returns a plan in which the rows of most elements are contiguous, so that they need not be gathered."""
        first, stop = self._complete_elements(arrays)
        taken = arrays.reshape(self.take[first:stop], [-1])
        count = (stop - first) * self.take.shape[1]
        slots = arrays.put(arrays.where(self.slots >= 0, -1, 0), taken, arrays.range(count))
        # Other rows follow: those of a step that another window completes, a padded step, or other replicas.
        is_other = arrays.where(slots < 0, 1, 0)
        slots = arrays.where(slots < 0, count + arrays.sums_before(is_other), slots)

        def moved(rows: Array) -> Array:
            return arrays.where(rows >= 0, arrays.gather(slots, arrays.maximum(rows, 0)), rows)

        return self._replace(
            records=arrays.put(self.records, slots, self.records),
            slots=slots,
            take=moved(self.take),
            next_tail=moved(self.next_tail),
            contiguous=arrays.concat([first[None], stop[None]]),
        )

    def _complete_elements(self, arrays: Arrays) -> tuple[Number, Number]:
        """Returns the bounds of the elements without padding and, unlike the first ones, without rows of the tail."""
        numbers = arrays.range(self.num_elements)
        lies_here = arrays.all_of_row(self.take >= 0)
        first = arrays.most(arrays.where(lies_here, 0, numbers + 1), 0)
        stop = arrays.least(arrays.where(arrays.all_of_row(self.real), self.num_elements, numbers), self.num_elements)
        return first, arrays.maximum(first, stop)


def make_feed(order: Order, shard: Shard | None, arrays: Arrays) -> Feed:
    """Returns the feed of a shard; None for the whole global batch as one replica.

    Raises:
      UsageError: the replicas do not divide the global batch.
    """
    if shard is None:
        return Feed(order, arrays, 0, 1, order.global_batch_size)
    first, _ = shard.replica_rows(0, order.global_batch_size)
    return Feed(order, arrays, first, shard.local_replicas, order.global_batch_size // shard.num_replicas)


@dataclasses.dataclass(frozen=True)
class Feed:
    """The part of an order that one input pipeline feeds.

    Attributes:
      order: order to feed.
      arrays: operations that evaluate it; numbers and arrays below are of its kind, int64.
      first_row: first row of every global batch to feed; may be an int64 scalar tensor.
      local_replicas: L, number of replicas; each gets the next `replica_rows` rows.
      replica_rows: number of rows per replica.
    """

    order: Order
    arrays: Arrays
    first_row: Number
    local_replicas: int
    replica_rows: int

    @property
    def rows(self) -> int:
        """Number of rows of every global batch that are fed."""
        return self.local_replicas * self.replica_rows

    @property
    def streams(self) -> range:
        """The streams that fill these rows; `first_row` must be an int."""
        return range(*self._stream_range())

    def _stream_range(self) -> tuple[Number, Number]:
        """Returns the first stream and the one after the last, with the type of `first_row`."""
        width = self.order.rows_per_stream
        return self.first_row // width, -(-(self.first_row + self.rows) // width)

    def _stream_numbers(self) -> Array:
        first, stop = self._stream_range()
        return self.arrays.range(stop - first) + first

    def _stream_bounds(self) -> tuple[Array, Array]:
        """Returns the first position and the length of each stream, (streams,) each."""
        numbers, bounds = self._stream_numbers(), self.order.stream_bounds()
        starts = self.arrays.gather(bounds, numbers)
        return starts, self.arrays.gather(bounds, numbers + 1) - starts

    def window_bounds(self, window: Array) -> tuple[Array, Array]:
        """Returns the first position and the end of a window in each stream; `window` (0..W-1) broadcasts."""
        starts, lengths = self._stream_bounds()
        count = self.order.windows
        return starts + window * lengths // count, starts + (window + 1) * lengths // count

    @property
    def window_records(self) -> int:
        """Upper bound on the number of records in a window, over all streams."""
        _, lengths = self._stream_bounds()
        return int(self.arrays.total(self.arrays.maximum(-(-lengths // self.order.windows), 1)))

    def steps_before(self, window: Number) -> Number:
        """Returns the number of steps of an epoch that are complete before a window (0..W); T for W."""
        _, lengths = self._stream_bounds()
        read = self.arrays.least(window * lengths // self.order.windows, self.order.num_records)
        steps = self.arrays.minimum(read // self.order.rows_per_stream, self.order.steps_per_epoch)
        return self.arrays.where(window == self.order.windows, self.order.steps_per_epoch, steps)

    def first_window(self, step_of_epoch: int) -> Number:
        """Returns the window in which the rows of a step begin."""
        _, lengths = self._stream_bounds()
        windows, maximum = self.order.windows, self.arrays.maximum
        at = self.arrays.minimum(maximum(lengths - 1, 0), step_of_epoch * self.order.rows_per_stream)
        # Window w begins at floor(wL / W): position p is in the last w with wL < (p + 1)W.
        return self.arrays.least(-(-(at + 1) * windows // maximum(lengths, 1)) - 1, windows)

    def window_numbers(self, first_step: int, last_step: int) -> tuple[Number, int]:
        """Returns the first window that a run reads and the one after the last, counted across epochs.

        Args:
          first_step: global step at which the run begins.
          last_step: global step before which it ends; MAX_STEP for never.
        """
        epoch, step = divmod(first_step, self.order.steps_per_epoch)
        epochs = -(-last_step // self.order.steps_per_epoch)
        return epoch * self.order.windows + self.first_window(step), min(epochs * self.order.windows, MAX_STEP)

    def epoch_and_window(self, number: Number) -> tuple[Number, Number]:
        """Returns the epoch of a window, whose number counts across epochs, and its number in that epoch."""
        return number // self.order.windows, number % self.order.windows

    def first_element(self, first_step: int, epoch: Number, window: Number) -> Number:
        """Returns the number of a window's first element that a run feeds; earlier ones belong to earlier steps."""
        first_epoch, step = divmod(first_step, self.order.steps_per_epoch)
        skipped = self.arrays.maximum(step - self.steps_before(window), 0) * self.local_replicas
        return self.arrays.where(epoch == first_epoch, skipped, 0)

    def plan(self, epoch: Number, window: Number, ends: Array | None = None) -> WindowPlan:
        """Returns the plan of a window, 0..W-1; for `ends` see `LaidShards.of`."""
        arrays, order = self.arrays, self.order
        first, stop = self.steps_before(window), self.steps_before(window + 1)
        laid = LaidShards.of(order, epoch, arrays, ends)
        pieces, records, times, rows = self._read(laid, epoch, window, first)
        steps = arrays.range(stop - first) + first
        take, real = self._rows_of_steps(rows, steps)
        real_rows = arrays.minimum(order.num_records - steps * order.global_batch_size, order.global_batch_size)
        if order.skip_steps:
            is_trained = ~is_skipped(epoch * order.steps_per_epoch + steps, order.skip_steps, arrays)
            real, real_rows = real & is_trained[:, None], arrays.where(is_trained, real_rows, 0)
        zero = arrays.range(1)
        return WindowPlan(
            epoch=epoch,
            pieces=pieces,
            times=times,
            records=records,
            slots=arrays.range(arrays.size(records)),
            num_elements=(stop - first) * self.local_replicas,
            take=arrays.reshape(take, [-1, self.replica_rows]),
            real=arrays.reshape(real, [-1, self.replica_rows]),
            real_rows=arrays.repeat(real_rows, self.local_replicas),
            next_tail=self._next_tail(rows, stop),
            contiguous=arrays.concat([zero, zero]),
        )

    def _read(
        self, laid: LaidShards, epoch: Number, window: Number, first_step: Number
    ) -> tuple[Array, Array, Array, _WindowRows]:
        """Returns the pieces, records and times of a window, and the rows of its positions."""
        arrays = self.arrays
        starts, lengths = self._stream_bounds()
        begin, end = self.window_bounds(window)
        # In its last window, a stream without positions reads the record that its padding copies.
        end += arrays.where((window == self.order.windows - 1) & (lengths == 0), 1, 0)
        pieces, records, times = laid.between(begin, end)
        tail_begin = starts + first_step * self.order.rows_per_stream
        rows = _WindowRows(begin, end - begin, self._permuted(epoch, window, end - begin), tail_begin)
        unused = arrays.range(arrays.maximum(1 - arrays.total(end - begin), 0))
        return pieces, arrays.concat([records, unused]), times, rows

    def _permuted(self, epoch: Number, window: Number, sizes: Array) -> Array:
        """Returns the row of each position of the window, stream by stream, and a zero at the end; (n + 1,)."""
        arrays = self.arrays
        if self.order.training:
            keys = arrays.key(Domain.WINDOW, self.order.seed, epoch, self._stream_numbers(), window)
            rows = arrays.permutations(keys, sizes) + arrays.repeat(arrays.sums_before(sizes), sizes)
        else:
            rows = arrays.range(arrays.total(sizes))
        return arrays.concat([rows, arrays.range(1)])

    def _rows_of_steps(self, rows: _WindowRows, steps: Array) -> tuple[Array, Array]:
        """Returns the rows, of the window or its tail, to feed at steps (s,), and a mask of real ones: (s, rows)."""
        fed = self.arrays.range(self.rows) + self.first_row
        width = self.order.rows_per_stream
        streams = fed // width - self._stream_range()[0]
        positions, real = self._positions(streams, steps[:, None] * width + fed % width)
        return rows.at(self.arrays, positions, streams), real

    def _positions(self, streams: Array, offsets: Array) -> tuple[Array, Array]:
        """Returns the positions of offsets in streams, and a mask of real ones; padding copies a stream's last window.

        Args:
          streams: local numbers, (n,).
          offsets: offsets from the stream's first position, (s, n).
        """
        arrays, windows = self.arrays, self.order.windows
        starts, lengths = (arrays.gather(bounds, streams) for bounds in self._stream_bounds())
        real = offsets < lengths
        last_window = arrays.maximum(lengths - (windows - 1) * lengths // windows, 1)
        padding = arrays.maximum(lengths - 1 - (offsets - lengths) % last_window, 0)
        return starts + arrays.where(real, offsets, padding), real

    def _next_tail(self, rows: _WindowRows, stop: Number) -> Array:
        """Returns the rows of positions that are read but belong to steps from `stop` on, plus an unused row."""
        arrays = self.arrays
        starts, _ = self._stream_bounds()
        begin = starts + stop * self.order.rows_per_stream
        sizes = arrays.maximum(rows.begin + rows.sizes - begin, 0)
        streams = arrays.repeat(arrays.range(arrays.size(sizes)), sizes)
        kept = rows.at(arrays, consecutive(arrays, begin, sizes), streams)
        return arrays.concat([kept, arrays.range(1)])


class _WindowRows(NamedTuple):
    """The rows of the positions of a window and its tail.

    Attributes:
      begin: first position of each stream's window, (streams,).
      sizes: number of positions in each, (streams,).
      row_of: row of each position, stream by stream, (n + 1,).
      tail_begin: first position of each stream's tail, which ends where the window begins; (streams,).
    """

    begin: Array
    sizes: Array
    row_of: Array
    tail_begin: Array

    def at(self, arrays: Arrays, positions: Array, streams: Array) -> Array:
        """Returns the rows of positions (..., m) in local streams (m,); rows of the tail are negative."""
        begin = arrays.gather(self.begin, streams)
        offset = positions - begin + arrays.gather(arrays.sums_before(self.sizes), streams)
        row = arrays.gather(self.row_of, arrays.where(positions >= begin, offset, 0))
        tail_sizes = arrays.maximum(self.begin - self.tail_begin, 0)
        before = arrays.gather(arrays.sums_before(tail_sizes) - self.tail_begin, streams)
        return arrays.where(positions >= begin, row, -1 - (positions + before))
