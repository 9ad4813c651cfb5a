"""The contract of docs/order.md and docs/views.md, restated as plainly as possible, to compare feeds with.

It shares no code with `pipeline.order`, not even hashes and bounds, so that a bug there is not repeated here, except
for the evaluation of `where` expressions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.manifest.columns import Columns
from pipeline.resolved import ResolvedRequest

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
_SHARDS, _WINDOW, _DRAWS, _LIMIT, _BALANCE, _WEIGH, _START = 1, 2, 3, 8, 9, 10, 11  # the first argument of a key
_UNIT = 1 << 20  # weights are multiples of 1 / _UNIT
_KEPT = 2  # epochs of a view that are kept


@dataclasses.dataclass(frozen=True)
class Contract:
    """The record that must be fed in every row of every step.

    Attributes:
      counts: number of records in each segment (a shard or the selected part of one), in manifest order.
      global_batch_size: G.
      streams: K.
      windows: W, the number of windows per stream.
      remainder, seed, training: as in the spec.
      times: function from an epoch to the number of times each record occurs in it, (records of the selection,); None
        if each occurs once.
      skip_steps: (first, end) of each range of steps without real rows.
    """

    counts: tuple[int, ...]
    global_batch_size: int
    streams: int
    windows: int
    remainder: str
    seed: int
    training: bool
    times: Callable[[int], I64] | None = None
    skip_steps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, source: ResolvedRequest) -> Contract:
        """Returns the contract of a split, derived only from the manifest, its columns and the spec."""
        spec, counts = source.spec, tuple(segment.num_examples for segment in source.selection.segments)
        times = _times_of(source) if source.request.view else None
        longest = -(-(sum(counts) if times is None else int(times(0).sum())) // spec.streams)
        windows = max(1, -(-longest // (spec.shuffle_bytes // spec.streams // spec.record_bytes)))
        return cls(
            counts,
            spec.global_batch_size,
            spec.streams,
            windows,
            spec.remainder,
            spec.seed,
            spec.training,
            times,
            spec.skip_steps,
        )

    @functools.cached_property
    def num_stored(self) -> int:
        """Number of records in the selection."""
        return sum(self.counts)

    @functools.cached_property
    def num_records(self) -> int:
        """N, the number of positions in an epoch."""
        return self.num_stored if self.times is None else int(self.times(0).sum())

    def is_skipped(self, step: int) -> bool:
        """Whether the rows of a global step are not real."""
        return any(first <= step < stop for first, stop in self.skip_steps)

    @property
    def rows_per_stream(self) -> int:
        """Q, the number of rows that a stream has in every step."""
        return self.global_batch_size // self.streams

    @property
    def steps_per_epoch(self) -> int:
        """T, the number of steps in an epoch."""
        whole, rest = divmod(self.num_records, self.global_batch_size)
        return whole + (1 if rest and self.remainder == "pad" else 0)

    @property
    def records_fed(self) -> int:
        """Number of records that an epoch feeds: all of them, or only full steps of them with `drop`."""
        return min(self.num_records, self.steps_per_epoch * self.global_batch_size)

    def stream_bounds(self, stream: int) -> tuple[int, int]:
        """Returns the first position of a stream and the one after the last."""
        return stream * self.num_records // self.streams, (stream + 1) * self.num_records // self.streams

    def window_bounds(self, stream: int, window: int) -> tuple[int, int]:
        """Returns the first position of a stream's window and the one after the last."""
        start, stop = self.stream_bounds(stream)
        first, last = (start + w * (stop - start) // self.windows for w in (window, window + 1))
        return first, last

    def replica_rows(self, replica: int, replicas: int) -> tuple[int, int]:
        """Returns the first row that a replica gets of every global batch, and the one after the last."""
        return replica * self.global_batch_size // replicas, (replica + 1) * self.global_batch_size // replicas

    @functools.lru_cache(maxsize=4)  # noqa: B019, a few small objects
    def epoch(self, number: int) -> Epoch:
        """Returns the records that an epoch must feed."""
        return Epoch(self, number)

    def batch(self, step: int) -> tuple[I64, Bools]:
        """Returns the record ids of a global step, int64 (G,), and a mask of real rows, bool (G,)."""
        records, real = self._rows(step)
        return records % self.num_stored, real

    def draw_keys(self, step: int) -> NDArray[np.uint64]:
        """Returns the key of each row in a global step, uint64 (G,); all of a row's draws are made from it."""
        records, _ = self._rows(step)
        epoch = step // self.steps_per_epoch
        return np.array([draw_key(self.seed, epoch, record) for record in records.tolist()], np.uint64)

    def _rows(self, step: int) -> tuple[I64, Bools]:
        epoch, step = divmod(step, self.steps_per_epoch)
        records, real = self.epoch(epoch).batches(range(step, step + 1), range(self.global_batch_size))
        return records[0], real[0]


class Epoch:
    """The records that one epoch must feed."""

    def __init__(self, contract: Contract, number: int) -> None:
        """Concatenates the shards."""
        self.contract, self.number = contract, number
        counts = np.array(contract.counts, np.int64)
        self.shard_order = np.arange(len(counts))
        if contract.training:
            self.shard_order = _permutation(_key(_SHARDS, contract.seed, number), len(counts))
        self._first_record = (np.cumsum(counts) - counts)[self.shard_order]
        laid = counts[self.shard_order]
        self._records = None
        if contract.times is not None:
            times = contract.times(number)
            stored = np.concatenate(
                [first + np.arange(n) for first, n in zip(self._first_record, laid, strict=True)] or [laid]
            )
            copies = np.concatenate([np.arange(n) for n in times[stored]])
            self._records = np.repeat(stored, times[stored]) + copies * contract.num_stored
        self._first_position = np.cumsum(laid) - laid
        self._window = functools.lru_cache(4 * contract.streams)(self._permuted_window)

    def laid(self, positions: I64) -> I64:
        """Returns the records at the given positions, before windows are permuted.

        Copy j of a record in a view has the record's id plus j times the number of records in the selection.
        """
        if self._records is not None:
            return self._records[positions]
        shard = np.searchsorted(self._first_position, positions, "right") - 1
        return self._first_record[shard] + positions - self._first_position[shard]

    def _permuted_window(self, stream: int, window: int) -> I64:
        records = self.laid(np.arange(*self.contract.window_bounds(stream, window)))
        if not self.contract.training:
            return records
        key = _key(_WINDOW, self.contract.seed, self.number, stream, window)
        return records[_permutation(key, len(records))]

    def stream(self, stream: int, first: int, stop: int) -> tuple[I64, Bools]:
        """Returns records first..stop - 1 of a stream, and a mask of the real ones.

        Padding follows the stream: the records of its last window from last to first, repeated.
        """
        contract = self.contract
        start, end = contract.stream_bounds(stream)
        parts, at = [], start + min(first, end - start)
        while at < min(start + stop, end):
            window = self._window_of(stream, at)
            begin, _ = contract.window_bounds(stream, window)
            parts.append(self._window(stream, window)[at - begin : start + stop - begin])
            at += len(parts[-1])
        last = self._window(stream, contract.windows - 1) if end > start else self.laid(np.array([start]))
        numbers = np.arange(first, stop)
        beyond = numbers[numbers >= end - start] - (end - start)
        parts.append(last[len(last) - 1 - beyond % len(last)])
        return np.concatenate(parts), numbers < end - start

    def _window_of(self, stream: int, position: int) -> int:
        """Returns the window of a stream that contains a position."""
        start, end = self.contract.stream_bounds(stream)
        window = (position - start) * self.contract.windows // (end - start)
        while self.contract.window_bounds(stream, window)[1] <= position:
            window += 1
        return window

    def batches(self, steps: range, rows: range) -> tuple[I64, Bools]:
        """Returns the records at steps of the epoch and rows of the global batch, (steps, rows), and which are real."""
        q = self.contract.rows_per_stream
        blocks = []
        for stream in range(rows.start // q, -(-rows.stop // q)):
            mine = slice(max(rows.start - stream * q, 0), rows.stop - stream * q)
            found = self.stream(stream, steps.start * q, steps.stop * q)
            blocks.append([part.reshape(len(steps), q)[:, mine] for part in found])
        records, real = (np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True))
        first = self.number * self.contract.steps_per_epoch
        skipped = [self.contract.is_skipped(first + step) for step in steps]
        return records, real & ~np.array(skipped, bool)[:, None]


def _times_of(source: ResolvedRequest) -> Callable[[int], I64]:
    """Returns a function from an epoch to how many times each record of a view occurs, (records of the selection,)."""
    view, seed, count = source.request.view, source.spec.seed, source.selection.num_examples
    columns = Columns(source.request.folder, source.manifest, source.selection)
    mask = view.mask(columns, count)
    kept = list(range(count)) if mask is None else np.flatnonzero(mask).tolist()
    if view.limit is not None:
        most, _, name = str(view.limit).partition(" per ")
        of = columns[name.strip()].tolist() if name else [None] * count
        taken: dict[Any, list[int]] = {}
        for record in sorted(kept, key=lambda record: _key(_LIMIT, record)):
            taken.setdefault(of[record], []).append(record)
        kept = sorted(record for records in taken.values() for record in records[: int(most)])

    @functools.lru_cache(_KEPT)
    def times(epoch: int) -> I64:
        found = np.zeros(count, np.int64)
        if view.balance is not None:
            by_root = view.balance.startswith("sqrt(")
            codes = np.asarray(columns[view.balance[5:-1] if by_root else view.balance])[kept]
            classes, sizes = np.unique(codes, return_counts=True)
            for code, n in zip(classes.tolist(), sizes.tolist(), strict=True):
                wanted = math.isqrt(n * int(sizes.max())) if by_root else int(sizes.max())
                members = np.array(kept)[codes == code]
                for rank, member in enumerate(_permutation(_key(_BALANCE, seed, epoch, code), n).tolist()):
                    found[members[member]] = (rank + 1) * wanted // n - rank * wanted // n
        elif view.weigh is not None:
            units = np.floor(np.asarray(columns[view.weigh])[kept].astype(np.float64) * _UNIT + 0.5).astype(np.int64)
            there = np.flatnonzero(units)
            total = int(units.sum())
            at = _key(_START, seed, epoch) % (_UNIT - total % _UNIT)
            for member in there[_permutation(_key(_WEIGH, seed, epoch), len(there))].tolist():
                found[kept[member]] = (at + int(units[member])) // _UNIT - at // _UNIT
                at += int(units[member])
        else:
            found[kept] = 1
        return found

    return times


def draw_key(seed: int, epoch: int, record: int) -> int:
    """Returns the key, a uint64, from which all draws of a record in an epoch are made."""
    return _key(_DRAWS, seed, epoch, record)


def draw(key: int, number: int) -> np.float32:
    """Returns draw `number` of a key, in [0, 1)."""
    found = _hash(np.array([(key + number) % 2**64], np.uint64))[0] >> np.uint64(40)
    return np.float32(found) * np.float32(2**-24)


def _permutation(key: int, size: int) -> I64:
    return np.argsort(_hash(np.arange(size).astype(np.uint64) + np.uint64(key)).view(np.int64), kind="stable")


def _key(*arguments: int) -> int:
    key = 0
    for argument in arguments:
        key = int(_hash(np.array([key ^ argument % 2**64], np.uint64))[0])
    return key


def _hash(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64."""
    states = states + np.uint64(0x9E3779B97F4A7C15)
    states = (states ^ states >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ states >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return states ^ states >> np.uint64(31)
