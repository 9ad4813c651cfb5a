"""Reads a file of TFRecords from its begin to its end: every CRC, where the records lie, the CRC of the whole."""

from __future__ import annotations

import array
import dataclasses
import functools
import gzip
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.manifest.storage import File
from pipeline.records import framing

_BLOCK = 4 << 20  # 4 MiB: read at once
_GZIP_MAGIC = b"\x1f\x8b"

header = functools.lru_cache(maxsize=1 << 16)(framing.header)


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned:
    """What is in a file.

    Attributes:
      num_bytes: its size.
      crc32c: of all its bytes as they are stored, 8 hexadecimal digits.
      offsets: of each record and of the end, before compression: uint64 (records + 1,).
    """

    num_bytes: int
    crc32c: str
    offsets: NDArray[np.uint64]

    @property
    def num_examples(self) -> int:
        """Records."""
        return len(self.offsets) - 1

    @property
    def stride(self) -> int | None:
        """Bytes from one record to the next, where all are of one length; None without records."""
        lengths = np.diff(self.offsets)
        return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else None


def scan(file: File, compression: str, on_bytes: Callable[[int], None]) -> Scanned:
    """Reads a file.

    Args:
      file: of records.
      compression: `GZIP` or none.
      on_bytes: is told how many bytes were read, again and again; what it raises ends the reading.

    Raises:
      DataError: it cannot be read, or a record is cut or corrupt: with its number and byte offset.
    """
    before = file.identity()
    with _Raw(file, before.num_bytes, on_bytes) as raw:
        stream: Any = gzip.GzipFile(fileobj=io.BufferedReader(raw, _BLOCK)) if compression else raw
        walk = _Walk(str(file), bool(compression))
        while block := walk.read(stream):
            walk.add(block)
        walk.end()
    if file.identity() != before:
        raise DataError(f"{file}: was written while it was read; end what writes there and start again")
    return Scanned(before.num_bytes, f"{raw.crc:08x}", np.frombuffer(walk.offsets, np.uint64))


class _Raw(io.RawIOBase):
    """A file's bytes, forward, with their CRC."""

    def __init__(self, file: File, num_bytes: int, on_bytes: Callable[[int], None]) -> None:
        self._file, self._left, self._at, self._on_bytes = file.open(), num_bytes, 0, on_bytes
        self.crc = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self._left]
        self._file.read_into(view, self._at)
        self.crc = crc32c.crc32c(view, self.crc)
        self._at, self._left = self._at + len(view), self._left - len(view)
        self._on_bytes(len(view))
        return len(view)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Walk:
    """Goes from record to record through bytes that come in blocks.

    Attributes:
      offsets: of the records so far, and of the next.
    """

    def __init__(self, file: str, is_compressed: bool) -> None:
        self._file, self._is_compressed = file, is_compressed
        self._rest = bytearray()
        self._needed = framing.HEADER
        self.offsets = array.array("Q", [0])

    def read(self, stream: Any) -> bytes:
        try:
            return bytes(stream.read(_BLOCK))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._error(f"cannot be decompressed: {error}") from None

    def add(self, block: bytes) -> None:
        self._rest += block
        if len(self._rest) < self._needed:
            return
        with memoryview(self._rest) as data:
            done = self._records(data)
        del self._rest[:done]

    def end(self) -> None:
        """Checks that the bytes ended where a record did."""
        if self._rest:
            what = "a header" if len(self._rest) < framing.HEADER else "the record"
            raise self._error(f"the file ends inside {what} ({len(self._rest)} of {self._needed} bytes)")

    def _records(self, data: memoryview) -> int:
        """Checks the records that are whole; returns the bytes that they take."""
        start, base = 0, self.offsets[-1]
        while start + framing.HEADER <= len(data):
            length = self._length(data[start : start + framing.HEADER])
            stop = start + framing.HEADER + length
            if stop + framing.FOOTER > len(data):
                break
            stored = struct.unpack_from("<I", data, stop)[0]
            if framing.masked_crc32c(data[start + framing.HEADER : stop]) != stored:
                raise self._error("the record's CRC is wrong")
            start = stop + framing.FOOTER
            self.offsets.append(base + start)
        else:
            self._needed = framing.HEADER
            return start
        self._needed = stop + framing.FOOTER - start
        return start

    def _length(self, begin: memoryview) -> int:
        length = int.from_bytes(begin[:8], "little")
        if begin != header(length):
            looks_packed = len(self.offsets) == 1 and begin[:2] == _GZIP_MAGIC
            hint = "; it looks compressed: give --compression=GZIP" if looks_packed else ""
            raise self._error(f"its length or the CRC of its length is wrong{hint}")
        if length > framing.MAX_RECORD:
            raise self._error(f"it has {length} bytes; at most {framing.MAX_RECORD} can be read")
        return length

    def _error(self, problem: str) -> DataError:
        unit = " of the decompressed bytes" if self._is_compressed else ""
        return DataError(
            f"{self._file}, record {len(self.offsets) - 1}, byte offset {self.offsets[-1]}{unit}: {problem}"
        )
