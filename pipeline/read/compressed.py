"""Reads compressed shards: from front to back, or just the GZIP members that contain the requested records."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records.framing import Frame, walk
from pipeline.records.members import MemberTable, inflate
from pipeline.records.stream import BLOCK, RecordStream

_KEPT = 64  # positions to keep for reads that continue there: more than a worker's streams
KEPT_BYTES = 128 << 20  # 128 MiB: two members for each of 64 streams, the first and the last of its window
_TASK = 4 << 20  # 4 MiB, decompressed, per thread
_UNIT = 1 << 20  # 1 MiB; sizes are rounded up to it, so that memory is reused more often
_MOST_FREE = 16


class ForwardReader:
    """Reads records of shards that are one compressed stream. Several threads may use it, each for a different part."""

    def __init__(self, shards: Shards, sidecars: Sidecars, block: int = BLOCK, kept: int = _KEPT) -> None:
        self._shards, self._sidecars, self._block, self._kept = shards, sidecars, block, kept
        self._waiting: dict[tuple[int, int], Iterator[Frame]] = {}
        self._lock = threading.Lock()

    def read(self, segment: int, start: int, stop: int) -> list[bytes]:
        """Returns records start..stop-1 of a segment's shard.

        Raises:
          DataError: the shard is missing, changed or corrupt.
        """
        if start == stop:
            return []
        with self._lock:
            records = self._waiting.pop((segment, start), None)
        if records is None:
            records = itertools.islice(self._records(segment), start, None)
        taken = list(itertools.islice(records, stop - start))
        found = [frame.record or b"" for frame in taken]
        count = self._shards.segments[segment].shard.num_examples
        if stop == count:
            next(records, None)  # no record is left, but this checks the end of the file
        if len(found) < count:  # a read of all records is covered by the file's CRC
            crcs = [frame.crc for frame in taken]
            self._sidecars.check_crcs(segment, range(start, stop), crcs, [frame.offset for frame in taken])
        if stop == count:
            return found
        with self._lock:
            if len(self._waiting) >= self._kept:
                self._waiting.pop(next(iter(self._waiting)))
            self._waiting[segment, stop] = records
        return found

    def _records(self, segment: int) -> Iterator[Frame]:
        """Yields the records of a shard; checks their number and the file's CRC."""
        shard, number, offset = self._shards.segments[segment].shard, 0, 0

        def read(size: int) -> memoryview:
            size = min(size, shard.num_bytes - stream.num_bytes)
            if size == 0:
                return memoryview(b"")
            with self._shards.opened(segment) as file:  # reopened for each read, to notice changes
                return file.read_at(stream.num_bytes, size)

        stream = RecordStream(read, shard.compression, self._block)
        for frame in walk(stream.read):
            fault = frame.fault.text if frame.fault else ""
            if fault or number == shard.num_examples:  # raises, because nothing can be skipped in such a file
                self._shards.corrupt(segment, number, offset, fault or "the manifest lists fewer records")
            yield frame
            number, offset = frame.number + 1, frame.end
        if number < shard.num_examples:
            self._shards.corrupt(segment, number, offset, "the file ends; the manifest lists more records")
        self._shards.check_crc(segment, stream.crc)


class Run(NamedTuple):
    """Consecutive records of one member.

    Attributes:
      first: number of the first record.
      begins: byte offset of each record and of the end in the decompressed shard, int64 (n + 1,).
      frames: framed records; None if the member is corrupt and its records are skipped.
    """

    first: int
    begins: NDArray[np.int64]
    frames: memoryview | None


