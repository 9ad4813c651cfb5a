"""Reads a file of records once, front to back: every CRC, where the records lie, the CRC of the whole file."""

from __future__ import annotations

import array
import os
from collections.abc import Callable

import crc32c
import numpy as np

from pipeline.errors import DataError
from pipeline.manifest import ShardInfo, naming
from pipeline.manifest.storage import File, OpenFile
from pipeline.records import sidecar
from pipeline.records.stream import RecordStream, forward
from pipeline.records.walk import Frame, Kind, location, walk

_GZIP_MAGIC = b"\x1f\x8b"


def scan(file: File, compression: str, on_bytes: Callable[[int], None]) -> tuple[ShardInfo, dict[str, bytes]]:
    """Returns what the manifest says of a file, and the files beside it: {base name: content}.

    Args:
      file: of records.
      compression: `GZIP` or none.
      on_bytes: is called with the number of bytes after each read; what it raises ends the scan.

    Raises:
      DataError: it cannot be read, or a record is cut or corrupt: with its number and byte offset.
    """
    before = file.identity()
    offsets, crcs = array.array("Q", [0]), array.array("I")
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
            crcs.append(frame.crc)
    if file.identity() != before:
        raise DataError(f"{file}: changed while it was being read; stop what writes there and start again")
    name, lengths = os.path.basename(file.path), np.diff(np.frombuffer(offsets, np.uint64))
    is_even = not compression and len(lengths) > 0 and bool((lengths == lengths[0]).all())
    beside = {}
    if len(lengths):
        beside[naming.crcs_name(name)] = np.frombuffer(crcs, np.uint32).astype(sidecar.CRCS).tobytes()
    if len(lengths) and not compression and not is_even:
        beside[naming.offsets_name(name)] = np.frombuffer(offsets, np.uint64).astype(sidecar.OFFSETS).tobytes()
    of_beside = {name: f"{crc32c.crc32c(data):08x}" for name, data in beside.items()}
    info = ShardInfo(
        name,
        len(lengths),
        before.num_bytes,
        f"{stream.crc:08x}",
        int(lengths[0]) if is_even else None,
        of_beside.get(naming.offsets_name(name)),
        crcs_crc32c=of_beside.get(naming.crcs_name(name)),
    )
    return info, beside


def _error(file: File, opened: OpenFile, frame: Frame, compression: str) -> DataError:
    assert frame.fault is not None
    is_start = frame.number == 0 and frame.fault.kind is Kind.LENGTH_CRC and not compression
    looks_packed = is_start and opened.read_at(0, len(_GZIP_MAGIC)) == _GZIP_MAGIC
    hint = "; the file looks compressed: give --compression=GZIP" if looks_packed else ""
    return DataError(f"{location(file, frame.number, frame.offset, bool(compression))}: {frame.fault.text}{hint}")
