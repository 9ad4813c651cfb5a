"""The TFRecord container: `uint64 length, crc(length), record, crc(record)`, little-endian, masked CRC32C.

Format: tensorflow/core/lib/io/record_writer.h; the mask is that of tensorflow/core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError

HEADER = 12  # bytes: length, crc of the length
FOOTER = 4  # bytes: crc of the record
MAX_RECORD = 320 << 20  # 320 MiB, more than the largest image file: else a few MB of GZIP could claim all memory
_MASK_DELTA = 0xA282EAD8


def mask(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns the masked CRC that the container stores, elementwise."""
    with np.errstate(over="ignore"):
        return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK_DELTA)


def unmask(stored: int) -> int:
    """Returns the CRC32C of a masked one: the inverse of `mask`, of one number."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


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


def records(data: bytes, file: str) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset, record) of every record of a shard's bytes, each checked.

    Raises:
      DataError: a cut record, a bad CRC of the length or of the record: with the file, the record's number, its offset.
    """
    offset, number = 0, 0
    while offset < len(data):
        where = f"{file}, record {number}, byte offset {offset}"
        if len(data) - offset < HEADER:
            raise DataError(f"{where}: the file ends inside a header ({len(data) - offset} of {HEADER} bytes)")
        length, length_crc = struct.unpack_from("<QI", data, offset)
        if masked_crc32c(data[offset : offset + 8]) != length_crc:
            raise DataError(f"{where}: the length's CRC is wrong; the file is corrupt, convert the data again")
        end = offset + HEADER + length
        if end + FOOTER > len(data):
            raise DataError(f"{where}: the file ends inside the record ({len(data)} of {end + FOOTER} bytes)")
        record = data[offset + HEADER : end]
        if masked_crc32c(record) != struct.unpack_from("<I", data, end)[0]:
            raise DataError(f"{where}: the record's CRC is wrong; the file is corrupt, convert the data again")
        yield offset, record
        offset, number = end + FOOTER, number + 1
