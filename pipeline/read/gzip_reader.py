"""Reads compressed shards, which can be read forward only: who goes on where another read ended starts nothing over."""

from __future__ import annotations

import gzip
import io
import struct
import threading
import zlib
from typing import Any

import crc32c

from pipeline.errors import DataError
from pipeline.read.shards import Shards
from pipeline.records import framing

_AHEAD = 1 << 20  # 1 MiB, compressed: one request to an object store
_KEPT = 64  # shards that stay open for who goes on there; more than one worker's streams


class GzipReader:
    """Reads records of compressed shards; several threads may, each another part."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
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
            stream = _Stream(self._shards, segment)
            for _ in range(start):
                stream.next()
        return stream

    def _keep(self, place: tuple[int, int], stream: _Stream) -> None:
        with self._lock:
            if len(self._waiting) >= _KEPT:
                self._waiting.pop(next(iter(self._waiting)))
            self._waiting[place] = stream


class _Stream:
    """One compressed shard, read record by record."""

    def __init__(self, shards: Shards, segment: int) -> None:
        self._shards, self._segment = shards, segment
        self._raw = _Forward(shards, segment)
        self._file = gzip.GzipFile(fileobj=io.BufferedReader(self._raw, _AHEAD), mode="rb")
        self._record, self._offset = 0, 0

    def next(self) -> bytes:
        header = self._take(framing.HEADER)
        length, length_crc = struct.unpack("<QI", header)
        if framing.masked_crc32c(header[:8]) != length_crc or length > framing.MAX_RECORD:
            raise self._error("its length or the CRC of its length is wrong")
        record = self._take(length)
        if framing.masked_crc32c(record) != struct.unpack("<I", self._take(framing.FOOTER))[0]:
            raise self._error("the record's CRC is wrong")
        self._record += 1
        self._offset += framing.HEADER + length + framing.FOOTER
        return record

    def check_end(self) -> None:
        if self._read(1):
            raise self._error("the manifest lists fewer records")
        self._shards.check_crc(self._segment, self._raw.crc)

    def _take(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise self._error(f"the file ends inside the record ({len(data)} of {size} bytes)")
        return data

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._error(f"cannot be decompressed: {error}") from None

    def _error(self, problem: str) -> DataError:
        """Returns the error of this record; nothing can be skipped in a compressed file."""
        try:
            self._shards.corrupt(self._segment, self._record, self._offset, problem)
        except DataError as error:
            return error
        return DataError(f"{self._shards.file(self._segment)}, record {self._record}: {problem}")


class _Forward(io.RawIOBase):
    """A file that is read forward, opened for each read, so that it is noticed when it changes meanwhile."""

    def __init__(self, shards: Shards, segment: int) -> None:
        self._shards, self._segment = shards, segment
        self._at, self.crc = 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: self._shards.segments[self._segment].shard.num_bytes - self._at]
        if view:
            with self._shards.opened(self._segment) as file:
                file.read_into(view, self._at)
        self._at += len(view)
        self.crc = crc32c.crc32c(view, self.crc)
        return len(view)
