"""IDX, the format of MNIST's files: `0 0 type rank`, the sizes as big-endian uint32, then the bytes.

Format: the bottom of http://yann.lecun.com/exdb/mnist/. Only type 8 (unsigned byte) is read; these data sets use it.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from beam_jobs.sources import streams
from beam_jobs.sources.row_files import RowFile
from beam_jobs.storage.paths import LocalPath
from pipeline.commands.text import count_of
from pipeline.errors import DataError

_UINT8 = 0x08
MAX_BYTES = 16 << 30  # 16 GiB: a header with a larger size is damaged
MAX_PACKED = 2 << 30  # 2 GiB unpacked into the temporary folder: four times EMNIST's largest file


def open_file(path: LocalPath, name: str, rank: int) -> RowFile:
    """Opens a file of images (rank 3, or 4 with channels) or labels (1), gzip or not.

    Its header, its size and the CRC of gzip are checked.

    Args:
      path: the file.
      name: its name in keys and the manifest, without `.gz`.
      rank: of its array.

    Raises:
      DataError: it cannot be read, has another type or rank or no item, or is shorter or longer than its header says.
    """
    stamp = streams.stamp(path)
    handle = streams.open_plain(path)
    packed = streams.is_packed(handle)
    with streams.opened(path) as stream:
        header = stream.read(4 + 4 * rank)
        shape = _shape(header, rank, MAX_PACKED if packed else MAX_BYTES, path)
        size = math.prod(shape)
        if packed:
            handle.close()
            # One byte more than the header says: enough to notice a longer file, without unpacking a gzip bomb.
            handle = streams.spool(itertools.chain([header], streams.blocks(stream, size + 1)))
        found = streams.size(handle) - len(header)
        if found != size:
            text = "more" if found > size else str(found)
            hint = "it is not what its header says" if found > size else "it is cut short; get the file again"
            raise DataError(
                f"{path}: its header says {'x'.join(map(str, shape))} = {count_of(size, 'byte')}, it has {text}: {hint}"
            )
    unpack = functools.partial(open_file, path, name, rank) if packed else None
    file = RowFile(path, stamp, streams.describe(name, handle), shape, len(header), unpack)
    file.keep(handle)
    return file


def check_pair(images: RowFile, labels: RowFile) -> None:
    """Raises DataError where images and labels differ in number."""
    if images.shape[0] != labels.shape[0]:
        counts = count_of(images.shape[0], "image"), count_of(labels.shape[0], "label")
        raise DataError(f"{images.path} has {counts[0]}, but {labels.path} has {counts[1]}")


def _shape(header: bytes, rank: int, most: int, path: LocalPath) -> tuple[int, ...]:
    magic = bytes((0, 0, _UINT8, rank))
    if header[:4] != magic:
        found = f"0x{header[:4].hex()}" if header else "an empty file"
        kind = "labels" if rank == 1 else "images"
        raise DataError(f"{path}: begins with {found}, not 0x{magic.hex()}: not an IDX file of {kind}")
    if len(header) < 4 + 4 * rank:
        raise DataError(f"{path}: ends inside its header ({len(header)} of {4 + 4 * rank} bytes)")
    shape = tuple(np.frombuffer(header[4:], ">u4").tolist())
    if not 0 < math.prod(shape) <= most:
        raise DataError(f"{path}: its header says {'x'.join(map(str, shape))}; must be 1 to {most} values")
    return shape
