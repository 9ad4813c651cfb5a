"""Files of rows of equal length: opened once per process, checked against what they were when the source was opened.

Rows are read by position and never mapped into memory, where the pages of a large source would count as the worker's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import streams
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

_MOST_KEPT = 16  # open files per process: the four of MNIST, the six of CIFAR-10, and as many of another source
_SMALL_ROW = 256  # bytes; reading what lies between such rows is cheaper than a system call for each
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class RowFile:
    """One file of a source, as it was when the source was opened.

    Attributes:
      path: where it lies; of an archive's member, the archive's.
      file: its name in keys, its size and digest, decompressed.
      stamp: (bytes, modification time in ns) of `path`.
      packed: whether its rows are read from a temporary file and not from `path`.
    """

    path: LocalPath
    file: SourceFile
    stamp: tuple[int, int]
    packed: bool

    @property
    def where(self) -> str:
        """For errors: the path, and the name in it where it is another file's."""
        names = self.file.file, f"{self.file.file}.gz"
        return str(self.path) if self.path.name in names else f"{self.path}: {self.file.file}"

    def keep(self, handle: IO[bytes]) -> None:
        """Keeps the open file, so that the process which checked a source need not unpack it twice."""
        with _lock:
            self._keep(self.file, handle, self.stamp)

    @contextlib.contextmanager
    def opened(self, unpack: Callable[[], Mapping[SourceFile, IO[bytes]]]) -> Iterator[IO[bytes]]:
        """Yields the open file that the rows are read from.

        Args:
          unpack: makes the temporary files of a packed one anew, and with it of whatever lies in the same archive.

        Raises:
          DataError: it changed since the source was opened, or changes meanwhile: what was read then is void.
        """
        with _lock:
            handle, before = self._packed(unpack) if self.packed else self._plain()
        with streams.errors_of(self.path):
            try:
                yield handle
            except EOFError:
                raise self._changed from None
        if not self.packed and streams.stamp(self.path) != before:
            raise self._changed

    def _packed(self, unpack: Callable[[], Mapping[SourceFile, IO[bytes]]]) -> tuple[IO[bytes], tuple[int, int]]:
        key = self.path, self.file
        if key not in _kept:  # what this process unpacked before and checked is right, whatever became of the path
            for file, handle in unpack().items():
                self._keep(file, handle, self.stamp)
        if key not in _kept:
            raise self._changed
        return _kept[key]

    def _plain(self) -> tuple[IO[bytes], tuple[int, int]]:
        key, now = (self.path, self.file), streams.stamp(self.path)
        if key not in _kept or _kept[key][1] != now:
            handle = streams.open_plain(self.path)
            # A copy on another machine, or a file that was only touched, has another time and the same content.
            if now != self.stamp and streams.describe(self.file.file, handle) != self.file:
                raise self._changed
            self._keep(self.file, handle, now)
        return _kept[key]

    def _keep(self, file: SourceFile, handle: IO[bytes], stamp: tuple[int, int]) -> None:
        _kept.pop((self.path, file), None)
        while len(_kept) >= _MOST_KEPT:
            # Closed when its last reader is done, which may be another thread.
            _kept.pop(next(iter(_kept)))
        _kept[self.path, file] = handle, stamp

    @property
    def _changed(self) -> DataError:
        return DataError(f"{self.where}: changed while it was being converted; run the conversion again")


_kept: dict[tuple[LocalPath, SourceFile], tuple[IO[bytes], tuple[int, int]]] = {}


def gather(
    handle: IO[bytes], start: int, rows: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64] | None = None
) -> None:
    """Reads rows of equal length, in the order in which they lie in the file.

    Args:
      handle: the open file.
      start: the byte where row 0 begins.
      rows: int64 (n,).
      out: uint8 (m, bytes of a row), C-contiguous.
      at: int64 (n,), the row of `out` that each is written to; by default 0..n - 1.

    Raises:
      EOFError: the file ends before them.
    """
    if not len(rows):
        return
    order = np.argsort(rows)
    rows, at = rows[order], order if at is None else at[order]
    length = out.shape[1]
    if length < _SMALL_ROW:
        _gather_spans(handle, start, rows, out, at)
        return
    target = out.data.cast("B")
    views = [(target[begin : begin + length],) for begin in (at * length).tolist()]
    offsets = (start + rows * length).tolist()
    if sum(map(os.preadv, itertools.repeat(handle.fileno(), len(rows)), views, offsets)) != len(rows) * length:
        raise EOFError


def _gather_spans(
    handle: IO[bytes], start: int, rows: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64]
) -> None:
    """Reads ascending rows that are too short for a system call each, with what lies between them."""
    length = out.shape[1]
    cuts = np.flatnonzero(np.diff(rows // (streams.BLOCK // length))) + 1
    for part in np.split(np.arange(len(rows)), cuts):
        first, last = int(rows[part[0]]), int(rows[part[-1]])
        data = os.pread(handle.fileno(), (last + 1 - first) * length, start + first * length)
        if len(data) != (last + 1 - first) * length:
            raise EOFError
        out[at[part]] = np.frombuffer(data, np.uint8).reshape(-1, length)[rows[part] - first]
