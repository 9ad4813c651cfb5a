"""IDX, the format of MNIST's files: `0 0 type rank`, the sizes as big-endian uint32, then the bytes.

Format: the bottom of http://yann.lecun.com/exdb/mnist/. Only type 8 (unsigned byte), the one that these data sets use.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from typing import IO

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import row_files, streams
from beam_jobs.sources.row_files import RowFile
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

_UINT8 = 0x08
MAX_BYTES = 16 << 30  # 16 GiB: a size above it in a header is damage, not data
MAX_PACKED = 2 << 30  # 2 GiB: four times EMNIST's largest, for what is unpacked into the temporary folder


@dataclasses.dataclass(frozen=True)
class IdxFile:
    """An IDX file whose header was checked against its size.

    Attributes:
      stored: the file.
      shape: (items, ...), all the bytes after the header.
    """

    stored: RowFile
    shape: tuple[int, ...]

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns items, uint8 (n, ...), in the order asked for.

        Raises:
          DataError: the file changed since it was opened, or cannot be read.
        """
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        with self.stored.opened(self._unpack) as handle:
            row_files.gather(handle, self._start, rows, out.reshape(len(rows), math.prod(self.shape[1:])))
        return out

    def check_range(self, low: int, high: int) -> None:
        """Checks that all bytes are in low..high.

        Raises:
          DataError: one is not; the first is named.
        """
        row = 0
        with self.stored.opened(self._unpack) as handle:
            for block in streams.scan(handle, self._start, self._start + math.prod(self.shape)):
                values = np.frombuffer(block, np.uint8)
                if values.min() < low or values.max() > high:
                    at = int(np.argmax((values < low) | (values > high)))
                    raise DataError(f"{self.stored.path}: row {row + at}: label {values[at]} is not in {low}..{high}")
                row += len(values)

    @property
    def _start(self) -> int:
        return 4 + 4 * len(self.shape)

    def _unpack(self) -> dict[SourceFile, IO[bytes]]:
        again, handle = _open(self.stored.path, self.stored.file.file, len(self.shape))
        return {again.stored.file: handle}


def open_file(path: LocalPath, name: str, rank: int) -> IdxFile:
    """Opens a file of images (rank 3) or labels (1), gzip or not; checks its header, its size and, of gzip, its CRC.

    The file's name in keys and the manifest is `name`, without `.gz`.

    Raises:
      DataError: unreadable, another type or rank, no item, or shorter or longer than its header says.
    """
    opened, handle = _open(path, name, rank)
    opened.stored.keep(handle)
    return opened


def _open(path: LocalPath, name: str, rank: int) -> tuple[IdxFile, IO[bytes]]:
    stamp = streams.stamp(path)
    handle = streams.open_plain(path)
    packed = streams.is_packed(handle)
    with streams.opened(path) as stream:
        header = stream.read(4 + 4 * rank)
        shape = _shape(header, rank, MAX_PACKED if packed else MAX_BYTES, path)
        size = math.prod(shape)
        if packed:
            handle.close()
            # One byte more than the header says, so that a longer file is seen and a gzip bomb is not unpacked.
            handle = streams.spool(itertools.chain([header], streams.blocks(stream, size + 1)))
    found = streams.size(handle) - len(header)
    if found != size:
        text = "more" if found > size else str(found)
        hint = "it is not what its header says" if found > size else "it is cut short; get the file again"
        raise DataError(f"{path}: its header says {'x'.join(map(str, shape))} = {size} bytes, it has {text}: {hint}")
    return IdxFile(RowFile(path, streams.describe(name, handle), stamp, packed), shape), handle


def _shape(header: bytes, rank: int, most: int, path: LocalPath) -> tuple[int, ...]:
    magic = _UINT8 << 8 | rank
    if len(header) < 4 or struct.unpack(">I", header[:4])[0] != magic:
        found = f"0x{header[:4].hex()}" if header else "an empty file"
        kind = "images" if rank == 3 else "labels"
        raise DataError(f"{path}: begins with {found}, not 0x{magic:08x}: not an IDX file of {kind}")
    if len(header) < 4 + 4 * rank:
        raise DataError(f"{path}: ends inside its header ({len(header)} of {4 + 4 * rank} bytes)")
    shape = struct.unpack(f">{rank}I", header[4:])
    if not all(shape) or math.prod(shape) > most:
        text = "x".join(map(str, shape))
        raise DataError(f"{path}: its header says {text} values; must be 1 to {most}")
    return shape
