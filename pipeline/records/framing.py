"""The TFRecord container: `uint64 length, crc(length), record, crc(record)`, little-endian, masked CRC32C.

Format: tensorflow/core/lib/io/record_writer.h; mask: tensorflow/core/lib/hash/crc32c.h.

A walk yields the records from front to back with number and byte offset, and damaged ones with the fault. It needs
memory for a block and a record: the length in a damaged header costs no more than the bytes that the file has.
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
START = 4096  # bytes that `begins_file` looks at, as a GZIP header may hold a name and a comment
MAX_RECORD = 320 << 20  # 320 MiB, more than the largest image file: otherwise a few MB of GZIP could take all memory
_MASK_DELTA = 0xA282EAD8
_GZIP_MAGIC = b"\x1f\x8b"
Read: TypeAlias = Callable[[int], bytes]
_HEADER_STRUCT, _FOOTER_STRUCT = struct.Struct("<QI"), struct.Struct("<I")


def mask(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns CRCs in the masked form stored in the container, elementwise."""
    with np.errstate(over="ignore"):
        return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK_DELTA)


def masked_crc32c(data: bytes | memoryview) -> int:
    """Returns the masked CRC32C of `data`."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF  # `mask`, for one number


def frame(record: bytes) -> bytes:
    """Returns `record` with its header and footer."""
    return b"".join((header(len(record)), record, struct.pack("<I", masked_crc32c(record))))


def header(length: int) -> bytes:
    """Returns the header of a record of `length` bytes."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


class Kind(enum.Enum):
    """Kind of a frame's fault."""

    CUT_HEADER = enum.auto()
    CUT_RECORD = enum.auto()
    LENGTH = enum.auto()
    LENGTH_CRC = enum.auto()
    RECORD_CRC = enum.auto()
    TOO_LONG = enum.auto()
    COMPRESSION = enum.auto()


class Fault(NamedTuple):
    """A fault of a frame: its kind and description."""

    kind: Kind
    text: str


class Frame(NamedTuple):
    """A record in its frame.

    Attributes:
      number: number of the record in its file, from 0.
      offset, end: bounds of the frame in the file, bytes offset..end - 1, counted before compression.
      record: bytes of the record; None if they are damaged.
      fault: fault of the frame; None if there is none. The walk ended here if `end` equals `offset`.
      crc: masked CRC32C of the record, if it is correct.
    """

    number: int
    offset: int
    end: int
    record: bytes | None
    fault: Fault | None
    crc: int = 0

    def error(self, file: object, is_compressed: bool = False, advice: str = "") -> DataError:
        """Returns an error about the fault.

        Args:
          file: path of the file.
          is_compressed: whether the offset counts decompressed bytes.
          advice: advice on what to do; not used if the record is only too long, since the file is not damaged then.
        """
        assert self.fault is not None
        if self.fault.kind is Kind.TOO_LONG:
            advice = "a record of that size is not read: write it as several"
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
    """The position of the next record is unknown. Has the arguments of the fault."""


def walk(
    read: Read,
    size_of: Callable[[int, int], int | None] = lambda number, offset: None,
    number: int = 0,
    offset: int = 0,
) -> Iterator[Frame]:
    """Yields the frames of a file, continuing after a damaged one if the position of the next one is known.

    Args:
      read: function that returns the next bytes of the file, possibly more or fewer than requested; empty at the end.
      size_of: function that returns the size of a frame, given the number and offset of its record, or None. It is
        called if the CRC of a length is wrong; such a record is still yielded if its own CRC is correct.
      number, offset: number and offset of the first record, if reading begins inside a file.
    """
    data, start = b"", 0  # `start` is the position of `offset` in the data
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
                raise _EndError(
                    Kind.TOO_LONG, f"it has {length:,} bytes, above {MAX_RECORD:,} ({MAX_RECORD >> 20} MiB), the bound"
                )
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
    """Returns `rest` and the bytes after it, at least `size` in total; empty at the end of the file."""
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
    """Yields (byte offset, byte offset of the end, record) for every record of a file; see `walk`.

    Raises:
      DataError: a frame has a fault; the error has the file, the record's number and offset, and the advice.
    """
    for frame in walk(read, number=number, offset=offset):
        if frame.fault is not None:
            raise frame.error(file, is_compressed, advice)
        yield frame.offset, frame.end, frame.record  # type: ignore[misc]  # only faulty frames have no record


def check(frame: bytes | memoryview) -> Fault | None:
    """Returns the fault of bytes that should be exactly one framed record; None if there is none."""
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


def packing_of(start: bytes) -> str | None:
    """Returns the compression of a record file: "" for none, `GZIP` or `ZLIB`; None if it is not a record file.

    Args:
      start: first `HEADER` bytes of the file, or all bytes of a shorter one.
    """
    # Look for a whole header with its CRC first, because the length of a record may look like GZIP's magic.
    if not start or (len(start) == HEADER and claimed_length(start) is not None):
        return ""
    if start.startswith(_GZIP_MAGIC):
        return "GZIP"
    # RFC 1950: deflate, and the header's checksum.
    return "ZLIB" if start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0 else None


def begins_file(start: bytes) -> bool:
    """Returns whether a file that begins with these bytes, up to `START`, is a record file, compressed or not."""
    packing = packing_of(start[:HEADER])
    if packing:
        try:
            start = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(start, HEADER)  # 32: GZIP or ZLIB
        except zlib.error:
            return False
    return packing is not None and len(start) >= HEADER and claimed_length(start) is not None


def claimed_length(data: bytes | memoryview, start: int = 0) -> int | None:
    """Returns the length in a header; None if its CRC is wrong."""
    length, crc = _HEADER_STRUCT.unpack_from(data, start)
    return length if crc == _crc_of_length(length) else None


@functools.lru_cache(maxsize=1 << 16)
def _crc_of_length(length: int) -> int:
    return masked_crc32c(length.to_bytes(8, "little"))
