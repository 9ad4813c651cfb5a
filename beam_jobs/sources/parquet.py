"""Data sets in Parquet files: a column of encoded images, a column of labels, and others to keep as features.

The unit of reading is the row group. Folders named `column=value`, which Hive and Spark write for partitions, are
columns of the files in them, kept as features unless a flag names them. Format:
https://parquet.apache.org/docs/file-format/; Hugging Face's layout of splits, images and class names:
https://huggingface.co/docs/datasets.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources import base, listing, parquet_columns, parquet_reader, streams
from beam_jobs.sources.base import SOURCES, Block, DealtSource, Files, Source, SourceOptions
from beam_jobs.sources.parquet_columns import Columns
from beam_jobs.sources.parquet_reader import BatchedBuilder, OpenFile, ParquetFile
from pipeline.errors import DataError, UsageError
from pipeline.files import paths
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import SourceFile
from pipeline.records import splits

_SUFFIX = ".parquet"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_SHOWN = 80  # characters of a value in errors
_LEAVE_OUT = "--splits names the splits to convert, and leaves out the files of others"
_TAIL = 8  # bytes: length of the footer, uint32, and PAR1


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParquetSource(Source):
    """A data set in Parquet files.

    Attributes:
      columns: columns to read, the same for all files.
      tables: {split: its files}.
    """

    columns: Columns
    tables: dict[str, tuple[ParquetFile, ...]]

    def chunks(self, split: str) -> NDArray[np.int64]:
        """Returns the rows of each row group."""
        return np.array([rows for table in self.tables[split] for rows in table.groups], np.int64)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, reading each row group once. Memory: the rows and one batch."""
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
        """Reads rows of a row group, ascending, into positions of the block."""
        start = taken = 0
        for batch in file.batches(group, self.columns.paths):
            stop = int(np.searchsorted(rows, start + len(batch)))
            if stop > taken:
                with file.errors_of(group):
                    builder.put(positions[taken:stop], batch, rows[taken:stop] - start)
            if stop == len(rows):
                return
            start, taken = start + len(batch), stop


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ColumnSplitSource(DealtSource):
    """Parquet files with a column that names the split of each row. Workers read the column again, and keep it.

    Attributes:
      files_in_order: all files, in order.
      column: name of the column.
      is_given: whether the user named the column: it may then hold words other than train, validation and test.
    """

    files_in_order: tuple[ParquetFile, ...]
    column: str
    is_given: bool

    def _rows(self, split: str) -> NDArray[np.int64]:
        return _rows_by_split(self.files_in_order, self.column, self.is_given)[split]


@SOURCES.named("parquet", remote=True)
def open_source(options: SourceOptions) -> Source:
    """Opens files and finds their columns, splits and classes.

    Args:
      options: options; `source` is a file, a folder of *.parquet, or a glob; for columns see `config.ConvertConfig`.

    Raises:
      UsageError: --source is missing; a column is missing or cannot be converted; float32 cannot hold its values.
      DataError: a file is missing or cannot be read, files differ in their columns or class names, the split of a file
        is unclear, a split has no row, a row group is larger than 1 GiB, or no row has a label.
    """
    if not options.source:
        raise UsageError("--source is missing: a Parquet file, a folder of them, or a glob")
    kinds = f"--source of parquet is a file, a folder of *{_SUFFIX}, or a glob"
    folder, names = listing.find(options.source, _is_parquet, True, f"*{_SUFFIX}, at any depth", kinds)
    told = _partitions(folder, names, options.split_column)
    is_given = options.split_column not in ("", splits.NO_COLUMN)
    by_split = {splits.TRAIN: list(names)} if is_given else splits.by_files(folder, names, options.splits)
    names = sorted(name for members in by_split.values() for name in members)
    try:
        first = _open(folder / names[0], told[names[0]], options)
    except UsageError as error:
        raise error.advised(_LEAVE_OUT) if len(by_split) > 1 else error from None
    # The other files must have the columns of the first, not whichever their own names would suggest.
    resolved = dataclasses.replace(options, image_column=first.columns.image, label_column=first.columns.label)
    others = paths.each(
        lambda name: _open_another(folder / name, told[name], resolved, first), names[1:], folder.is_remote
    )
    files = [first, *others]
    tables = {name: opened.table for name, opened in zip(names, files, strict=True)}
    parts = {
        split: Files(tuple(members), tuple(sum(tables[name].groups) for name in members))
        for split, members in by_split.items()
    }
    for _ in paths.each(_check_doubles, files, folder.is_remote):
        pass
    source = ParquetSource(
        dataset=options.dataset,
        splits=base.rows_of(parts, folder),
        class_names=_class_names_of(list(tables.values()), first.columns, first.class_names, options.na_is_class),
        files=_describe(folder, names),
        features=dict(first.columns.kept),
        unique_keys=not first.columns.key,
        parts=parts,
        columns=first.columns,
        tables={split: tuple(tables[name] for name in members) for split, members in by_split.items()},
    )
    return _by_column(folder, source, first, options)


