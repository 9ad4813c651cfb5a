"""The TFRecord container: `uint64 length, crc(length), record, crc(record)`, little-endian, masked CRC32C.

Format: tensorflow/core/lib/io/record_writer.h; the mask is that of tensorflow/core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import struct

import crc32c
import numpy as np
from numpy.typing import NDArray

HEADER = 12  # bytes: length, crc of the length
FOOTER = 4  # bytes: crc of the record
OVERHEAD = HEADER + FOOTER
MAX_RECORD = 320 << 20  # 320 MiB, more than the largest image file: else a few MB of GZIP could claim all memory
_MASK_DELTA = 0xA282EAD8


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
