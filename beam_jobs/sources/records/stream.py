"""TFRecord files read front to back, GZIP and ZLIB decompressed on the way, one record in memory at a time."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import crc32c

from beam_jobs.sources import files, streams
from beam_jobs.sources.files import Place
from pipeline.errors import DataError
from pipeline.records import framing

_BUFFER = 256 << 10  # 256 KiB
_CHUNK = 64 << 20  # 64 MiB: the most that is allocated because a header says so
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32  # zlib itself tells them apart
_HEADER = struct.Struct("<QI")


def packing_of(path: Place) -> str:
    """Returns how a TFRecord file is compressed, by its first bytes: "" for plain, "gzip" or "zlib".

    Raises:
      DataError: it cannot be read, or begins as none of these does.
    """
    with streams.errors_of(path), streams.open_plain(path) as stream:
        start = stream.read(framing.HEADER)
    # A whole header with its CRC comes first: the length of a record may well look like gzip's magic.
    if not start or (len(start) == framing.HEADER and _crc_is_right(start)):
        return ""
    if start.startswith(streams.GZIP_MAGIC):
        return "gzip"
    if start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:  # RFC 1950: deflate, the header's check
        return "zlib"
    raise DataError(f"{path}: begins with 0x{start.hex()}: neither a TFRecord's header nor GZIP or ZLIB")


def walk(
    path: Place, packing: str, with_records: bool = True, tap: Callable[[bytes], None] | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Yields (byte offset, byte offset of its end, record) of every record.

    Args:
      path: the file.
      packing: what `packing_of` returned; offsets are those of the decompressed content.
      with_records: read the records and check their CRCs. Else, where the file is plain, they are skipped: b"".
      tap: gets the file's bytes as they are read, of a gzip file those of its content; then no records are skipped.

    Raises:
      DataError: the file cannot be read, is cut short or corrupt: with the record's number and its offset.
    """
    offset, number, record = 0, 0, b""
    with streams.errors_of(path), files.open_file(path, _BUFFER) as raw:
        size = files.size_of(raw)
        stream = _unpacked(raw, packing, tap)
        while header := stream.read(framing.HEADER):
            try:
                length = _length(header)
                end = offset + framing.HEADER + length + framing.FOOTER
                if not packing and end > size:
                    raise _CorruptError(f"the file ends inside the record ({size} of {end} bytes)")
                if length > framing.MAX_RECORD:
                    raise _CorruptError(
                        f"the record has {length} bytes, above {framing.MAX_RECORD}, the most that is read"
                    )
                if with_records or packing or tap:
                    record = _record(_read(stream, length + framing.FOOTER), length)
                else:
                    stream.seek(length + framing.FOOTER, os.SEEK_CUR)
            except _CorruptError as error:
                raise _error(path, number, offset, error, packing) from None
            yield offset, end, record
            offset, number = end, number + 1


def unframe(framed: bytes, path: str, number: int, offset: int) -> bytes:
    """Returns the record of a header, record and footer.

    Args:
      framed: these.
      path, number, offset: where it is from, for the error.

    Raises:
      DataError: the length is not the header's, or one of the CRCs is wrong.
    """
    try:
        length, expected = _length(framed[: framing.HEADER]), len(framed) - framing.HEADER - framing.FOOTER
        if length != expected:
            raise _CorruptError(f"the record has {length} bytes; by its place in the file it must have {expected}")
        return _record(framed[framing.HEADER :], length)
    except _CorruptError as error:
        raise _error(path, number, offset, error) from None


def bounds(data: bytes, path: str, number: int, offset: int) -> list[int]:
    """Returns the place in `data` of each framed record, and of the end; the CRCs of the lengths are checked.

    Args:
      data: whole records, framed.
      path, number, offset: where the first is from, for the error.

    Raises:
      DataError: `data` ends inside a record, or the CRC of a length is wrong.
    """
    found = [0]
    while found[-1] < len(data):
        start = found[-1]
        try:
            size = framing.HEADER + _length(data[start : start + framing.HEADER]) + framing.FOOTER
            if start + size > len(data):
                raise _CorruptError(f"the file ends inside the record ({len(data) - start} of {size} bytes)")
        except _CorruptError as error:
            raise _error(path, number + len(found) - 1, offset + start, error) from None
        found.append(start + size)
    return found


class _CorruptError(Exception):
    """What is wrong with a record."""


def _error(path: Place, number: int, offset: int, problem: _CorruptError, packing: str = "") -> DataError:
    unpacked = " of the decompressed content" if packing else ""
    return DataError(
        f"{path}, record {number}, byte offset {offset}{unpacked}: {problem}; the file is corrupt, get it again"
    )


def _crc_is_right(header: bytes) -> bool:
    return crc32c.crc32c(header[:8]) == framing.unmask(_HEADER.unpack(header)[1])


def _length(header: bytes) -> int:
    if len(header) < framing.HEADER:
        raise _CorruptError(f"the file ends inside a header ({len(header)} of {framing.HEADER} bytes)")
    if not _crc_is_right(header):
        raise _CorruptError("the length's CRC is wrong")
    return int.from_bytes(header[:8], "little")


def _record(rest: bytes, length: int) -> bytes:
    """Returns the record of `length` bytes that a footer follows."""
    if len(rest) < length + framing.FOOTER:
        raise _CorruptError(f"the file ends inside the record ({len(rest)} of {length + framing.FOOTER} bytes)")
    record = rest[:length]
    if crc32c.crc32c(record) != framing.unmask(int.from_bytes(rest[length:], "little")):
        raise _CorruptError("the record's CRC is wrong")
    return record


def _read(stream: IO[bytes], size: int) -> bytes:
    """Returns the next `size` bytes, fewer at the end of the file."""
    if size <= _CHUNK:
        return stream.read(size)
    chunks: list[bytes] = []
    while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _unpacked(raw: IO[bytes], packing: str, tap: Callable[[bytes], None] | None) -> IO[bytes]:
    if tap and packing == "zlib":
        raw = _Tapped(raw, tap)  # type: ignore[assignment]
    stream: IO[bytes] = io.BufferedReader(_Inflated(raw), _BUFFER) if packing else raw  # type: ignore[assignment]
    return _Tapped(stream, tap) if tap and packing != "zlib" else stream  # type: ignore[return-value]


class _Tapped:
    """A stream whose bytes somebody else gets too."""

    def __init__(self, stream: IO[bytes], tap: Callable[[bytes], None]) -> None:
        self._stream, self._tap = stream, tap

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._tap(data)
        return data


class _Inflated(io.RawIOBase):
    """The decompressed content of a stream of GZIP members or of ZLIB data."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__()
        self._raw = raw
        self._pending = b""
        self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a part of `buffer`: 0 bytes at the end.

        Raises:
          EOFError: the data is cut short.
          zlib.error: it is corrupt.
        """
        while True:
            if self._inflater.eof:  # of one member; another may follow
                self._pending = self._inflater.unused_data or self._raw.read(_BUFFER)
                if not self._pending:
                    return 0
                self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
            data = self._inflater.decompress(self._pending, len(buffer))
            self._pending = self._inflater.unconsumed_tail
            if data:
                buffer[: len(data)] = data
                return len(data)
            if not self._pending and not self._inflater.eof:
                self._pending = self._raw.read(_BUFFER)
                if not self._pending:
                    raise EOFError
