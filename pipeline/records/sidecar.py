"""The files beside a shard, one number per record: byte offsets where records differ in length, and CRCs."""

from __future__ import annotations

from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

OFFSETS, CRCS = np.dtype("<u8"), np.dtype("<u4")


def parse_offsets(data: bytes | memoryview, num_bytes: int, num_examples: int, crc: str) -> NDArray[np.int64]:
    """Returns the byte offset of each record and the shard's size: int64 (records + 1,).

    Args:
      data: what the file begins with, as much as it should have.
      num_bytes: of the file.
      num_examples: of the shard.
      crc: the CRC32C of `data` that the manifest has, 8 hexadecimal digits.

    Raises:
      ValueError: it is another file; the message says how it differs.
    """
    found = _parse(data, num_bytes, OFFSETS, num_examples + 1, crc, f"offsets of {num_examples} records")
    return found.astype(np.int64)


def parse_crcs(data: bytes | memoryview, num_bytes: int, num_examples: int, crc: str) -> NDArray[np.uint32]:
    """Returns the masked CRC32C of each record: uint32 (records,); takes and raises what `parse_offsets` does."""
    return _parse(data, num_bytes, CRCS, num_examples, crc, f"CRCs of {num_examples} records")


def _parse(
    data: bytes | memoryview, num_bytes: int, dtype: np.dtype[Any], count: int, crc: str, what: str
) -> NDArray[Any]:
    found = f"{crc32c.crc32c(data):08x}"
    if num_bytes != dtype.itemsize * count:
        raise ValueError(f"has {num_bytes} bytes, but the {what} take {dtype.itemsize * count}")
    if found != crc:
        raise ValueError(f"its CRC32C is {found}, but the manifest says {crc}")
    return np.frombuffer(data, dtype)
