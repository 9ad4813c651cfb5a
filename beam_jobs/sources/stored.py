"""The files behind a source, opened once a process, checked against what they were when the source was opened.

Rows are read by position and never mapped into memory, where the pages of a large source would count as the worker's.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from typing import IO

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import streams
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

_MOST_KEPT = 16  # open files a process: the four of MNIST, the six of CIFAR-10, and as many of another source
_SMALL_ROW = 256  # bytes; reading what lies between such rows is cheaper than a system call for each
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Stored:
    """One file of a source, as it was when the source was opened.

    Attributes:
      path: where it lies; of an archive's member, the archive's.
      file: its name in keys, its size and digest, decompressed.
      stamp: (bytes, modification time in ns) of `path`.
      packed: whether its rows are read from a temporary file and not from `path`.
    """

    path: str
    file: SourceFile
    stamp: tuple[int, int]
    packed: bool

    @property
    def where(self) -> str:
        """For errors: the path, and the name in it where it is another file's."""
        base = os.path.basename(self.path)
        return self.path if base in (self.file.file, f"{self.file.file}.gz") else f"{self.path}: {self.file.file}"

    @property
    def changed(self) -> DataError:
        """The error for a file that is not what it was."""
        return DataError(f"{self.where}: changed while it was being converted; run the conversion again")


@dataclasses.dataclass(frozen=True)
class _Kept:
    handle: IO[bytes]
    stamp: tuple[int, int]


_kept: dict[tuple[str, SourceFile], _Kept] = {}


def stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Returns (bytes, modification time in ns) of a file.

    Raises:
      DataError: it cannot be read.
    """
    with streams.errors_of(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns


def keep(stored: Stored, handle: IO[bytes]) -> None:
    """Keeps an open file for `rows_file`, so that the process which checked a source need not unpack it twice."""
    with _lock:
        _keep(stored.path, stored.file, _Kept(handle, stored.stamp))


def rows_file(stored: Stored, unpack: Callable[[], Mapping[SourceFile, IO[bytes]]]) -> IO[bytes]:
    """Returns the open file that the rows of `stored` are read from.

    Args:
      stored: the file.
      unpack: makes the temporary files of a packed one anew, and with it of whatever lies in the same archive.

    Raises:
      DataError: the content is no longer the same.
    """
    key = stored.path, stored.file
    with _lock:
        if stored.packed:
            if key not in _kept:  # what this process unpacked before and checked is right, whatever became of the path
                for file, handle in unpack().items():
                    _keep(stored.path, file, _Kept(handle, stored.stamp))
            if key not in _kept:
                raise stored.changed
        else:
            now = stamp(stored.path)
            if key not in _kept or _kept[key].stamp != now:
                handle = streams.open_plain(stored.path)
                # A copy on another machine, or a file that was only touched, has another time and the same content.
                if now != stored.stamp and streams.describe(stored.file.file, handle) != stored.file:
                    raise stored.changed
                _keep(stored.path, stored.file, _Kept(handle, now))
        return _kept[key].handle


def check_unchanged(stored: Stored) -> None:
    """Raises DataError where a plain file was changed since `rows_file` gave it: what was read in between is void."""
    with _lock:
        kept = _kept.get((stored.path, stored.file))
    if not stored.packed and kept is not None and kept.stamp != stamp(stored.path):
        raise stored.changed


def _keep(path: str, file: SourceFile, kept: _Kept) -> None:
    _kept.pop((path, file), None)
    while len(_kept) >= _MOST_KEPT:
        # Closed when the last reader lets go of it, which may be another thread.
        _kept.pop(next(iter(_kept)))
    _kept[path, file] = kept


def gather(
    handle: IO[bytes], start: int, rows: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64] | None = None
) -> bool:
    """Reads rows of equal length, in the order of their places in the file.

    Args:
      handle: the open file.
      start: the byte where row 0 begins.
      rows: int64 (n,).
      out: uint8 (m, bytes of a row), C-contiguous.
      at: int64 (n,), the row of `out` that each is written to; by default 0..n - 1.

    Returns:
      Whether all rows were there.
    """
    if not len(rows):
        return True
    order = np.argsort(rows)
    rows, at = rows[order], order if at is None else at[order]
    length = out.shape[1]
    if length < _SMALL_ROW:
        return _gather_spans(handle, start, rows, out, at)
    target = out.data.cast("B")
    views = [(target[place : place + length],) for place in (at * length).tolist()]
    places = (start + rows * length).tolist()
    return sum(map(os.preadv, itertools.repeat(handle.fileno(), len(rows)), views, places)) == len(rows) * length


def _gather_spans(
    handle: IO[bytes], start: int, rows: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64]
) -> bool:
    """Reads ascending rows that are too short for a system call each, with what lies between them."""
    length = out.shape[1]
    cuts = np.flatnonzero(np.diff(rows // (streams.BLOCK // length))) + 1
    for part in np.split(np.arange(len(rows)), cuts):
        first, last = int(rows[part[0]]), int(rows[part[-1]])
        data = os.pread(handle.fileno(), (last + 1 - first) * length, start + first * length)
        if len(data) != (last + 1 - first) * length:
            return False
        out[at[part]] = np.frombuffer(data, np.uint8).reshape(-1, length)[rows[part] - first]
    return True
