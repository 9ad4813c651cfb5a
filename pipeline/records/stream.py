"""Reads the decompressed bytes of a record file from front to back, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import crc32c

from pipeline.files.paths import StoragePath
from pipeline.files.reading import OpenFile
from pipeline.records import framing

WRITE_AGAIN = "copy or write the file again"  # advice about any writer's damaged file
BLOCK = 1 << 20  # 1 MiB read at a time: one request to an object store
_PIECE = 16 << 10  # 16 KiB of compressed bytes per call; with more, zlib would copy a larger remainder every time
_INFLATED = 8 << 10  # at least 8 KiB of decompressed bytes per call
_WINDOW_BITS = {"GZIP": zlib.MAX_WBITS | 16, "ZLIB": zlib.MAX_WBITS}


class RecordStream:
    """Reads a file once: plain, ZLIB, or GZIP with any number of members.

    Attributes:
      num_bytes: number of (compressed) bytes of the file read so far.
      crc: CRC32C of these bytes.
      members: (byte offset in the file, bytes decompressed before it) of each GZIP member so far.
      is_padded: whether there are zeros after a member.
    """

    def __init__(self, read: Callable[[int], Any], compression: str, block: int = BLOCK) -> None:
        """Starts at the file's first byte.

        Args:
          read: function that returns the next bytes of the file, at most as many as requested; empty at the end.
          compression: `GZIP`, `ZLIB`, or empty.
          block: number of bytes to read at a time.
        """
        self._file, self._size = read, block
        self._compression = compression
        self._inflater: Any = None  # the current member's decompressor
        self._saved: tuple[Any, bytes] = (None, b"")  # a copy of the inflater, and its remaining input at that time
        self._given = 0  # bytes returned since then
        self._damage: zlib.error | None = None
        self._block, self._pending = memoryview(b""), b""
        self.members: list[tuple[int, int]] = []
        self.is_padded = False
        self._given_in_all = 0
        self.num_bytes = self.crc = 0

    def read(self, size: int) -> bytes:
        """Returns the next decompressed bytes, about `size` or as many as are cheap to get; empty at the end.

        Raises:
          EOFError, zlib.error: the bytes cannot be decompressed.
        """
        if not self._compression:
            return self._next()
        while self._inflater is not None or self._begin_member():
            data = self._inflate(min(max(size, _INFLATED), BLOCK))
            if self._inflater.eof:
                self._pending, self._inflater = self._inflater.unused_data, None
            elif not data and not self._pending:
                self._pending = self._piece()
                if not self._pending:
                    raise EOFError("the compressed data is cut")
                self._save()
            if data:
                self._given_in_all += len(data)
                return data
        return b""

    def _inflate(self, size: int) -> bytes:
        if self._damage is not None:
            raise self._damage
        try:
            data: bytes = self._inflater.decompress(self._pending, size)
            self._pending = self._inflater.unconsumed_tail
        except zlib.error as error:
            self._damage, data = error, self._before_damage()
            if not data:
                raise
        self._given += len(data)
        return data

    def _before_damage(self) -> bytes:
        """Returns the bytes before the damage, which zlib drops when it raises, by decompressing again byte by byte."""
        self._inflater, pending = self._saved
        data = bytearray()
        try:
            if self._given:
                self._inflater.decompress(pending, self._given)
                pending = self._inflater.unconsumed_tail
            while byte := self._inflater.decompress(pending, 1):
                data += byte
                pending = self._inflater.unconsumed_tail
        except zlib.error:
            pass
        return bytes(data)

    def _save(self) -> None:
        self._saved, self._given = (self._inflater.copy(), self._pending), 0

    @property
    def _offset(self) -> int:
        """Byte offset in the file of the next input to decompress."""
        return self.num_bytes - len(self._block) - len(self._pending)

    def finish(self) -> None:
        """Reads the rest, so that `num_bytes` and `crc` cover the whole file."""
        while self._next():
            pass

    def _begin_member(self) -> bool:
        """Skips zero padding and prepares for the next member; returns whether there is one."""
        ended = self._offset
        if self.members:
            self._pending = self._pending.lstrip(b"\0")
        while not self._pending:
            piece = self._piece()
            if not piece:
                self.is_padded |= self._offset != ended
                return False
            self._pending = piece.lstrip(b"\0") if self.members else piece
        self._inflater = zlib.decompressobj(_WINDOW_BITS[self._compression])
        self.is_padded |= self._offset != ended
        self.members.append((self._offset, self._given_in_all))
        self._save()
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
    """Returns a `read` function for `RecordStream` that reads an open file from its first byte to its end."""
    size, offset = file.identity().num_bytes, 0

    def read(count: int) -> memoryview:
        nonlocal offset
        data = file.read_at(offset, min(count, size - offset))
        offset += len(data)
        return data

    return read


def records_of(file: StoragePath, compression: str) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset, record) for every record of a data set's file; its compression is `GZIP`, `ZLIB`, or empty.

    Raises:
      DataError: the file cannot be read, or a record is cut short or corrupt.
    """
    with file.open_file() as opened:
        read = RecordStream(forward(opened), compression).read
        for offset, _, record in framing.records(read, file, is_compressed=bool(compression), advice=WRITE_AGAIN):
            yield offset, record
