"""Reads a file of records once, front to back: every CRC, where the records lie, the CRC of the whole file."""

from __future__ import annotations

import array
import os
from collections.abc import Callable

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.manifest import ShardInfo, naming
from pipeline.manifest.storage import File, OpenFile
from pipeline.read import sidecars
from pipeline.records import members
from pipeline.records.framing import Frame, Kind, location, walk
from pipeline.records.stream import RecordStream, forward

_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_MEMBER = 16 << 20  # 16 MiB: to read a record, its member is decompressed


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
    name, begins = os.path.basename(file.path), np.frombuffer(offsets, np.uint64).astype(np.int64)
    lengths, firsts = np.diff(begins), _member_firsts(stream, begins) if compression else None
    is_even = (firsts is not None or not compression) and len(lengths) > 0 and bool((lengths == lengths[0]).all())
    beside = {}
    if len(lengths):
        beside[naming.crcs_name(name)] = np.frombuffer(crcs, np.uint32).astype(sidecars.CRCS).tobytes()
    if firsts is not None:
        at = [*(offset for offset, _ in stream.members), before.num_bytes]
        beside[naming.offsets_name(name)] = members.to_bytes(at, firsts, None if is_even else begins)
    elif len(lengths) and not compression and not is_even:
        beside[naming.offsets_name(name)] = begins.astype(sidecars.OFFSETS).tobytes()
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


def _member_firsts(stream: RecordStream, begins: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Returns the first record of each GZIP member, and the number of all; None where no record can be read alone.

    Args:
      stream: what has read the file to its end.
      begins: byte offset of each record in the decompressed file, and its size; (n + 1,).
    """
    member_begins = np.array([*(given for _, given in stream.members), begins[-1]], np.int64)
    firsts = np.searchsorted(begins, member_begins)
    records, sizes = np.diff(firsts), np.diff(member_begins)
    if stream.is_padded or not len(records) or not records.all() or (begins[firsts] != member_begins).any():
        return None
    return None if ((sizes > _LARGEST_MEMBER) & (records > 1)).any() else firsts


def _error(file: File, opened: OpenFile, frame: Frame, compression: str) -> DataError:
    assert frame.fault is not None
    is_start = frame.number == 0 and frame.fault.kind is Kind.LENGTH_CRC and not compression
    looks_packed = is_start and opened.read_at(0, len(_GZIP_MAGIC)) == _GZIP_MAGIC
    hint = "; the file looks compressed: give --compression=GZIP" if looks_packed else ""
    return DataError(f"{location(file, frame.number, frame.offset, bool(compression))}: {frame.fault.text}{hint}")
