"""Files of equally long rows, opened once per process and checked for changes since the source was opened.

Rows are read by position rather than mapped into memory, where the pages of a large source would count as the worker's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import streams
from beam_jobs.sources.streams import KnownFile
from pipeline.errors import DataError
from pipeline.files.paths import StoragePath
from pipeline.manifest import SourceFile

_MOST_KEPT = 16  # open files per process: MNIST's four, CIFAR-10's six, and as many of another source
_SMALL_ROW = 256  # bytes; reading the gaps between such rows is cheaper than a system call for each row
_lock = threading.RLock()  # reentrant, as `unpack` calls `keep`


@dataclasses.dataclass(frozen=True)
class RowFile(KnownFile):
    """One file of a source; `path` is the archive if the file is a member of one.

    Attributes:
      file: name in keys, size and digest of the file, decompressed.
      shape: (rows, ...) of its uint8 values.
      start: byte where the values begin.
      unpack: function that unpacks all files of the same archive to temporary files and keeps them open (see `keep`);
        None if rows are read from `path` itself.
    """

    file: SourceFile
    shape: tuple[int, ...]
    start: int = 0
    unpack: Callable[[], object] | None = None

    @property
    def where(self) -> str:
        """The path, with the name of an archive's member, for errors."""
        names = self.file.file, f"{self.file.file}.gz"
        return str(self.path) if self.path.name in names else f"{self.path}: {self.file.file}"

    def keep(self, handle: IO[bytes], stamp: tuple[int, int] | None = None) -> None:
        """Keeps a file open for reading rows, so that this process need not open or unpack it again."""
        with _lock:
            _kept.pop((self.path, self.file), None)
            while len(_kept) >= _MOST_KEPT:
                # It is closed when its last reader, perhaps in another thread, is done.
                _kept.pop(next(iter(_kept)))
            _kept[self.path, self.file] = handle, stamp or self.stamp

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Yields the open file to read rows from.

        Raises:
          DataError: the file changed after the source was opened, or while it was read.
        """
        with _lock:
            handle, before = self._unpacked() if self.unpack else self._plain()
        with streams.errors_of(self.path):
            try:
                yield handle
            except EOFError:
                raise streams.changed(self.where) from None
        # Checked again after reading; unpacked files cannot have changed.
        if not self.unpack and streams.stamp(self.path) != before:
            raise streams.changed(self.where)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns rows, uint8 (n, ...), in the requested order; raises errors like `opened`."""
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        with self.opened() as handle:
            gather(handle, self.start, rows, out.reshape(len(rows), math.prod(self.shape[1:])))
        return out

    def check_labels(self, bounds: Sequence[tuple[str, int, int]]) -> None:
        """Raises DataError for the first label that is out of bounds, like `with_labels_checked`."""
        with self.opened() as handle:
            for _ in with_labels_checked(handle, self.where, self.start, self.shape, bounds):
                pass

    def highest(self) -> int:
        """Returns the highest value in the file."""
        with self.opened() as handle:
            blocks = streams.scan(handle, self.start, self.start + math.prod(self.shape))
            return max(int(np.frombuffer(block, np.uint8).max()) for block in blocks)

    def _unpacked(self) -> tuple[IO[bytes], tuple[int, int]]:
        if (self.path, self.file) not in _kept and self.unpack:
            self.unpack()
        if (self.path, self.file) not in _kept:
            raise streams.changed(self.where)
        return _kept[self.path, self.file]  # unpacked files stay valid, whatever happened to the path

    def _plain(self) -> tuple[IO[bytes], tuple[int, int]]:
        key, now = (self.path, self.file), streams.stamp(self.path)
        if key not in _kept or _kept[key][1] != now:
            handle = streams.open_plain(self.path)
            # A copy on another machine, or a touched file, has another time but the same content.
            if now != self.stamp and streams.entry_of(self.file.file, handle) != self.file:
                raise streams.changed(self.where)
            self.keep(handle, now)
        return _kept[key]


_kept: dict[tuple[StoragePath, SourceFile], tuple[IO[bytes], tuple[int, int]]] = {}


def with_labels_checked(
    handle: IO[bytes], where: str, start: int, shape: Sequence[int], bounds: Sequence[tuple[str, int, int]]
) -> Iterator[bytes]:
    """Yields the bytes of an open file's rows in blocks, after checking the labels of each.

    Args:
      handle: the open file.
      where: name of the file in errors.
      start: byte where row 0 begins.
      shape: (rows, ...).
      bounds: (name, lowest, highest) of each label; labels are the first bytes of a row.

    Raises:
      DataError: a label is out of bounds; the message names the first.
    """
    row, length = 0, math.prod(shape[1:])
    for block in streams.scan(handle, start, start + math.prod(shape), length):
        values = np.frombuffer(block, np.uint8).reshape(-1, length)
        for column, (name, low, high) in enumerate(bounds):
            wrong = np.flatnonzero((values[:, column] < low) | (values[:, column] > high))
            if len(wrong):
                value = values[wrong[0], column]
                raise DataError(f"row {row + wrong[0]}: {name} {value} is not in {low}..{high}", path=where)
        row += len(values)
        yield block


def gather(handle: IO[bytes], start: int, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Reads equally long rows into an array, in file order.

    Args:
      handle: the open file.
      start: byte where row 0 begins.
      rows: int64 (n,).
      out: uint8 (n, bytes per row), C-contiguous.

    Raises:
      EOFError: the file ends too early.
    """
    if not len(rows):
        return
    order = np.argsort(rows)
    length = out.shape[1]
    if length < _SMALL_ROW:
        _gather_spans(handle, start, rows[order], out, order)
    else:
        fill(out, order, itertools.repeat(handle.fileno()), (start + rows[order] * length).tolist())


def fill(out: NDArray[np.uint8], at: NDArray[np.int64], descriptors: Iterable[int], offsets: list[int]) -> None:
    """Reads equally long rows one by one, each from any file.

    Args:
      out: uint8 (m, bytes per row), C-contiguous.
      at: row of `out` for each row, int64 (n,).
      descriptors, offsets: open file of each row, and the byte where the row begins.

    Raises:
      EOFError: a file ends too early.
    """
    length, target = out.shape[1], out.data.cast("B")
    views = [(target[begin : begin + length],) for begin in (at * length).tolist()]
    if sum(map(os.preadv, descriptors, views, offsets)) != len(offsets) * length:
        raise EOFError


def _gather_spans(
    handle: IO[bytes], start: int, rows: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64]
) -> None:
    """Reads ascending rows, too short for a system call each, together with the gaps between them."""
    length = out.shape[1]
    cuts = np.flatnonzero(np.diff(rows // (streams.BLOCK // length))) + 1
    for part in np.split(np.arange(len(rows)), cuts):
        first, last = int(rows[part[0]]), int(rows[part[-1]])
        data = os.pread(handle.fileno(), (last + 1 - first) * length, start + first * length)
        if len(data) != (last + 1 - first) * length:
            raise EOFError
        out[at[part]] = np.frombuffer(data, np.uint8).reshape(-1, length)[rows[part] - first]
