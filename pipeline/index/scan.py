"""Reads a file of records once, front to back: every CRC, where the records lie, the CRC of the whole file."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.manifest.storage import File, OpenFile
from pipeline.records.stream import RecordStream, forward
from pipeline.records.walk import Frame, Kind, location, walk

_GZIP_MAGIC = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned:
    """What is in a file.

    Attributes:
      num_bytes: its size.
      crc32c: of all its bytes as they are stored, 8 hexadecimal digits.
      offsets: of each record and of the end, before compression: uint64 (records + 1,).
    """

    num_bytes: int
    crc32c: str
    offsets: NDArray[np.uint64]

    @property
    def num_examples(self) -> int:
        """Records."""
        return len(self.offsets) - 1

    @property
    def stride(self) -> int | None:
        """Bytes from one record to the next, where all are of one length; None without records."""
        lengths = np.diff(self.offsets)
        return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else None


def scan(file: File, compression: str, on_bytes: Callable[[int], None]) -> Scanned:
    """Reads a file.

    Args:
      file: of records.
      compression: `GZIP` or none.
      on_bytes: is told how many bytes were read, again and again; what it raises ends the reading.

    Raises:
      DataError: it cannot be read, or a record is cut or corrupt: with its number and byte offset.
    """
    before = file.identity()
    offsets = array.array("Q", [0])
    with file.open() as opened:
        read = forward(opened)

        def counted(size: int) -> memoryview:
            data = read(size)
            on_bytes(len(data))
            return data

        stream = RecordStream(counted, compression)
        for frame in walk(stream.read):
            if frame.fault is not None:
                raise _error(file, opened, frame, compression)
            offsets.append(frame.end)
    if file.identity() != before:
        raise DataError(f"{file}: changed while it was being read; stop what writes there and start again")
    return Scanned(before.num_bytes, f"{stream.crc:08x}", np.frombuffer(offsets, np.uint64))


def _error(file: File, opened: OpenFile, frame: Frame, compression: str) -> DataError:
    assert frame.fault is not None
    is_start = frame.number == 0 and frame.fault.kind is Kind.LENGTH_CRC and not compression
    looks_packed = is_start and opened.read_at(0, len(_GZIP_MAGIC)) == _GZIP_MAGIC
    hint = "; the file looks compressed: give --compression=GZIP" if looks_packed else ""
    return DataError(f"{location(file, frame.number, frame.offset, bool(compression))}: {frame.fault.text}{hint}")