def _by_column(folder: StoragePath, source: ParquetSource, first: _Opened, options: SourceOptions) -> Source:
    """Returns the source split by a column; the source itself if its file names tell the splits."""
    column = splits.column_of(first.names, options.split_column)
    files = tuple(itertools.chain.from_iterable(source.tables.values()))
    if not column:
        for name in splits.suspects(first.names, first.texts, options.split_column) if len(source.splits) == 1 else ():
            splits.check_suspect(files[0].path, name, _different(files, name), source.splits)
        return source
    is_given = bool(options.split_column)
    found = _rows_by_split(files, column, is_given)
    if not is_given:
        first_row, agree = 0, True
        for split, rows in source.splits.items():
            for by_column, chosen in found.items():
                own = chosen[(chosen >= first_row) & (chosen < first_row + rows)]
                if len(own):
                    agree &= by_column == split
                    file, row = source.where(split, int(own[0]) - first_row)
                    splits.check_name(folder / file, row, split, by_column, column)
            first_row += rows
        if agree:
            return source
    return ColumnSplitSource.of(
        source,
        {split: len(found[split]) for split in splits.in_order(found)},
        files_in_order=files,
        column=column,
        is_given=is_given,
    )


@functools.lru_cache(maxsize=2)
def _rows_by_split(files: tuple[ParquetFile, ...], column: str, is_given: bool) -> dict[str, NDArray[np.int64]]:
    """Returns {split: its rows, int64 (n,)} from the split column; rows are numbered across all files."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    start = 0
    for file in files:
        first_of_file = start
        for values in _values(file, column):
            encoded = values.fill_null("").dictionary_encode()
            codes = encoded.indices.to_numpy()
            for code, word in enumerate(encoded.dictionary.to_pylist()):
                rows = np.flatnonzero(codes == code) + start
                split = splits.of_value(word.strip(), is_given)
                if not split:
                    raise DataError(
                        f"column {column!r} has {word[:_SHOWN]!r}",
                        path=file.path,
                        part=f"row {rows[0] - first_of_file}",
                        advice=splits.not_a_split(word, column),
                    )
                found.setdefault(split, []).append(rows)
            start += len(values)
    return {split: np.sort(np.concatenate(rows)) for split, rows in found.items()}


def _values(file: ParquetFile, column: str) -> Iterator[pa.Array]:
    """Yields the values of a column as strings, batch by batch."""
    with file.opened() as opened:
        for group in opened.groups:
            for batch in opened.batches(group, [column]):
                with parquet_reader.arrow_errors(file.path, f"column {column!r} cannot name splits"):
                    yield parquet_reader.decoded(batch.column(column)).cast(pa.string())


def _different(files: Sequence[ParquetFile], column: str) -> Iterator[str | None]:
    """Yields the distinct values of a column, some more than once."""
    for file in files:
        for values in _values(file, column):
            yield from pc.unique(values).to_pylist()


def _partitions(folder: StoragePath, names: Sequence[str], split: str) -> dict[str, dict[str, pa.Scalar]]:
    """Returns {file: {column: value}} from folders `column=value`; whole numbers if all values of a column are numbers.

    Folders that name splits are left to `splits.by_files`, unless they are the column `split`, which the user named.

    Raises:
      DataError: files differ in these columns.
    """
    told = {name: splits.partitions(name) for name in names}
    columns = list(told[names[0]])
    for name, own in told.items():
        if list(own) != columns:
            missing = sorted({*own}.symmetric_difference(columns))
            problem = f"the folders of some files name the columns {', '.join(missing)}, those of others do not"
            raise DataError(problem, path=folder / name, advice="name the files of one layout with a glob")
    is_split = {name: any(splits.is_of_split(name, own[name]) for own in told.values()) for name in columns}
    used = [name for name in columns if name == split or not is_split[name]]
    types = {
        name: pa.int64() if all(_WHOLE.fullmatch(own[name] or "0") for own in told.values()) else pa.string()
        for name in used
    }
    return {
        file: {name: pa.scalar(own[name], pa.string()).cast(types[name]) for name in used} for file, own in told.items()
    }


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A file, its columns, and the class names in its metadata.

    Attributes:
      names, texts: names of all columns, and of the string columns.
    """

    table: ParquetFile
    columns: Columns
    class_names: tuple[str, ...]
    names: tuple[str, ...]
    texts: tuple[str, ...]


