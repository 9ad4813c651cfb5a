"""Data sets in Parquet files: a column of encoded images, one of labels, others as features.

The unit of reading is the row group. Format: https://parquet.apache.org/docs/file-format/; Hugging Face's layout of
splits, images and class names: https://huggingface.co/docs/datasets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from beam_jobs.sources import base, digest
from beam_jobs.sources import files as places
from beam_jobs.sources.base import Block, SourceOptions
from beam_jobs.sources.files import Place, Stamp
from beam_jobs.sources.parquet import columns as parquet_columns
from beam_jobs.sources.parquet import files as parquet_files
from beam_jobs.sources.parquet import labels as parquet_labels
from beam_jobs.sources.parquet import reader as parquet_reader
from beam_jobs.sources.parquet.columns import Columns
from beam_jobs.sources.parquet.rows import Part, Reader
from beam_jobs.storage.paths import AnyPath
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature, SourceFile


@dataclasses.dataclass(frozen=True, eq=False)
class ParquetSource:
    """Files that were opened and checked by `open_source`; see `base.Source`."""

    dataset: str
    folder: Place
    columns: Columns
    class_names: tuple[str, ...]
    files: tuple[SourceFile, ...]
    parts: dict[str, Part]

    @property
    def image_shape(self) -> None:
        """None: images are encoded."""
        return None

    @property
    def features(self) -> dict[str, Feature]:
        """The kept columns."""
        return dict(self.columns.kept)

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: part.files.num_rows for split, part in self.parts.items()}

    @property
    def unique_keys(self) -> bool:
        """Only where keys are made of file and row."""
        return not self.columns.key

    def chunks(self, split: str) -> NDArray[np.int64]:
        """Returns the rows of each row group."""
        return self.parts[split].groups

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns hashes of file and row; see `base.Source.hashes`."""
        return self.parts[split].files.hashes(start, stop)

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (file, row in it) of a row."""
        return self.parts[split].files.where(row)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split; see `base.Source.read`."""
        return Reader(self.folder, self.parts[split], self.columns, self.class_names).read(rows)


@dataclasses.dataclass(frozen=True)
class _File:
    """What the footer of a file says."""

    name: str
    path: Place
    stamp: Stamp
    columns: Columns
    class_names: tuple[str, ...]
    groups: tuple[int, ...]


def open_source(options: SourceOptions) -> ParquetSource:
    """Opens files, finds their columns, splits and classes.

    Args:
      options: `source` is a file, a folder of *.parquet, or a glob; the columns are as `config.ConvertConfig` says.

    Raises:
      UsageError: no source is named; a column is missing or cannot be converted.
      DataError: a file is missing or cannot be read, files differ in their columns or class names, it cannot be told
        which split a file is of, a split has no row, a row group is larger than 1 GiB, or no row has a label.
    """
    folder, names = parquet_files.find(options.source)
    by_split = parquet_files.by_split(folder, names)
    first = _open(folder, names[0], options)
    resolved = dataclasses.replace(options, image_column=first.columns.image, label_column=first.columns.label)
    others = places.each(lambda name: _open_another(folder, name, resolved, first), names[1:], places.is_remote(folder))
    files = {file.name: file for file in [first, *others]}
    parts = {split: _part(folder, split, [files[name] for name in members]) for split, members in by_split.items()}
    readable = [(file.path, file.stamp) for file in files.values()]
    class_names = parquet_labels.class_names(readable, first.columns, first.class_names)
    entries = digest.describe_parquet([(name, folder / name) for name in names])
    return ParquetSource(options.dataset, places.place(folder), first.columns, class_names, entries, parts)


def _open(folder: AnyPath, name: str, options: SourceOptions) -> _File:
    path = places.place(folder / name)
    stamp = places.stamp(path)
    with parquet_reader.opened(path, stamp) as file:
        with parquet_reader.one_line(f"{path}: its schema cannot be read"):
            schema = file.schema_arrow
        columns = parquet_columns.choose(str(path), schema, options)
        groups = tuple(_group_rows(path, file, group, columns) for group in range(file.num_row_groups))
    names = parquet_columns.class_names(schema).get(columns.label, ())
    return _File(name, path, stamp, columns, names, groups)


def _open_another(folder: AnyPath, name: str, options: SourceOptions, first: _File) -> _File:
    try:
        file = _open(folder, name, options)
    except UsageError as error:
        raise DataError(f"{error}; {first.path} can be converted so; all files must have the same columns") from None
    if (file.columns, file.class_names) != (first.columns, first.class_names):
        raise DataError(
            f"{file.path}: its columns {', '.join(first.columns.paths)} differ from those of {first.path} in type or "
            "class names; all files must have the same"
        )
    return file


def _group_rows(path: Place, file: pq.ParquetFile, group: int, columns: Columns) -> int:
    rows: int = file.metadata.row_group(group).num_rows
    if rows < 0:
        raise DataError(f"{path}: row group {group}: has {rows} rows; its footer is corrupt, get the file again")
    size = parquet_reader.group_bytes(path, file, group, columns.paths)
    if size > parquet_reader.MAX_GROUP_BYTES:
        raise DataError(
            f"{path}: row group {group}: has {size} bytes, above {parquet_reader.MAX_GROUP_BYTES}; write the file "
            "with smaller row groups: pyarrow.parquet.write_table(table, path, row_group_size=1000)"
        )
    return rows


def _part(folder: AnyPath, split: str, files: Sequence[_File]) -> Part:
    counts = tuple(sum(file.groups) for file in files)
    if not sum(counts):
        raise DataError(f"{folder}: split {split!r} of {len(files)} files ({files[0].name}, ...) has no row")
    return Part(
        base.Files(tuple(file.name for file in files), counts),
        np.array([file.stamp for file in files], np.int64),
        np.array([rows for file in files for rows in file.groups], np.int64),
        np.repeat(np.arange(len(files)), [len(file.groups) for file in files]),
    )
