"""Files of records, read once to the end; and files beside them, which get their names together.

A run that is killed before that leaves only a hidden folder.
"""

from __future__ import annotations

import array
import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, named
from pipeline.files.paths import StoragePath
from pipeline.files.reading import OpenFile
from pipeline.files.write import sync
from pipeline.manifest import ShardInfo, naming
from pipeline.read import sidecars
from pipeline.records import members
from pipeline.records.framing import Frame, Kind, walk
from pipeline.records.stream import RecordStream, forward

_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_MEMBER = 16 << 20  # 16 MiB: to read a record, its member is decompressed
_PREFIX = ".pipeline.index-"


def scan(file: StoragePath, compression: str, on_bytes: Callable[[int], None]) -> tuple[ShardInfo, dict[str, bytes]]:
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
    with file.open_file() as opened:
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
        raise DataError("changed while it was being read", path=file, advice="stop what writes there and start again")
    name, begins = file.name, np.frombuffer(offsets, np.uint64).astype(np.int64)
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


def _error(file: StoragePath, opened: OpenFile, frame: Frame, compression: str) -> DataError:
    assert frame.fault is not None
    is_start = frame.number == 0 and frame.fault.kind is Kind.LENGTH_CRC and not compression
    looks_packed = is_start and opened.read_at(0, len(_GZIP_MAGIC)) == _GZIP_MAGIC
    advice = "the file looks compressed: give --compression=GZIP" if looks_packed else ""
    return frame.error(file, bool(compression), advice)


class Drafts:
    """Files that are written but not yet in their folder. Several threads may add some."""

    def __init__(self, folder: pathlib.Path, hidden: pathlib.Path) -> None:
        """Takes the folder they are for, and the hidden one in it that holds them."""
        self._folder, self._hidden = folder, hidden

    def add(self, name: str, data: bytes) -> None:
        """Writes a file.

        Raises:
          DataError: it cannot be written.
        """
        path = self._hidden / name
        with named(self._folder / name, "cannot be written"):
            path.parent.mkdir(exist_ok=True)
        with named(self._folder / name, "cannot be written"), open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Moves the files into their folder, the manifest last; if that fails, removes those that are new.

        Raises:
          DataError: a file cannot be moved.
        """
        found = [path.relative_to(self._hidden) for path in self._hidden.rglob("*") if path.is_file()]
        names = sorted(found, key=lambda name: (name.name == naming.MANIFEST, name))
        folders = {self._folder / name.parent for name in names}
        new = [self._folder / name for name in names if not (self._folder / name).exists()]
        new_folders = [path for path in folders if not path.exists()]
        try:
            for path in folders:
                with named(path, "cannot be made"):
                    path.mkdir(exist_ok=True)
            for name in names:
                with named(self._folder / name, "cannot be written"):
                    if name.name == naming.MANIFEST:
                        for path in folders:
                            sync(path)
                    os.replace(self._hidden / name, self._folder / name)
        except BaseException:
            for path in new:
                path.unlink(missing_ok=True)
            for path in new_folders:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise
        sync(self._folder)


@contextlib.contextmanager
def drafts_in(folder: pathlib.Path) -> Iterator[Drafts]:
    """Context for the drafts of a folder; its end removes what was not published, also by runs that were killed.

    Raises:
      DataError: the folder cannot be written to.
    """
    with named(folder, "cannot be written to"):
        hidden = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        yield Drafts(folder, hidden)
    finally:
        for path in folder.glob(f"{_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
