"""A source of records of `tf.train.Example` by any writer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import Block, Files, Source
from beam_jobs.sources.records import files as record_files
from beam_jobs.sources.records.columns import Columns
from beam_jobs.sources.records.files import RecordFile
from beam_jobs.storage.paths import StoragePath
from pipeline.manifest import SourceFile
from pipeline.records.tf_example import Layout


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RecordSource(Source):
    """Indexed files of records. Pickles to some 200 bytes per file, and 8 per piece if records differ in length.

    Attributes:
      columns: the features of a record.
      records: {split: its files}.
    """

    columns: Columns
    records: dict[str, tuple[RecordFile, ...]]

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the rows of each piece of a file; None if any record is as cheap to read as any other."""
        filled = [file for file in self.records[split] if file.num_records]
        if all(file.has_random_access for file in filled):
            return None
        return np.array([rows for file in filled for rows in file.pieces], np.int64)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split; see `base.Source.read`. Every record's CRCs are checked.

        Raises:
          DataError: a file has changed, cannot be read, or is corrupt; names the record and its offset.
        """
        files, columns = self.parts[split], self.columns
        records = [b""] * len(rows)
        for number, chosen, own in base.by_part(files.counts, rows):
            found = record_files.read(self.records[split][number], own)
            for row, record in zip(chosen.tolist(), found, strict=True):
                records[row] = record
        if columns == Columns(*base.OWN_FEATURES, image_shape=columns.image_shape) and columns.image_shape and records:
            block = _as_matrix(records, columns.image_shape)
            if block is not None:
                return block
        return columns.block(records, None if columns.key else files.keys(rows), self.class_names)


def make(
    dataset: str,
    class_names: tuple[str, ...],
    root: StoragePath,
    columns: Columns,
    records: dict[str, tuple[RecordFile, ...]],
    files: tuple[SourceFile, ...],
    unique_keys: bool = True,
) -> RecordSource:
    """Returns a source of some files, whose names in keys and errors are relative to the folder `root`."""
    parts = {
        split: Files(tuple(file.path.name_in(root) for file in own), tuple(file.num_records for file in own))
        for split, own in records.items()
    }
    return RecordSource(
        dataset=dataset,
        class_names=class_names,
        files=files,
        splits=base.rows_of(parts, root),
        image_shape=columns.image_shape,
        features=columns.extra,
        unique_keys=unique_keys,
        parts=parts,
        columns=columns,
        records=records,
    )


def _as_matrix(records: Sequence[bytes], image_shape: tuple[int, int, int]) -> Block | None:
    """Returns the block of records that differ only in the bytes of image, label and key; None for others."""
    size = len(records[0])
    if any(len(record) != size for record in records):
        return None
    layout = Layout.fit(size, math.prod(image_shape))
    if layout is None or layout.key.start == layout.key.stop:
        return None
    rows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
    if layout.mismatch(rows).any():
        return None
    keys = np.ascontiguousarray(rows[:, layout.key])
    if not keys[:, -1].all():  # NumPy would take zeros at the end for padding
        return None
    images = np.ascontiguousarray(rows[:, layout.image]).reshape(len(records), *image_shape)
    return Block(images, rows[:, layout.label.start].astype(np.int64), keys.view(f"S{keys.shape[1]}")[:, 0])