class MemberReader:
    """Reads records of shards that have a table of members. Several threads may use it, each for a different part.

    It keeps up to `kept_bytes` decompressed bytes of partially read members.
    """

    def __init__(self, shards: Shards, sidecars: Sidecars, kept_bytes: int = KEPT_BYTES) -> None:
        self._shards, self._sidecars, self._most = shards, sidecars, kept_bytes
        self._kept: dict[tuple[int, int], tuple[memoryview, int]] = {}  # bytes, and the number of unread records
        self._size = 0  # number of kept bytes
        self._lock, self._memory = threading.Lock(), _Memory()

    def parts(self, pieces: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """Returns the parts of pieces for threads to read, as `Shards.parts` does. No two share a member."""
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
        """Returns the end of the members that one thread reads from `member` on."""
        last, size = member + 1, _decompressed(table, member)
        while last < len(table.firsts) - 1 and size + _decompressed(table, last) <= _TASK:
            size += _decompressed(table, last)
            last += 1
        return last

    def read(self, segment: int, start: int, stop: int) -> Iterator[Run]:
        """Yields records start..stop-1 of a segment's shard, member by member.

        Raises:
          DataError: the shard is missing or changed, or has a corrupt member that must not be skipped.
        """
        table = self._sidecars.members(segment)
        low, high = table.member_of(start), table.member_of(stop - 1) + 1
        stored = memoryview(b"")  # bytes of the shard from the current member on
        for member in range(low, high):
            held = table.firsts[member : member + 2].tolist()  # first record of the member, and the end
            first, end = max(start, held[0]), min(stop, held[1])
            with self._lock:
                kept, left = self._kept.get((segment, member), (None, held[1] - held[0]))
            if kept is None and not stored:
                stored = self._stored(segment, int(table.offsets[member]), int(table.offsets[high]))
            size = int(table.offsets[member + 1] - table.offsets[member])
            data, stored = stored[:size], stored[size:]
            whole = self._inflated(segment, table, member, data, (first, end)) if kept is None else kept
            begins, base = table.begins_of(first, end), table.begin(held[0])
            yield Run(first, begins, None if whole is None else whole[int(begins[0]) - base : int(begins[-1]) - base])
            if whole is not None:
                self._keep(segment, member, whole, left - (end - first))

    def _stored(self, segment: int, begin: int, end: int) -> memoryview:
        view = self._memory.view(end - begin)
        with self._shards.opened(segment) as file:
            file.read_into(view, begin)
        return view

    def _inflated(
        self, segment: int, table: MemberTable, member: int, data: memoryview, records: tuple[int, int]
    ) -> memoryview | None:
        """Returns a member's decompressed bytes; None if it is corrupt and its `records` (first, end) are skipped."""
        view = self._memory.view(_decompressed(table, member))
        try:
            inflate(data, view)
        except ValueError as error:
            held = int(table.firsts[member]), int(table.firsts[member + 1])
            offsets = dict(zip(range(*records), table.begins_of(*records).tolist(), strict=False))
            self._shards.corrupt_member(segment, int(table.offsets[member]), held, offsets, str(error))
            return None
        return view

    def _keep(self, segment: int, member: int, whole: memoryview, left: int) -> None:
        """Keeps a member until all its records are read, because the next window or another stream reads the rest."""
        with self._lock:
            self._forget((segment, member))
            if left > 0:
                self._kept[segment, member] = whole, left
                self._size += len(whole)
            while self._size > self._most:
                self._forget(next(iter(self._kept)))

    def _forget(self, key: tuple[int, int]) -> None:
        whole, _ = self._kept.pop(key, (b"", 0))
        self._size -= len(whole)


class _Memory:
    """Provides memory and reuses it once nothing refers to it: new pages would cost much of the decompression time."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def view(self, size: int) -> memoryview:
        """Returns memory with any content."""
        try:  # not `if`: several threads use the list
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(0, np.uint8)
        if len(memory) < size:
            memory = np.empty(-(-size // _UNIT) * _UNIT, np.uint8)
        taken = memory[:size]
        weakref.finalize(taken, self._take_back, memory).atexit = False
        return taken.data

    def _take_back(self, memory: NDArray[np.uint8]) -> None:
        if len(self._free) < _MOST_FREE:
            self._free.append(memory)


def _decompressed(table: MemberTable, member: int) -> int:
    first, stop = table.firsts[member : member + 2].tolist()
    return table.begin(stop) - table.begin(first)
