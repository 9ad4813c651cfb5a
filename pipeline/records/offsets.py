"""The file of offsets beside a shard whose records differ in length: where each record begins, and the file's end."""

from __future__ import annotations

import crc32c
import numpy as np
from numpy.typing import NDArray


def parse(data: bytes | memoryview, num_bytes: int, num_examples: int, crc: str) -> NDArray[np.int64]:
    """Returns the byte offset of each record and the shard's size: int64 (records + 1,).

    Args:
      data: what the file begins with, as much as it should have: uint64, little-endian.
      num_bytes: of the file.
      num_examples: of the shard.
      crc: the CRC32C of `data` that the manifest has, 8 hexadecimal digits.

    Raises:
      ValueError: it is another file; the message says how it differs.
    """
    size, found = 8 * (num_examples + 1), f"{crc32c.crc32c(data):08x}"
    if num_bytes != size:
        raise ValueError(f"has {num_bytes} bytes, but the offsets of {num_examples} records take {size}")
    if found != crc:
        raise ValueError(f"its CRC32C is {found}, but the manifest says {crc}")
    return np.frombuffer(data, "<u8").astype(np.int64)
