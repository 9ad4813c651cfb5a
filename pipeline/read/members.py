"""Reads compressed shards that are written in members: only the members that hold what is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records.members import MemberTable, inflate

KEPT_BYTES = 128 << 20  # 128 MiB: two members of each of 64 streams, that in which its window ends, and its very first
_TASK = 4 << 20  # 4 MiB decompressed, per thread


class Run(NamedTuple):
    """Consecutive records out of one member.

    Attributes:
      first: the number of the first.
      begins: byte offset of each in the decompressed shard, and of the end; int64 (n + 1,).
      frames: the framed records; None: the member is corrupt, and its records are skipped.
    """

    first: int
    begins: NDArray[np.int64]
    frames: memoryview | None


class MemberReader:
    """Reads records of shards in members; several threads may, each another part."""

    def __init__(self, shards: Shards, sidecars: Sidecars, kept_bytes: int = KEPT_BYTES) -> None:
        """Makes it; of the members that were read in part, `kept_bytes` decompressed bytes stay in memory."""
        self._shards, self._sidecars, self._most = shards, sidecars, kept_bytes
        self._kept: dict[tuple[int, int], tuple[bytes, int]] = {}  # with how many of its records were not read yet
        self._lock = threading.Lock()

    def parts(self, pieces: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """Returns (segment, first record of its shard, end) of the parts that threads read: they share no member.

        Args:
          pieces: as of `Shards.parts`.
        """
        found = []
        for segment, start, stop in pieces.tolist():
            taken = self._shards.segments[segment]
            first, end = taken.start + start, taken.start + stop
            while first < end:
                table = self._sidecars.members(segment)
                last = self._last_of_task(table, table.member_of(first))
                found.append((segment, first, min(end, int(table.firsts[last]))))
                first = found[-1][2]
        return found

    def _last_of_task(self, table: MemberTable, member: int) -> int:
        """Returns the end of the members from `member` on that a thread reads."""
        last, size = member + 1, _decompressed(table, member)
        while last < len(table.firsts) - 1 and size + _decompressed(table, last) <= _TASK:
            size += _decompressed(table, last)
            last += 1
        return last

    def read(self, segment: int, start: int, stop: int) -> Iterator[Run]:
        """Yields records start..stop-1 of a segment's shard, member after member.

        Raises:
          DataError: the shard is missing or changed, or holds a corrupt member that must not be skipped.
        """
        table = self._sidecars.members(segment)
        low, high = table.member_of(start), table.member_of(stop - 1) + 1
        stored, begin = memoryview(b""), int(table.offsets[high])  # the members from this byte on
        for member in range(low, high):
            first, end = max(start, int(table.firsts[member])), min(stop, int(table.firsts[member + 1]))
            with self._lock:
                whole, left = self._kept.get((segment, member), (None, _records(table, member)))
            if whole is None:
                at, after = table.offsets[member : member + 2].tolist()
                if not stored:
                    begin = at
                    with self._shards.opened(segment) as file:
                        stored = file.read_at(begin, int(table.offsets[high]) - begin)
                try:
                    whole = inflate(stored[at - begin : after - begin], _decompressed(table, member))
                except ValueError as error:
                    self._corrupt(segment, table, member, (first, end), str(error))
            begins = table.begins_of(first, end)
            yield Run(first, begins, None if whole is None else _cut(table, member, whole, begins))
            if whole is not None:
                self._keep(segment, member, whole, left - (end - first))

    def _keep(self, segment: int, member: int, whole: bytes, left: int) -> None:
        """Keeps a member until all its records were read: by the next window, or by the stream that ends in it."""
        with self._lock:
            self._kept.pop((segment, member), None)
            if left > 0:
                self._kept[segment, member] = whole, left
            while sum(len(kept) for kept, _ in self._kept.values()) > self._most:
                self._kept.pop(next(iter(self._kept)))

    def _corrupt(self, segment: int, table: MemberTable, member: int, records: tuple[int, int], problem: str) -> None:
        """Reports records of a member as corrupt; raises as `Shards.corrupt_member`."""
        held = int(table.firsts[member]), int(table.firsts[member + 1])
        offsets = dict(zip(range(*records), table.begins_of(*records).tolist(), strict=False))
        self._shards.corrupt_member(segment, int(table.offsets[member]), held, offsets, problem)


def _records(table: MemberTable, member: int) -> int:
    return int(table.firsts[member + 1] - table.firsts[member])


def _decompressed(table: MemberTable, member: int) -> int:
    """Returns the bytes of a member's records."""
    first, stop = table.firsts[member : member + 2].tolist()
    begin, end = table.begins_of(first, stop)[[0, -1]].tolist()
    return int(end - begin)


def _cut(table: MemberTable, member: int, whole: bytes, begins: NDArray[np.int64]) -> memoryview:
    first = int(table.firsts[member])
    base = int(table.begins_of(first, first)[0])
    return memoryview(whole)[int(begins[0]) - base : int(begins[-1]) - base]
