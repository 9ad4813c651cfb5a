"""Reads compressed shards, front to back only: a read that continues where another ended re-reads nothing."""

from __future__ import annotations

import threading

from pipeline.errors import DataError
from pipeline.read.shards import Shards
from pipeline.records.stream import BLOCK, RecordStream
from pipeline.records.walk import walk

_KEPT = 64  # shards kept for a reader that continues there; more than one worker's streams


class GzipReader:
    """Reads records of compressed shards; several threads may, each another part."""

    def __init__(self, shards: Shards, block: int = BLOCK, kept: int = _KEPT) -> None:
        self._shards, self._block, self._kept = shards, block, kept
        self._waiting: dict[tuple[int, int], _Stream] = {}
        self._lock = threading.Lock()

    def read(self, segment: int, start: int, stop: int) -> list[bytes]:
        """Returns records start..stop-1 of a segment's shard.

        Raises:
          DataError: the shard is missing, changed or corrupt.
        """
        if start == stop:
            return []
        stream = self._at(segment, start)
        found = [stream.next() for _ in range(start, stop)]
        if stop == self._shards.segments[segment].shard.num_examples:
            stream.check_end()
        else:
            self._keep((segment, stop), stream)
        return found

    def _at(self, segment: int, start: int) -> _Stream:
        with self._lock:
            stream = self._waiting.pop((segment, start), None)
        if stream is None:
            stream = _Stream(self._shards, segment, self._block)
            for _ in range(start):
                stream.next()
        return stream

    def _keep(self, position: tuple[int, int], stream: _Stream) -> None:
        with self._lock:
            if len(self._waiting) >= self._kept:
                self._waiting.pop(next(iter(self._waiting)))
            self._waiting[position] = stream


class _Stream:
    """One compressed shard, read record by record."""

    def __init__(self, shards: Shards, segment: int, block: int) -> None:
        self._shards, self._segment = shards, segment
        self._stream = RecordStream(self._read_file, "GZIP", block)
        self._frames = walk(self._stream.read)
        self._number = self._offset = 0  # of the next record

    def next(self) -> bytes:
        frame = next(self._frames, None)
        if frame is None:
            raise self._error("the file ends; the manifest lists more records")
        if frame.record is None or frame.fault is not None:
            raise self._error(frame.fault.text if frame.fault else "")
        self._number, self._offset = frame.number + 1, frame.end
        return frame.record

    def check_end(self) -> None:
        frame = next(self._frames, None)
        if frame is not None:
            raise self._error(frame.fault.text if frame.fault else "the manifest lists fewer records")
        self._shards.check_crc(self._segment, self._stream.crc)

    def _read_file(self, size: int) -> memoryview:
        """Opens the file for each read, so that it is noticed when it changes meanwhile."""
        at = self._stream.num_bytes
        size = min(size, self._shards.segments[self._segment].shard.num_bytes - at)
        if size == 0:
            return memoryview(b"")
        with self._shards.opened(self._segment) as file:
            return file.read_at(at, size)

    def _error(self, problem: str) -> DataError:
        """Returns the error of this record; nothing can be skipped in a compressed file."""
        try:
            self._shards.corrupt(self._segment, self._number, self._offset, problem)
        except DataError as error:
            return error
        return DataError(f"{self._shards.file(self._segment)}, record {self._number}: {problem}")
