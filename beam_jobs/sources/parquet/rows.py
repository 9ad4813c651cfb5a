"""Gathers rows of many Parquet files into one block: each row group is read once, batch by batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import Block
from beam_jobs.sources.parquet import values as parquet_values
from beam_jobs.sources.parquet.columns import Columns
from beam_jobs.sources.parquet.reader import KnownFile, OpenFile
from beam_jobs.sources.parquet.values import Values
from beam_jobs.storage.paths import StoragePath


@dataclasses.dataclass(frozen=True, eq=False)
class RowGroups:
    """The row groups of one split.

    Attributes:
      files: names from the source's folder, and rows.
      stamps: of each file: size in bytes, time of the last change in nanoseconds; int64 (files, 2).
      counts: rows of each row group of all files, end to end; int64.
      file_of_group: number of the file of each row group; int64.
    """

    files: base.Files
    stamps: NDArray[np.int64]
    counts: NDArray[np.int64]
    file_of_group: NDArray[np.int64]

    def file(self, folder: StoragePath, number: int) -> KnownFile:
        """Returns a file by its number."""
        return KnownFile(folder / self.files.names[number], (int(self.stamps[number, 0]), int(self.stamps[number, 1])))


class Reader:
    """Reads rows of one split into a block."""

    def __init__(self, folder: StoragePath, groups: RowGroups, columns: Columns, class_names: tuple[str, ...]) -> None:
        self._folder = folder
        self._groups = groups
        self._columns = columns
        self._texts = pa.array(class_names, pa.large_string()) if columns.label_kind == "string" else None

    def read(self, rows: NDArray[np.int64]) -> Block:
        """Returns rows in the order asked for.

        Memory: the rows, and one batch.

        Args:
          rows: int64 (n,), numbers in the split.

        Raises:
          DataError: a file changed or cannot be read.
        """
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        starts = np.concatenate([[0], np.cumsum(self._groups.counts)])
        cuts = np.searchsorted(ascending, starts)
        wanted = np.flatnonzero(cuts[1:] > cuts[:-1])
        block = _Growing(len(rows), self._columns)
        numbers = self._groups.file_of_group[wanted]
        for number in np.unique(numbers).tolist():
            first = int(np.searchsorted(self._groups.file_of_group, number))
            with self._groups.file(self._folder, number).opened() as file:
                for group in wanted[numbers == number].tolist():
                    chosen = slice(cuts[group], cuts[group + 1])
                    self._read_group(file, group - first, block, order[chosen], ascending[chosen] - starts[group])
            if not self._columns.key:
                chosen = slice(
                    *np.searchsorted(ascending, [starts[first], starts[first] + self._groups.files.counts[number]])
                )
                block.put_keys(order[chosen], self._row_keys(number, ascending[chosen] - starts[first]))
        return block.finished()

    def _read_group(
        self,
        file: OpenFile,
        group: int,
        block: _Growing,
        positions: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        """Reads ascending rows of a row group to positions of the block."""
        start = taken = 0
        for batch in file.batches(group, self._columns.paths):
            stop = int(np.searchsorted(rows, start + len(batch)))
            if stop > taken:
                with file.errors_of(group):
                    chosen = rows[taken:stop] - start
                    values = parquet_values.of_batch(batch, chosen, self._columns, self._texts)
                block.put(positions[taken:stop], values)
            if stop == len(rows):
                return
            start, taken = start + len(batch), stop

    def _row_keys(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.bytes_]:
        files = self._groups.files
        return base.row_keys(files.names[number], rows, base.row_digits(files.counts[number]))


class _Growing:
    """A block that is filled from several files."""

    def __init__(self, count: int, columns: Columns) -> None:
        self._images = np.full(count, b"", object)
        self._labels = np.zeros(count, np.int64)
        self._keys: NDArray[Any] = np.full(count, b"", object if columns.key else "S1")
        self._extra: dict[str, NDArray[Any]] = {}
        for name, feature in columns.kept:
            fixed = tuple(size for size in feature.shape if size is not None)
            is_list = feature.dtype == "string" or len(fixed) < len(feature.shape)
            self._extra[name] = np.zeros((count, *fixed), np.dtype(object if is_list else feature.dtype))
        self._bad: dict[int, str] = {}

    def put(self, positions: NDArray[np.int64], values: Values) -> None:
        """Puts a batch's rows to their positions."""
        self._images[positions] = values.images
        self._labels[positions] = values.labels
        if values.keys is not None:
            self._keys[positions] = values.keys
        for name, column in values.extra.items():
            self._extra[name][positions] = column
        self._bad.update({int(positions[row]): reason for row, reason in values.bad.items()})

    def put_keys(self, positions: NDArray[np.int64], keys: NDArray[np.bytes_]) -> None:
        """Puts keys that are made of file and row."""
        if keys.itemsize > self._keys.itemsize:
            self._keys = self._keys.astype(keys.dtype)
        self._keys[positions] = keys

    def finished(self) -> Block:
        """Returns the block."""
        extra = {name: column.tolist() if column.dtype == object else column for name, column in self._extra.items()}
        keys = self._keys.tolist() if self._keys.dtype == object else self._keys
        return Block(self._images.tolist(), self._labels, keys, extra, dict(sorted(self._bad.items())))
