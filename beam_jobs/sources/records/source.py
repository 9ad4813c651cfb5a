"""A source of records of `tf.train.Example`, whoever wrote them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources import files as places
from beam_jobs.sources.base import Block, Files
from beam_jobs.sources.files import Place
from beam_jobs.sources.records import files as record_files
from beam_jobs.sources.records import matrix as record_matrix
from beam_jobs.sources.records.columns import Columns
from beam_jobs.sources.records.files import RecordFile
from pipeline.manifest import Feature, SourceFile

_OURS = ("image", "label", "key")


@dataclasses.dataclass(frozen=True)
class RecordSource:
    """Files of records, indexed. Pickles to some 100 bytes a file, and 8 a piece where records differ in length.

    Attributes:
      root: the folder by which files are named in keys and errors.
      columns: what is what in a record.
      records: {split: its files}.
    """

    dataset: str
    class_names: tuple[str, ...]
    root: Place
    columns: Columns
    records: dict[str, tuple[RecordFile, ...]]
    files: tuple[SourceFile, ...]
    unique_keys: bool

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) where images are raw pixels."""
        return self.columns.image_shape

    @property
    def features(self) -> dict[str, Feature]:
        """The features that are kept besides image, label and key."""
        return self.columns.extra

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: sum(file.num_records for file in files) for split, files in self.records.items()}

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the rows of each piece of a file; None where any record is as cheap to read as any other."""
        filled = [file for file in self.records[split] if file.num_records]
        if all(file.has_random_access for file in filled):
            return None
        return np.array([rows for file in filled for rows in file.pieces], np.int64)

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns a hash of rows' places; see `base.Source.hashes`."""
        return self._places(split).hashes(start, stop)

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (file, row in it); see `base.Source.where`."""
        return self._places(split).where(row)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split; see `base.Source.read`. Every record's CRCs are checked.

        Raises:
          DataError: a file was changed since, cannot be read, or is corrupt: with the record and its offset.
        """
        places = self._places(split)
        digits = base.row_digits(max(places.counts))
        records, keys = [b""] * len(rows), [b""] * len(rows)
        for number, chosen, own_rows in _by_file(*places.locate(rows)):
            found = record_files.read(self.records[split][number], own_rows)
            for row, record in zip(chosen, found, strict=True):
                records[row] = record
            if not self.columns.key:
                made = base.row_keys(places.names[number], own_rows, digits).tolist()
                for row, key in zip(chosen, made, strict=True):
                    keys[row] = key
        return self._block(records, keys)

    def _block(self, records: list[bytes], keys: list[bytes]) -> Block:
        columns = self.columns
        names = (columns.image, columns.label, columns.key)
        if names == _OURS and columns.image_shape and not columns.extra and not columns.sizes and records:
            block = record_matrix.block(records, columns.image_shape)
            if block is not None:
                return block
        return columns.block(records, keys)

    def _places(self, split: str) -> Files:
        files = self.records[split]
        names = tuple(places.name_from(file.path, self.root) for file in files)
        return Files(names, tuple(file.num_records for file in files))


def _by_file(files: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[tuple[int, list[int], NDArray[np.int64]]]:
    """Yields (file, positions, rows in that file, ascending) of each file that is needed."""
    order = np.lexsort((rows, files))
    numbers, starts = np.unique(files[order], return_index=True)
    bounds = itertools.pairwise([*starts, len(order)])
    for number, (start, stop) in zip(numbers.tolist(), bounds, strict=True):
        chosen = order[start:stop]
        yield number, chosen.tolist(), rows[chosen]
