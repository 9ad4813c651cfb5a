"""Proves from bounds alone that an epoch sees each record once: shards, streams, windows and steps, as intervals.

Every claim is arithmetic on what `pipeline.order` computes, so that a wrong bound there is found here. The proof grows
with shards, windows and steps, and not with records.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import cached_property

import numpy as np

from pipeline.audit.claims import Claim, Fault, check_all, check_tiling
from pipeline.commands.text import count_of
from pipeline.order import hashing
from pipeline.order.order import I64
from pipeline.resolved import ResolvedRequest

_BLOCK = 1 << 20  # intervals that are looked at together
_MOST_ROWS = 1 << 22  # rows of steps that are looked at one by one
_MOST_PERMUTED = 1 << 23  # records of windows whose permutation is looked at
_MOST_WINDOWS = 1 << 10
_HASHES = 1 << 16  # hashes that are turned back


@dataclasses.dataclass(frozen=True)
class Proof:
    """The proof for one epoch of an ordered split."""

    source: ResolvedRequest
    epoch: int

    def claims(self) -> list[Claim]:
        """Returns the claims, in the order in which they rest on each other; the last may not hold."""
        training = self.source.order.training
        checks: list[tuple[str, Callable[[], str]]] = [
            ("the epoch lays every shard once", self._shards),
            ("every position is in one stream", self._streams),
            ("every position is in one window of its stream", self._windows),
            ("a window fits its part of shuffle_bytes", self._memory),
            ("windows are permuted, nothing more", self._permutations if training else self._identity),
            ("every position comes at one step, and steps are full", self._steps),
            ("a step's rows are its positions; padding has weight 0", self._rows),
        ]
        return check_all(checks)

    def _shards(self) -> str:
        order, segments = self.source.order, self.source.selection.segments
        counts = tuple(segment.num_examples for segment in segments)
        for i, (own, count) in enumerate(itertools.zip_longest(order.counts, counts)):
            if own != count:
                raise Fault(f"shard {i}: the order has {own} records of it, the manifest {count}")
        laid = order.shard_order(self.epoch)
        outside = laid[(laid < 0) | (laid >= len(counts))]
        if outside.size:
            raise Fault(f"shard {outside[0]} is laid, of shards 0 to {len(counts) - 1}")
        times = np.bincount(laid, minlength=len(counts))
        wrong = np.flatnonzero(times != 1)
        if wrong.size:
            i = int(wrong[0])
            which = f"shard {segments[i].shard.file}, from record {sum(counts[:i])} of the split on,"
            raise Fault(f"{which} is laid {times[i]} times")
        return f"{count_of(len(counts), 'shard')}, {order.num_records:,} records, manifest and order agree"

    def _streams(self) -> str:
        bounds, total = self._bounds, self.source.order.num_records
        if len(bounds) != self.source.order.streams + 1:
            raise Fault(f"{len(bounds)} bounds of {self.source.order.streams} streams")
        check_tiling(bounds[:-1], bounds[1:], 0, total, lambda k: f"stream {k}", self._place)
        sizes = np.diff(bounds)
        return f"{count_of(len(sizes), 'stream')} of {_range(sizes)} positions"

    def _windows(self) -> str:
        first, stop = self._window_bounds
        windows = self.source.order.windows
        # In order and without a gap, and each stream's first and last bound are the stream's: no window crosses one.
        owner = lambda i: f"window {i % windows} of stream {i // windows}"  # noqa: E731
        check_tiling(first, stop, 0, self.source.order.num_records, owner, self._place)
        wrong = np.flatnonzero(first[::windows] != self._bounds[:-1])
        if wrong.size:
            k = int(wrong[0])
            at = int(first[k * windows])
            raise Fault(f"{self._place(at)}: window 0 of stream {k} begins there, the stream at {self._bounds[k]}")
        return f"{windows:,} {'window' if windows == 1 else 'windows'} a stream, of {_range(stop - first)} records"

    def _memory(self) -> str:
        spec = self.source.spec
        first, stop = self._window_bounds
        sizes = (stop - first) * spec.record_bytes
        largest = int(sizes.argmax())
        if sizes[largest] > spec.shuffle_bytes // spec.streams:
            where = f"window {largest % self.source.order.windows} of stream {largest // self.source.order.windows}"
            raise Fault(
                f"{where}, {self._place(int(first[largest]))} to {stop[largest] - 1}: {sizes[largest]} decoded bytes, "
                f"more than {spec.shuffle_bytes} / {spec.streams}"
            )
        return f"at most {int(sizes[largest]):,} of {spec.shuffle_bytes // spec.streams:,} decoded bytes"

    def _permutations(self) -> str:
        states = np.arange(_HASHES, dtype=np.uint64) * np.uint64(hashing.GAMMA)
        wrong = np.flatnonzero(hashing.inverse_splitmix64(hashing.splitmix64(states)) != states)
        if wrong.size:
            raise Fault(f"splitmix64 of {int(states[wrong[0]])} cannot be turned back: it is no bijection")
        first, stop = self._window_bounds
        most = _MOST_PERMUTED // max(1, int((stop - first).max()))
        sample = _spread(len(first), min(most, _MOST_WINDOWS))
        for i in sample.tolist():
            stream, window = divmod(i, self.source.order.windows)
            self._check_window(stream, window, int(first[i]), int(stop[i]))
        return f"{_HASHES:,} hashes turned back, {len(sample):,} of {len(first):,} windows looked at"

    def _check_window(self, stream: int, window: int, start: int, stop: int) -> None:
        permuted = self.source.order.window_permutation(self.epoch, stream, window, stop - start)
        outside = permuted[(permuted < 0) | (permuted >= stop - start)]
        where = f"window {window} of stream {stream}"
        if len(permuted) != stop - start or outside.size:
            raise Fault(
                f"{where}: its permutation gives {len(permuted)} places, {outside[:1]} outside its {stop - start}"
            )
        wrong = np.flatnonzero(np.bincount(permuted, minlength=stop - start) != 1)
        if wrong.size:
            times = int((permuted == wrong[0]).sum())
            raise Fault(f"{self._place(start + int(wrong[0]))}: {where} gives what is laid there {times} times")

    def _identity(self) -> str:
        shards = self.source.order.shard_order(self.epoch)
        wrong = np.flatnonzero(shards != np.arange(len(shards)))
        if wrong.size:
            raise Fault(f"evaluation lays shard {shards[wrong[0]]} at place {wrong[0]}")
        return "evaluation: the stored order"

    def _steps(self) -> str:
        order, bounds = self.source.order, self._bounds
        steps, q = order.steps_per_epoch, order.rows_per_stream
        pad = order.remainder == "pad"
        reached = bounds[:-1]
        block = max(1, _BLOCK // order.streams)
        for start in range(0, steps, block):
            numbers = np.arange(start, min(start + block, steps))
            first, stop = order.spans(numbers)
            self._check_joined(np.concatenate([reached[None], stop[:-1]]), first, start)
            self._check_full(first, stop, start, len(numbers) - (pad and numbers[-1] == steps - 1))
            reached = stop[-1]
        left = np.flatnonzero(reached != bounds[1:] if pad else (reached > bounds[1:]))
        if left.size:
            k = int(left[0])
            where = self._place(int(min(reached[k], bounds[k + 1])))
            raise Fault(f"{where}: stream {k} has steps up to {reached[k]}, and ends at {bounds[k + 1]}; T = {steps}")
        return self._count(steps, q, int((reached - bounds[:-1]).sum()))

    def _count(self, steps: int, q: int, real: int) -> str:
        order = self.source.order
        total, size = order.num_records, order.global_batch_size
        dropped = total - real
        if (steps - 1) * size >= total or dropped >= size:
            where = self._place(min(steps * q, total - 1))
            raise Fault(f"{where}: T = {steps} steps of {size} rows for {total} records: {dropped} come at no step")
        rows = f"{steps:,} steps of {size:,} rows, {q:,} a stream: {real:,} real"
        return f"{rows}, {steps * size - real:,} padding" + (f", {dropped:,} records dropped" if dropped else "")

    def _check_joined(self, before: I64, first: I64, start: int) -> None:
        wrong = np.argwhere(before != first)
        if wrong.size:
            t, k = wrong[0].tolist()
            low, high = sorted((int(before[t, k]), int(first[t, k])))
            what = "come at no step" if before[t, k] < first[t, k] else "come again"
            raise Fault(
                f"{self._place(low)} to {high - 1}: {what}: stream {k} begins step {start + t} at {first[t, k]}"
            )

    def _check_full(self, first: I64, stop: I64, start: int, full: int) -> None:
        sizes, q = stop - first, self.source.order.rows_per_stream
        must_be_full = (np.arange(len(sizes)) < full)[:, None]
        wrong = np.argwhere((sizes < 0) | (sizes > q) | (must_be_full & (sizes != q)))
        if wrong.size:
            t, k = wrong[0].tolist()
            where = self._place(int(first[t, k]))
            raise Fault(f"{where}: stream {k} has {sizes[t, k]} real rows of {q} at step {start + t} of the epoch")

    def _rows(self) -> str:
        order = self.source.order
        steps = _spread(order.steps_per_epoch, max(4, _MOST_ROWS // order.global_batch_size))
        for step in steps.tolist():
            self._check_step(step)
        return f"{len(steps):,} of {order.steps_per_epoch:,} steps looked at row by row, the first and the last too"

    def _check_step(self, step: int) -> None:
        order = self.source.order
        positions, real = (array.reshape(order.streams, -1) for array in order.positions(step))
        first, stop = (span[0, :, None] for span in order.spans([step]))
        expected = first + np.arange(order.rows_per_stream)
        must_be_real = expected < stop
        starts, ends = self._bounds[:-1, None], self._bounds[1:, None]
        last = self._window_bounds[0][order.windows - 1 :: order.windows, None]
        empty = (starts == ends) & (positions == starts)
        padding = (last <= positions) & (positions < ends) | empty
        wrong = np.argwhere((real != must_be_real) | np.where(must_be_real, positions != expected, ~padding))
        if wrong.size:
            k, j = wrong[0].tolist()
            row, at = k * order.rows_per_stream + j, self._place(int(positions[k, j]))
            want = f"position {expected[k, j]}" if must_be_real[k, j] else "padding from its stream's last window"
            raise Fault(f"step {step}, row {row}: {'real' if real[k, j] else 'padding'}, {at}; must be {want}")

    @cached_property
    def _bounds(self) -> I64:
        return self.source.order.stream_bounds()

    @cached_property
    def _window_bounds(self) -> tuple[I64, I64]:
        """First and stop of all windows, stream by stream, int64 (K * W,) each."""
        bounds = np.stack([self.source.order.window_bounds(k) for k in range(self.source.order.streams)])
        return bounds[:, :-1].ravel(), bounds[:, 1:].ravel()

    def _place(self, position: int) -> str:
        """Names a position and the record that is laid there."""
        pieces = self.source.order.pieces(self.epoch, position, position + 1)
        if not len(pieces):
            return f"position {position} (outside the epoch)"
        segment, row, _ = pieces[0].tolist()
        found = self.source.selection.segments[segment]
        return f"position {position} (laid there: record {found.start + row} of {found.shard.file})"


def _spread(n: int, most: int) -> I64:
    """Returns at most `most` of 0..n-1, evenly, the first two and the last two among them where there are 4."""
    if n <= most or n <= 4:
        return np.arange(n if most else 0)
    return np.unique(
        np.concatenate([[0, 1, n - 2, n - 1][:most], np.linspace(0, n - 1, max(0, most - 2)).astype(np.int64)])
    )


def _range(sizes: I64) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
