"""IDX, the format of MNIST's files: `0 0 type rank`, the sizes as big-endian uint32, then the bytes.

Format: the bottom of http://yann.lecun.com/exdb/mnist/. Only type 8 (unsigned byte), the one that these data sets use.
"""

from __future__ import annotations

import math
import pathlib
import struct

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import content
from pipeline.errors import DataError

_UINT8 = 0x08
MAX_BYTES = 16 << 30  # 16 GiB: a size above it in a header is damage, not data


def header_size(rank: int) -> int:
    """Returns the bytes before the values."""
    return 4 + 4 * rank


def read(path: pathlib.Path, rank: int) -> bytes:
    """Returns a whole file, decompressed and checked: `array` gives its values.

    Raises:
      DataError: unreadable, another type or rank, no item, or shorter or longer than its header says.
    """
    with content.opened(path) as stream:
        header = stream.read(header_size(rank))
        shape = _shape(header, rank, path)
        size = math.prod(shape)
        # One byte more than the header says, so that a longer file is seen and a gzip bomb is not unpacked.
        values = content.read_at_most(stream, size + 1)
    if len(values) != size:
        found = "more" if len(values) > size else str(len(values))
        hint = "it is not what its header says" if len(values) > size else "it is cut short; get the file again"
        raise DataError(f"{path}: its header says {'x'.join(map(str, shape))} = {size} bytes, it has {found}: {hint}")
    return header + values


def array(data: bytes, rank: int) -> NDArray[np.uint8]:
    """Returns the values of a checked file: uint8, of the header's shape, read-only, without a copy."""
    shape = struct.unpack(f">{rank}I", data[4 : header_size(rank)])
    return np.frombuffer(data, np.uint8, offset=header_size(rank)).reshape(shape)


def _shape(header: bytes, rank: int, path: pathlib.Path) -> tuple[int, ...]:
    magic = _UINT8 << 8 | rank
    if len(header) < 4 or struct.unpack(">I", header[:4])[0] != magic:
        found = f"0x{header[:4].hex()}" if header else "an empty file"
        kind = "images" if rank == 3 else "labels"
        raise DataError(f"{path}: begins with {found}, not 0x{magic:08x}: no IDX file of {kind}")
    if len(header) < header_size(rank):
        raise DataError(f"{path}: ends inside its header ({len(header)} of {header_size(rank)} bytes)")
    shape = struct.unpack(f">{rank}I", header[4:])
    if not all(shape) or math.prod(shape) > MAX_BYTES:
        text = "x".join(map(str, shape))
        raise DataError(f"{path}: its header says {text} values; must be 1 to {MAX_BYTES}")
    return shape
