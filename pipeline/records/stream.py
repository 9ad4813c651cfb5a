"""The bytes of a file of records, front to back in bounded memory: decompressed, and counted as they are stored."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import crc32c

from pipeline.manifest.storage import OpenFile

BLOCK = 1 << 20  # 1 MiB, read at a time: one request to an object store
_PIECE = 16 << 10  # 16 KiB, compressed: zlib copies what is left of it with every call
_INFLATED = 8 << 10  # 8 KiB, decompressed at least: records that precede damaged bytes are still given
_WINDOW_BITS = {"GZIP": zlib.MAX_WBITS | 16, "ZLIB": zlib.MAX_WBITS}


class RecordStream:
    """Reads a file once: plain, ZLIB, or GZIP of any number of members.

    Attributes:
      num_bytes, crc: of the bytes of the file that were read so far: their number and their CRC32C.
    """

    def __init__(self, read: Callable[[int], Any], compression: str, block: int = BLOCK) -> None:
        """Starts at the file's first byte.

        Args:
          read: returns the next bytes of the file, at most so many; none at its end.
          compression: `GZIP`, `ZLIB` or none.
          block: bytes that are read at a time.
        """
        self._file, self._size = read, block
        self._compression = compression
        self._inflater: Any = None  # of the GZIP member that is being read
        self._block, self._pending = memoryview(b""), b""
        self._members = 0
        self.num_bytes = self.crc = 0

    def read(self, size: int) -> bytes:
        """Returns the next bytes, decompressed: about `size`, or what comes cheaper; none at the end.

        Raises:
          EOFError, zlib.error: they cannot be decompressed.
        """
        if not self._compression:
            return self._next()
        while self._inflater is not None or self._begin_member():
            data: bytes = self._inflater.decompress(self._pending, min(max(size, _INFLATED), BLOCK))
            self._pending = self._inflater.unconsumed_tail
            if self._inflater.eof:
                self._pending, self._inflater = self._inflater.unused_data, None
            elif not data and not self._pending:
                self._pending = self._piece()
                if not self._pending:
                    raise EOFError("the compressed data is cut")
            if data:
                return data
        return b""

    def finish(self) -> None:
        """Reads the rest, so that the whole file is counted."""
        while self._next():
            pass

    def _begin_member(self) -> bool:
        """Prepares for the next GZIP member, past zeros that pad the one before; returns whether there is one."""
        if self._members:
            self._pending = self._pending.lstrip(b"\0")
        while not self._pending:
            piece = self._piece()
            if not piece:
                return False
            self._pending = piece.lstrip(b"\0") if self._members else piece
        self._inflater = zlib.decompressobj(_WINDOW_BITS[self._compression])
        self._members += 1
        return True

    def _piece(self) -> bytes:
        if not self._block:
            self._block = memoryview(self._next())
        piece, self._block = bytes(self._block[:_PIECE]), self._block[_PIECE:]
        return piece

    def _next(self) -> bytes:
        data = bytes(self._file(self._size))
        self.num_bytes += len(data)
        self.crc = crc32c.crc32c(data, self.crc)
        return data


def forward(file: OpenFile) -> Callable[[int], memoryview]:
    """Returns what reads an open file from its first byte to its end, as `RecordStream` wants it."""
    size, offset = file.identity().num_bytes, 0

    def read(count: int) -> memoryview:
        nonlocal offset
        data = file.read_at(offset, min(count, size - offset))
        offset += len(data)
        return data

    return read
