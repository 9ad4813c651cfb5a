"""A source of Parquet files: rows of many are gathered into one block, each row group read once, batch by batch."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import Block, Source
from beam_jobs.sources.parquet.columns import Columns
from beam_jobs.sources.parquet.reader import KnownFile, OpenFile
from beam_jobs.sources.parquet.values import Gathered
from beam_jobs.storage.paths import StoragePath


@dataclasses.dataclass(frozen=True, eq=False)
class RowGroups:
    """The row groups of one split.

    Attributes:
      stamps: of each file: size in bytes, time of the last change in nanoseconds; int64 (files, 2).
      counts: rows of each row group of all files, end to end; int64.
      file_of_group: number of the file of each row group; int64.
    """

    stamps: NDArray[np.int64]
    counts: NDArray[np.int64]
    file_of_group: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParquetSource(Source):
    """Files that were opened and checked.

    Attributes:
      folder: that the files are named from.
      columns: of all files.
      groups: {split: its row groups}.
    """

    folder: StoragePath
    columns: Columns
    groups: dict[str, RowGroups]

    def chunks(self, split: str) -> NDArray[np.int64]:
        """Returns the rows of each row group."""
        return self.groups[split].counts

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split; see `base.Source.read`. Memory: the rows, and one batch."""
        files, groups = self.parts[split], self.groups[split]
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        starts = np.concatenate([[0], np.cumsum(groups.counts)])
        cuts = np.searchsorted(ascending, starts)
        wanted = np.flatnonzero(cuts[1:] > cuts[:-1])
        block = Gathered(len(rows), self.columns, self.class_names)
        numbers = groups.file_of_group[wanted]
        for number in np.unique(numbers).tolist():
            first = int(np.searchsorted(groups.file_of_group, number))
            size, time = groups.stamps[number].tolist()
            name, count = files.names[number], files.counts[number]
            with KnownFile(self.folder / name, (size, time)).opened() as file:
                for group in wanted[numbers == number].tolist():
                    chosen = slice(cuts[group], cuts[group + 1])
                    self._read_group(file, group - first, block, order[chosen], ascending[chosen] - starts[group])
            if not self.columns.key:
                chosen = slice(*np.searchsorted(ascending, [starts[first], starts[first] + count]))
                own = ascending[chosen] - starts[first]
                block.put_keys(order[chosen], base.row_keys(name, own, base.row_digits(count)))
        return block.finished()

    def _read_group(
        self, file: OpenFile, group: int, block: Gathered, positions: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> None:
        """Reads ascending rows of a row group to positions of the block."""
        start = taken = 0
        for batch in file.batches(group, self.columns.paths):
            stop = int(np.searchsorted(rows, start + len(batch)))
            if stop > taken:
                with file.errors_of(group):
                    block.put(positions[taken:stop], batch, rows[taken:stop] - start)
            if stop == len(rows):
                return
            start, taken = start + len(batch), stop
