"""The TFRecord container: `uint64 length, crc(length), record, crc(record)`, little-endian, masked CRC32C.

Format: tensorflow/core/lib/io/record_writer.h; the mask is that of tensorflow/core/lib/hash/crc32c.h.

A walk gives each record front to back, or what is wrong with it, with its number and byte offset. Its memory is a
block and a record: a length that a damaged header claims costs only the bytes that the file really has.
"""

from __future__ import annotations

import enum
import functools
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError

HEADER = 12  # bytes: length, crc of the length
FOOTER = 4  # bytes: crc of the record
OVERHEAD = HEADER + FOOTER
MAX_RECORD = 320 << 20  # 320 MiB, more than the largest image file: else a few MB of GZIP could claim all memory
_MASK_DELTA = 0xA282EAD8
Read: TypeAlias = Callable[[int], bytes]
_HEADER_STRUCT, _FOOTER_STRUCT = struct.Struct("<QI"), struct.Struct("<I")


def mask(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns the masked CRC that the container stores, elementwise."""
    with np.errstate(over="ignore"):
        return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK_DELTA)


def masked_crc32c(data: bytes | memoryview) -> int:
    """Returns the masked CRC32C of `data`."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF  # as `mask`, of one number


def frame(record: bytes) -> bytes:
    """Returns `record` with its header and footer."""
    return b"".join((header(len(record)), record, struct.pack("<I", masked_crc32c(record))))


def header(length: int) -> bytes:
    """Returns what stands before a record of `length` bytes."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


class Kind(enum.Enum):
    """What can be wrong with a frame."""

    CUT_HEADER = enum.auto()
    CUT_RECORD = enum.auto()
    LENGTH = enum.auto()
    LENGTH_CRC = enum.auto()
    RECORD_CRC = enum.auto()
    TOO_LONG = enum.auto()
    COMPRESSION = enum.auto()


class Fault(NamedTuple):
    """One kind of fault, and the words for it."""

    kind: Kind
    text: str


class Frame(NamedTuple):
    """A record in its frame.

    Attributes:
      number: of the record in its file, from 0.
      offset, end: the frame takes bytes offset..end - 1 of the file, counted before compression.
      record: its bytes; None where they are not the ones that were written.
      fault: None where nothing is wrong. If `end` equals `offset`, the walk ended here.
      crc: the record's masked CRC32C, where it is right.
    """

    number: int
    offset: int
    end: int
    record: bytes | None
    fault: Fault | None
    crc: int = 0

    def error(self, file: object, is_compressed: bool = False, advice: str = "") -> DataError:
        """Returns the error for its fault: `file` is where it is, the advice what to do."""
        assert self.fault is not None
        return DataError(
            self.fault.text,
            path=file,
            record=self.number,
            offset=self.offset,
            decompressed=is_compressed,
            advice=advice,
        )


_RECORD_FAULT = Fault(Kind.RECORD_CRC, "the record's CRC is wrong")


class _EndError(Exception):
    """The place of the next record is unknown. Its arguments are those of the fault."""


def walk(
    read: Read,
    size_of: Callable[[int, int], int | None] = lambda number, offset: None,
    number: int = 0,
    offset: int = 0,
) -> Iterator[Frame]:
    """Yields the frames of a file, past damaged ones while something tells where the next one begins.

    Args:
      read: returns the next bytes of the file, some more or fewer than it is asked for; none at the end.
      size_of: returns how many bytes the frame of a record at an offset must take, or None. It is asked where the CRC
        of a length is wrong; such a record is still given if its own CRC is right.
      number, offset: of the first record, where reading begins inside a file.
    """
    data, start = b"", 0  # the bytes from `offset` on begin at `start`
    while True:
        try:
            if len(data) - start < HEADER:
                data, start = _more(read, data[start:], HEADER, Kind.CUT_HEADER), 0
                if not data:
                    return
            length, fault = claimed_length(data, start), None
            if length is None:
                fault = Fault(Kind.LENGTH_CRC, "the CRC of its length is wrong")
                length = (size_of(number, offset) or 0) - OVERHEAD
                if length < 0:
                    raise _EndError(*fault)
            if length > MAX_RECORD:
                raise _EndError(Kind.TOO_LONG, f"it has {length} bytes; at most {MAX_RECORD} are read")
            size = length + OVERHEAD
            if len(data) - start < size:
                data, start = _more(read, data[start:], size, Kind.CUT_RECORD), 0
        except _EndError as error:
            yield Frame(number, offset, offset, None, Fault(*error.args))
            return
        stop = start + HEADER + length
        record = data[start + HEADER : stop]
        crc = masked_crc32c(record)
        if crc == _FOOTER_STRUCT.unpack_from(data, stop)[0]:
            yield Frame(number, offset, offset + size, record, fault, crc)
        else:
            fault = fault._replace(text=f"{fault.text}; so is its own") if fault else _RECORD_FAULT
            yield Frame(number, offset, offset + size, None, fault)
        number, offset, start = number + 1, offset + size, start + size


def _more(read: Read, rest: bytes, size: int, cut: Kind) -> bytes:
    """Returns `rest` and what follows it, `size` bytes at least; nothing at the end of the file."""
    pieces, has = [rest], len(rest)
    try:
        while has < size and (block := read(size - has)):
            pieces.append(block)
            has += len(block)
    except (EOFError, zlib.error) as error:
        raise _EndError(Kind.COMPRESSION, f"cannot be decompressed: {error}") from None
    if 0 < has < size:
        what = "a header" if cut is Kind.CUT_HEADER else "the record"
        raise _EndError(cut, f"the file ends inside {what} ({has} of {size} bytes)")
    return b"".join(pieces)


def records(
    read: Read, file: object, *, is_compressed: bool = False, advice: str = "", number: int = 0, offset: int = 0
) -> Iterator[tuple[int, int, bytes]]:
    """Yields (byte offset, byte offset of its end, record) of every record of a file.

    Args:
      read, number, offset: as `walk` takes them.
      file, is_compressed: for the error.
      advice: what the error ends with.

    Raises:
      DataError: of the first fault: with the file, the record's number, its offset, and the advice.
    """
    for frame in walk(read, number=number, offset=offset):
        if frame.fault is not None:
            raise frame.error(file, is_compressed, advice)
        yield frame.offset, frame.end, frame.record  # type: ignore[misc]  # only a faulty frame has no record


def check(frame: bytes | memoryview) -> Fault | None:
    """Returns what is wrong with the bytes that should be exactly one framed record."""
    expected = len(frame) - OVERHEAD
    if expected < 0:
        return Fault(Kind.LENGTH, f"it takes {len(frame)} bytes, fewer than a frame")
    length = claimed_length(frame)
    if length is None:
        return Fault(Kind.LENGTH_CRC, "the CRC of its length is wrong")
    if length != expected:
        return Fault(Kind.LENGTH, f"it has {length} bytes, but {expected} lie between its offset and the next")
    crc = masked_crc32c(frame[HEADER:-FOOTER])
    if crc != _FOOTER_STRUCT.unpack_from(frame, len(frame) - FOOTER)[0]:
        return _RECORD_FAULT
    return None


def claimed_length(data: bytes | memoryview, start: int = 0) -> int | None:
    """Returns the length that a header claims; None where its CRC is wrong."""
    length, crc = _HEADER_STRUCT.unpack_from(data, start)
    return length if crc == _crc_of_length(length) else None


@functools.lru_cache(maxsize=1 << 16)
def _crc_of_length(length: int) -> int:
    return masked_crc32c(length.to_bytes(8, "little"))
