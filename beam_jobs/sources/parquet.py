"""Data sets in Parquet files: a column of encoded images, one of labels, others kept as features.

The unit of reading is the row group. Format: https://parquet.apache.org/docs/file-format/; Hugging Face's layout of
splits, images and class names: https://huggingface.co/docs/datasets.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base, listing, parquet_columns, parquet_reader, streams
from beam_jobs.sources.base import Block, Files, Source, SourceOptions
from beam_jobs.sources.parquet_columns import Columns
from beam_jobs.sources.parquet_reader import BatchedBuilder, OpenFile, ParquetFile
from pipeline.errors import DataError, UsageError
from pipeline.files import paths
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import SourceFile

_SUFFIX = ".parquet"
_TAIL = 8  # bytes: the length of the footer, uint32, and PAR1


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParquetSource(Source):
    """Parquet files.

    Attributes:
      columns: those to read, of all files.
      tables: {split: its files}.
    """

    columns: Columns
    tables: dict[str, tuple[ParquetFile, ...]]

    def chunks(self, split: str) -> NDArray[np.int64]:
        """Returns the rows of each row group."""
        return np.array([rows for table in self.tables[split] for rows in table.groups], np.int64)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, reading each row group once. Memory: the rows, and one batch."""
        files = self.parts[split]
        keys = None if self.columns.key else files.keys(rows, equal_digits=False)
        builder = BatchedBuilder(len(rows), self.columns, self.class_names, keys)
        for number, positions, in_file in base.by_part(files.counts, rows):
            table = self.tables[split][number]
            with table.opened() as file:
                for group, chosen, in_group in base.by_part(table.groups, in_file):
                    self._read_group(file, group, builder, positions[chosen], in_group)
        return builder.finished()

    def _read_group(
        self,
        file: OpenFile,
        group: int,
        builder: BatchedBuilder,
        positions: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        """Reads ascending rows of a row group to positions of the block."""
        start = taken = 0
        for batch in file.batches(group, self.columns.paths):
            stop = int(np.searchsorted(rows, start + len(batch)))
            if stop > taken:
                with file.errors_of(group):
                    builder.put(positions[taken:stop], batch, rows[taken:stop] - start)
            if stop == len(rows):
                return
            start, taken = start + len(batch), stop


def open_source(options: SourceOptions) -> ParquetSource:
    """Opens files, finds their columns, splits and classes.

    Args:
      options: `source` is a file, a folder of *.parquet, or a glob; the columns are as `config.ConvertConfig` says.

    Raises:
      UsageError: --source is missing; a column is missing or cannot be converted; float32 cannot hold one's values.
      DataError: a file is missing or cannot be read, files differ in their columns or class names, the split of a file
        is unclear, a split has no row, a row group is larger than 1 GiB, or no row has a label.
    """
    if not options.source:
        raise UsageError("--source is missing: a Parquet file, a folder of them, or a glob")
    kinds = f"--source of parquet is a file, a folder of *{_SUFFIX}, or a glob"
    folder, names = listing.find(options.source, _is_parquet, True, f"*{_SUFFIX}, at any depth", kinds)
    by_split = listing.files_by_split(folder, names)
    first = _open(folder / names[0], options)
    # The others must have the columns of the first, not others that their own names would suggest.
    resolved = dataclasses.replace(options, image_column=first.columns.image, label_column=first.columns.label)
    others = paths.each(lambda name: _open_another(folder / name, resolved, first), names[1:], folder.is_remote)
    files = [first, *others]
    tables = {name: opened.table for name, opened in zip(names, files, strict=True)}
    parts = {
        split: Files(tuple(members), tuple(sum(tables[name].groups) for name in members))
        for split, members in by_split.items()
    }
    for _ in paths.each(_check_doubles, files, folder.is_remote):
        pass
    return ParquetSource(
        dataset=options.dataset,
        splits=base.rows_of(parts, folder),
        class_names=_class_names_of(list(tables.values()), first.columns, first.class_names),
        files=_describe(folder, names),
        features=dict(first.columns.kept),
        unique_keys=not first.columns.key,
        parts=parts,
        columns=first.columns,
        tables={split: tuple(tables[name] for name in members) for split, members in by_split.items()},
    )


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A file, its columns, and the class names in its metadata."""

    table: ParquetFile
    columns: Columns
    class_names: tuple[str, ...]


def _open(path: StoragePath, options: SourceOptions) -> _Opened:
    table = ParquetFile(path, streams.stamp(path))
    with table.opened() as file:
        with parquet_reader.arrow_errors(path, "its schema cannot be read"):
            schema = file.file.schema_arrow
        columns = parquet_columns.choose(str(path), schema, options)
        table = dataclasses.replace(table, groups=file.rows_of_groups(columns.paths))
    return _Opened(table, columns, parquet_columns.class_names(schema).get(columns.label, ()))


def _open_another(path: StoragePath, options: SourceOptions, first: _Opened) -> _Opened:
    try:
        other = _open(path, options)
    except UsageError as error:
        advice = f"{first.table.path} has them; all files must have the same columns"
        raise DataError(str(error), advice=advice) from None
    if (other.columns, other.class_names) != (first.columns, first.class_names):
        raise DataError(
            f"its columns {', '.join(first.columns.paths)} differ from those of {first.table.path} in type or "
            "class names; all files must have the same",
            path=path,
        )
    return other


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(_SUFFIX) and not any(part.startswith((".", "_")) for part in name.split("/"))


def _class_names_of(files: Sequence[ParquetFile], columns: Columns, named: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one class name per label: `named`, those of the files' metadata, or what their labels say.

    All labels are read, instead of the footers' statistics: pyarrow 25 crashes on corrupt ones.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if known := parquet_reader.known_classes(columns, named):
        return known
    seen = parquet_reader.seen_labels(columns)

    def read(file: ParquetFile) -> None:
        with file.opened() as opened:
            for group in opened.groups:
                for batch in opened.batches(group, [columns.label]):
                    with opened.errors_of(group):
                        found = parquet_reader.labels_in(batch.column(columns.label), columns)
                    seen.add(found, file.path)

    for _ in paths.each(read, files, files[0].path.is_remote):
        pass
    return seen.class_names(files[0].path)


def _check_doubles(opened: _Opened) -> None:
    """Raises UsageError if a kept column has a value that would be rounded, and the user has not allowed it.

    All values are read before anything is written, so that a long conversion does not fail on a row in its middle.
    """
    names, table = opened.columns.doubles, opened.table
    if not names:
        return
    with table.opened() as file:
        start = 0
        for group in file.groups:
            for batch in file.batches(group, names):
                with file.errors_of(group):
                    found = {name: parquet_reader.first_inexact(batch.column(name)) for name in names}
                for name, inexact in found.items():
                    if inexact:
                        where, feature = (table.path, start + inexact[0]), dict(opened.columns.kept)[name]
                        raise parquet_reader.rounded(where, name, inexact[1], feature)
                start += len(batch)


def _describe(folder: StoragePath, names: Sequence[str]) -> tuple[SourceFile, ...]:
    """Returns the manifest's entry of each file.

    The digest of a local file covers its content. That of a remote file covers its footer alone, with length and magic,
    as reading all bytes from a store would take too long. The footer has the offset and size of every column chunk and
    the writer's statistics; two files that agree in all of these have one digest.
    """
    if isinstance(folder, LocalPath):
        return streams.describe([(name, folder / name) for name in names])
    return tuple(paths.each(lambda name: _of_footer(folder / name, name), names, remote=True))


def _of_footer(path: StoragePath, name: str) -> SourceFile:
    with streams.errors_of(path), path.open_native() as stream:
        size = stream.size()
        length = int.from_bytes(stream.read_at(_TAIL, size - _TAIL)[:4], "little") + _TAIL
        return SourceFile(name, size, hashlib.sha256(stream.read_at(length, size - length)).hexdigest())
