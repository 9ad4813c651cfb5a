"""Reads compressed shards, front to back only: a read that continues where another ended re-reads nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records.stream import BLOCK, RecordStream
from pipeline.records.walk import Frame, walk

_KEPT = 64  # shards kept for a reader that continues there; more than one worker's streams


class GzipReader:
    """Reads records of compressed shards; several threads may, each another part."""

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
            next(records, None)  # there is none: the end of the file is checked
        if len(found) < count:
            crcs = [frame.crc for frame in taken]
            self._sidecars.check_crcs(segment, range(start, stop), crcs, lambda i: taken[i].offset)
        if stop == count:
            return found
        with self._lock:
            if len(self._waiting) >= self._kept:
                self._waiting.pop(next(iter(self._waiting)))
            self._waiting[segment, stop] = records
        return found

    def _records(self, segment: int) -> Iterator[Frame]:
        """Yields the records of a shard, and checks that the manifest lists as many, of this CRC."""
        shard, number, offset = self._shards.segments[segment].shard, 0, 0

        def read(size: int) -> memoryview:
            size = min(size, shard.num_bytes - stream.num_bytes)
            if size == 0:
                return memoryview(b"")
            with self._shards.opened(segment) as file:  # for each read, so that a change meanwhile is noticed
                return file.read_at(stream.num_bytes, size)

        stream = RecordStream(read, "GZIP", self._block)
        for frame in walk(stream.read):
            fault = frame.fault.text if frame.fault else ""
            if fault or number == shard.num_examples:  # nothing can be skipped in a compressed file
                self._shards.corrupt(segment, number, offset, fault or "the manifest lists fewer records")
            yield frame
            number, offset = frame.number + 1, frame.end
        if number < shard.num_examples:
            self._shards.corrupt(segment, number, offset, "the file ends; the manifest lists more records")
        self._shards.check_crc(segment, stream.crc)
