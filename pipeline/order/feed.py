"""Plans the part of an order that one input pipeline feeds: its rows of every global batch, and the windows to read.

Plans are only computed here. Datasets that run where NumPy cannot be called hold the plans as data in their graph.

A worker reads its streams window by window, all of them with the same window number w. A step whose rows begin in
window w and end in w + 1 belongs to w + 1; its rows of window w are kept as the *tail*. Neither is ever empty: windows
without records, and all tails, have an extra row that no step takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.order.hashing import SHORT, Domain, derive_key, permutation, short_permutations
from pipeline.order.order import I64, MAX_STEP, Order
from pipeline.order.sharding import Shard
from pipeline.order.views import EpochPositions, Located, consecutive, is_skipped

Bools = NDArray[np.bool_]
Permutation = Callable[[int, int], I64]  # function of a key and a size, like `hashing.permutation`


class LaidShards(NamedTuple):
    """The shards (or their selected parts, segments) in the order of an epoch, int64 (S,) each.

    Attributes:
      segments: segment numbers in the selection.
      first_records: id of the first record of each segment.
      ends: position after the last record of each segment.
      counts: number of positions of each segment: its records, or with a view the sum of their occurrences.
      first_stored: first of these positions in stored order; without a view, `first_records`.
      epoch: positions of a view; None if each record has one.
    """

    segments: I64
    first_records: I64
    ends: I64
    counts: I64
    first_stored: I64
    epoch: EpochPositions | None

    @classmethod
    def of(cls, order: Order, epoch: int) -> LaidShards:
        """Returns the shards of an epoch, permuted by (seed, epoch) when training."""
        counts = order.count_array
        firsts, positions = np.cumsum(counts) - counts, None
        stored = firsts
        if order.times is not None:
            positions = EpochPositions(order.times, order.times.ends(epoch))
            bounds = positions.before(order.times.counts(np.append(firsts, order.num_stored)))
            stored, counts = bounds[:-1], np.diff(bounds)
        segments = np.arange(len(order.counts))
        if order.training:
            segments = permutation(derive_key(Domain.SHARDS, order.seed, epoch), len(order.counts))
        laid = counts[segments]
        return cls(segments, firsts[segments], np.cumsum(laid), laid, stored[segments], positions)

    def between(self, begin: I64, end: I64) -> Located:
        """Returns the records at positions begin[i]..end[i]-1, interval by interval."""
        begins = self.ends - self.counts
        low = np.searchsorted(self.ends, begin, "right")
        high = np.searchsorted(begins, end, "left")
        count = np.maximum(high - low, 0)
        at, interval = consecutive(low, count), np.repeat(np.arange(len(count)), count)
        first = begins[at]
        start = np.maximum(begin[interval], first) - first
        stop = np.minimum(end[interval], self.ends[at]) - first
        exists = start < stop
        pieces, at = np.stack([self.segments[at], start, stop], axis=1)[exists], at[exists]
        if self.epoch is not None:
            begin, end = (self.first_stored[at] + pieces[:, column] for column in (1, 2))
            return self.epoch.located(pieces[:, 0], self.first_records[at], begin, end)
        records = consecutive(self.first_records[at] + pieces[:, 1], pieces[:, 2] - pieces[:, 1])
        return Located(pieces, records, np.arange(0))


class WindowPlan(NamedTuple):
    """The records that a window reads, and the elements that it feeds. Arrays are int64 unless stated otherwise.

    The records are read into n >= 1 rows. Rows of the *tail*, left by the previous window, are numbered -1, -2, ...

    Attributes:
      epoch: number of the epoch.
      pieces: segment, first record and end of each piece to read, in order; (p, 3).
      times: number of rows that each record read fills, (records read,); empty if each fills one.
      records: record id in each row, (n,); for a view's copies, plus a multiple of the selection's size.
      slots: row of each record in reading order, with its copies following; (n,).
      num_elements: number of elements that this window completes, one per step and replica.
      take: rows of each element, (elements, rows of a replica).
      real: mask of rows that are not padding, bool (elements, rows of a replica).
      real_rows: number of rows of each element's global batch that are not padding, (elements,).
      next_tail: rows of this window and its tail that elements of the next window need, (m,) with m >= 1.
      contiguous: first and end of the elements whose rows follow one another at the beginning of the window; (2,).
    """

    epoch: int
    pieces: I64
    times: I64
    records: I64
    slots: I64
    num_elements: int
    take: I64
    real: Bools
    real_rows: I64
    next_tail: I64
    contiguous: I64

    def with_contiguous_elements(self) -> WindowPlan:
        """Returns a plan in which the rows of most elements are contiguous, so that they need not be gathered."""
        # From the first element after the last with rows of the tail, up to the first with padding.
        of_tail = np.flatnonzero((self.take < 0).any(axis=1))
        padded = np.append(np.flatnonzero((~self.real).any(axis=1)), self.num_elements)
        first = int(of_tail.max(initial=-1)) + 1
        stop = max(first, int(padded[0]))
        taken = self.take[first:stop].reshape(-1)
        slots = np.full(len(self.slots), -1)
        slots[taken] = np.arange(len(taken))
        # Other rows follow: rows of a step that another window completes, of a padded step, or of other replicas.
        is_other = slots < 0
        slots[is_other] = len(taken) + np.arange(np.count_nonzero(is_other))
        records = np.empty_like(self.records)
        records[slots] = self.records

        def moved(rows: I64) -> I64:
            return np.where(rows >= 0, slots[np.maximum(rows, 0)], rows)

        return self._replace(
            records=records,
            slots=slots,
            take=moved(self.take),
            next_tail=moved(self.next_tail),
            contiguous=np.array([first, stop]),
        )


def make_feed(order: Order, shard: Shard | None, permute: Permutation = permutation) -> Feed:
    """Returns the feed of a shard; None for the whole global batch as one replica. For `permute` see `Feed`.

    Raises:
      UsageError: the replicas do not divide the global batch.
    """
    if shard is None:
        return Feed(order, 0, 1, order.global_batch_size, permute)
    first, _ = shard.replica_rows(0, order.global_batch_size)
    return Feed(order, first, shard.local_replicas, order.global_batch_size // shard.num_replicas, permute)


@dataclasses.dataclass(frozen=True)
class Feed:
    """The part of an order that one input pipeline feeds.

    Attributes:
      order: order to feed.
      first_row: first row of every global batch to feed.
      local_replicas: L, number of replicas; each gets the next `replica_rows` rows.
      replica_rows: number of rows per replica.
      permute: `hashing.permutation`, or a function that keeps its results for plans that need them again.
    """

    order: Order
    first_row: int
    local_replicas: int
    replica_rows: int
    permute: Permutation = permutation

    @property
    def rows(self) -> int:
        """Number of rows of every global batch that are fed."""
        return self.local_replicas * self.replica_rows

    @property
    def streams(self) -> range:
        """Streams that fill these rows."""
        width = self.order.rows_per_stream
        return range(self.first_row // width, -(-(self.first_row + self.rows) // width))

    def _stream_bounds(self) -> tuple[I64, I64]:
        """Returns the first position and the length of each stream, (streams,) each."""
        bounds = self.order.stream_bounds()[self.streams.start : self.streams.stop + 1]
        return bounds[:-1], np.diff(bounds)

    def window_bounds(self, window: ArrayLike) -> tuple[I64, I64]:
        """Returns the first position and the end of a window in each stream; `window` (0..W-1) broadcasts."""
        starts, lengths = self._stream_bounds()
        number, count = np.asarray(window), self.order.windows
        return starts + number * lengths // count, starts + (number + 1) * lengths // count

    @property
    def window_records(self) -> int:
        """Upper bound on the number of records in a window, over all streams."""
        _, lengths = self._stream_bounds()
        return int(np.maximum(-(-lengths // self.order.windows), 1).sum())

    def steps_before(self, window: int) -> int:
        """Returns the number of steps of an epoch that are complete before a window (0..W); T for W."""
        if window == self.order.windows:
            return self.order.steps_per_epoch
        _, lengths = self._stream_bounds()
        read = int((window * lengths // self.order.windows).min())
        return min(read // self.order.rows_per_stream, self.order.steps_per_epoch)

    def first_window(self, step_of_epoch: int) -> int:
        """Returns the window in which the rows of a step begin."""
        _, lengths = self._stream_bounds()
        at = np.minimum(np.maximum(lengths - 1, 0), step_of_epoch * self.order.rows_per_stream)
        # Window w begins at floor(wL / W): position p is in the last w with wL < (p + 1)W.
        return int((-(-(at + 1) * self.order.windows // np.maximum(lengths, 1)) - 1).min())

    def window_numbers(self, first_step: int, last_step: int) -> tuple[int, int]:
        """Returns the first window that a run reads and the one after the last, counted across epochs.

        The run ends before the global step `last_step`; MAX_STEP for never.
        """
        epoch, step = divmod(first_step, self.order.steps_per_epoch)
        epochs = -(-last_step // self.order.steps_per_epoch)
        return epoch * self.order.windows + self.first_window(step), min(epochs * self.order.windows, MAX_STEP)

    def epoch_and_window(self, number: int) -> tuple[int, int]:
        """Returns the epoch of a window, whose number counts across epochs, and its number in that epoch."""
        return divmod(number, self.order.windows)

    def first_element(self, first_step: int, epoch: int, window: int) -> int:
        """Returns the number of a window's first element that a run feeds; earlier ones belong to earlier steps."""
        first_epoch, step = divmod(first_step, self.order.steps_per_epoch)
        return max(step - self.steps_before(window), 0) * self.local_replicas if epoch == first_epoch else 0

    def plan(self, epoch: int, window: int) -> WindowPlan:
        """Returns the plan of a window, 0..W-1."""
        order = self.order
        first, stop = self.steps_before(window), self.steps_before(window + 1)
        pieces, records, times, rows = self._read(epoch, window, first)
        steps = np.arange(first, stop)
        take, real = self._rows_of_steps(rows, steps)
        real_rows = np.minimum(order.num_records - steps * order.global_batch_size, order.global_batch_size)
        if order.skip_steps:
            is_trained = ~is_skipped(epoch * order.steps_per_epoch + steps, order.skip_steps)
            real, real_rows = real & is_trained[:, None], np.where(is_trained, real_rows, 0)
        return WindowPlan(
            epoch=epoch,
            pieces=pieces,
            times=times,
            records=records,
            slots=np.arange(len(records)),
            num_elements=(stop - first) * self.local_replicas,
            take=take.reshape(-1, self.replica_rows),
            real=real.reshape(-1, self.replica_rows),
            real_rows=np.repeat(real_rows, self.local_replicas),
            next_tail=self._next_tail(rows, stop),
            contiguous=np.zeros(2, np.int64),
        )

    def _read(self, epoch: int, window: int, first_step: int) -> tuple[I64, I64, I64, _WindowRows]:
        """Returns the pieces, records and times of a window, and the rows of its positions."""
        starts, lengths = self._stream_bounds()
        begin, end = self.window_bounds(window)
        if window == self.order.windows - 1:  # a stream without positions reads the record that its padding copies
            end = end + (lengths == 0)
        pieces, records, times = LaidShards.of(self.order, epoch).between(begin, end)
        tail_begin = starts + first_step * self.order.rows_per_stream
        rows = _WindowRows(begin, end - begin, self._permuted(epoch, window, end - begin), tail_begin)
        return pieces, records if len(records) else np.zeros(1, np.int64), times, rows

    def _permuted(self, epoch: int, window: int, sizes: I64) -> I64:
        """Returns the row of each position of the window, stream by stream, and a zero at the end; (n + 1,)."""
        if not self.order.training:
            return np.append(np.arange(sizes.sum()), 0)
        keys = derive_key(Domain.WINDOW, self.order.seed, epoch, np.array(self.streams), window)
        if sizes.max() <= SHORT:
            each = short_permutations(keys, sizes)
        else:
            each = np.concatenate([self.permute(*one) for one in zip(keys.tolist(), sizes.tolist(), strict=True)])
        return np.append(each + np.repeat(np.cumsum(sizes) - sizes, sizes), 0)

    def _rows_of_steps(self, rows: _WindowRows, steps: I64) -> tuple[I64, Bools]:
        """Returns the rows, of the window or its tail, to feed at steps (s,), and a mask of real ones: (s, rows)."""
        fed = np.arange(self.first_row, self.first_row + self.rows)
        width, windows = self.order.rows_per_stream, self.order.windows
        streams = fed // width - self.streams.start
        starts, lengths = (bounds[streams] for bounds in self._stream_bounds())
        offsets = steps[:, None] * width + fed % width  # from the first position of a row's stream
        real = offsets < lengths
        # Padding copies a stream's last window.
        last_window = np.maximum(lengths - (windows - 1) * lengths // windows, 1)
        padding = np.maximum(lengths - 1 - (offsets - lengths) % last_window, 0)
        return rows.at(starts + np.where(real, offsets, padding), streams), real

    def _next_tail(self, rows: _WindowRows, stop: int) -> I64:
        """Returns the rows of positions that are read but belong to steps from `stop` on, plus an unused row."""
        starts, _ = self._stream_bounds()
        begin = starts + stop * self.order.rows_per_stream
        sizes = np.maximum(rows.begin + rows.sizes - begin, 0)
        streams = np.repeat(np.arange(len(sizes)), sizes)
        return np.append(rows.at(consecutive(begin, sizes), streams), 0)


class _WindowRows(NamedTuple):
    """The rows of the positions of a window and its tail.

    Attributes:
      begin: first position of each stream's window, (streams,).
      sizes: number of positions in each, (streams,).
      row_of: row of each position, stream by stream, (n + 1,).
      tail_begin: first position of each stream's tail, which ends where the window begins; (streams,).
    """

    begin: I64
    sizes: I64
    row_of: I64
    tail_begin: I64

    def at(self, positions: I64, streams: I64) -> I64:
        """Returns the rows of positions (..., m) in local streams (m,); rows of the tail are negative."""
        begin = self.begin[streams]
        is_here = positions >= begin
        offset = positions - begin + (np.cumsum(self.sizes) - self.sizes)[streams]
        tail_sizes = np.maximum(self.begin - self.tail_begin, 0)
        before = (np.cumsum(tail_sizes) - tail_sizes - self.tail_begin)[streams]
        return np.where(is_here, self.row_of[np.where(is_here, offset, 0)], -1 - (positions + before))