def _open(path: StoragePath, told: dict[str, pa.Scalar], options: SourceOptions) -> _Opened:
    table = ParquetFile(path, streams.stamp(path))
    with table.opened() as file:
        inside = file.schema.names  # a file may itself contain the column of its folder
    table = dataclasses.replace(table, partitions=tuple((name, told[name]) for name in told if name not in inside))
    with table.opened() as file:
        schema = file.schema
        split = splits.column_of(schema.names, options.split_column)
        if split:
            parquet_columns.type_of(str(path), schema, "split_column", split)
        options = parquet_columns.resolved(str(path), schema, options)
        used = [options.image_column, options.label_column, options.key_column, split]
        used += [parquet_columns.name_and_type(schema, kept)[0] for kept in options.keep_columns]
        kept = (*options.keep_columns, *(name for name, _ in table.partitions if name not in used))
        columns = parquet_columns.choose(str(path), schema, dataclasses.replace(options, keep_columns=kept))
        table = dataclasses.replace(table, groups=file.rows_of_groups(columns.paths))
    texts = tuple(field.name for field in schema if parquet_columns.is_text(field.type))
    names = parquet_columns.class_names(schema).get(columns.label, ())
    return _Opened(table, columns, names, tuple(schema.names), texts)


def _open_another(path: StoragePath, told: dict[str, pa.Scalar], options: SourceOptions, first: _Opened) -> _Opened:
    try:
        other = _open(path, told, options)
    except UsageError as error:
        advice = f"{first.table.path} has them; all files must have the same columns"
        raise DataError(str(error), advice=advice).advised(_LEAVE_OUT) from None
    if (other.columns, other.class_names) != (first.columns, first.class_names):
        raise DataError(
            f"its columns {', '.join(first.columns.paths)} differ from those of {first.table.path} in type or "
            "class names; all files must have the same",
            path=path,
        )
    return other


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(_SUFFIX) and not any(part.startswith((".", "_")) for part in name.split("/"))


def _class_names_of(
    files: Sequence[ParquetFile], columns: Columns, named: tuple[str, ...], na_is_class: bool
) -> tuple[str, ...]:
    """Returns the name of each class: `named`, the files' metadata, or else the values of the labels.

    Reads all labels rather than the footers' statistics: pyarrow 25 crashes on corrupt statistics.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if known := parquet_reader.known_classes(columns, named):
        return known
    seen = parquet_reader.seen_labels(columns, na_is_class)

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
    """Raises UsageError if a kept column has a value that would be rounded without the user's permission.

    All values are read before anything is written, so that a long conversion does not fail halfway.
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
    """Returns the manifest entry of each file.

    The digest of a local file covers its content, the digest of a remote file only its footer, with length and magic,
    as reading all bytes from a store would take too long. The footer has the offset and size of every column chunk and
    the writer's statistics; two files that agree in all of these have the same digest.
    """
    if isinstance(folder, LocalPath):
        return streams.describe([(name, folder / name) for name in names])
    return tuple(paths.each(lambda name: _of_footer(folder / name, name), names, remote=True))


def _of_footer(path: StoragePath, name: str) -> SourceFile:
    with streams.errors_of(path), path.open_native() as stream:
        size = stream.size()
        length = int.from_bytes(stream.read_at(_TAIL, size - _TAIL)[:4], "little") + _TAIL
        return SourceFile(name, size, hashlib.sha256(stream.read_at(length, size - length)).hexdigest())
