"""Data sets in Parquet files: a column of encoded images, a column of labels, and others to keep as features.

The unit of reading is the row group. Folders named `column=value`, which Hive and Spark write for partitions, are
columns of the files in them, kept as features unless a flag names them. Format:
https://parquet.apache.org/docs/file-format/; Hugging Face's layout of splits, images and class names:
https://huggingface.co/docs/datasets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from beam_jobs.sources import base, columns, listing, streams
from beam_jobs.sources import table as tables
from beam_jobs.sources.base import SOURCES, Block, Files, Source, SourceOptions
from beam_jobs.sources.blocks import BatchedBuilder, arrow_errors
from beam_jobs.sources.columns import Columns
from beam_jobs.sources.streams import KnownFile
from beam_jobs.sources.table import Put, Table, TableSource
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files import paths
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import SourceFile
from pipeline.records import splits

MAX_GROUP_BYTES = 1 << 30  # 1 GiB: shards read whole row groups, and the one at a boundary is read by two shards
_BATCH_BYTES = 16 << 20  # 16 MiB
_MAX_BATCH = 512  # rows: dictionary-encoded rows can be larger than the footer says
_BUFFER = 1 << 20  # 1 MiB: reads page by page rather than a whole column of the row group
_FOOTERS = 256  # files whose footers a process keeps
_SUFFIX = ".parquet"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_LEAVE_OUT = "--splits names the splits to convert, and leaves out the files of others"
_TAIL = 8  # bytes: length of the footer, uint32, and PAR1

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class ParquetFile(KnownFile):
    """A Parquet file as it was when the source was opened.

    Attributes:
      groups: number of rows in each row group.
      partitions: (column, value) of each column in its folders' names, constant for the whole file.
    """

    groups: tuple[int, ...] = ()
    partitions: tuple[tuple[str, pa.Scalar], ...] = ()

    @contextlib.contextmanager
    def opened(self) -> Iterator[OpenFile]:
        """Opens the file, parsing its footer once per process, and checks before and after that it is unchanged.

        Raises:
          DataError: it changed, or its footer cannot be read.
        """
        self.check_unchanged()
        with contextlib.ExitStack() as stack:
            with arrow_errors(self.path, "cannot be read as Parquet"):
                file = pq.ParquetFile(
                    stack.enter_context(self.path.open_native()),
                    metadata=_footer(self.path, self.stamp),
                    pre_buffer=False,  # or the whole row group is read into memory first
                    buffer_size=self.path.read_ahead(_BUFFER),
                    page_checksum_verification=True,
                )
            yield OpenFile(self.path, file, dict(self.partitions))
        self.check_unchanged()


@functools.lru_cache(maxsize=_FOOTERS)
def _footer(path: StoragePath, stamp: tuple[int, int]) -> pq.FileMetaData:
    del stamp  # part of the cache's key: if a file changes, so does its footer
    with path.open_native() as stream:
        return pq.read_metadata(stream)


@dataclasses.dataclass(frozen=True)
class OpenFile:
    """An open Parquet file, its path for errors, and the values of its partitions."""

    path: StoragePath
    file: pq.ParquetFile
    partitions: dict[str, pa.Scalar]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file, then of its partitions. Raises DataError if it cannot be read."""
        with arrow_errors(self.path, "its schema cannot be read"):
            schema = self.file.schema_arrow
        for name, value in self.partitions.items():
            schema = schema.append(pa.field(name, value.type))
        return schema

    @property
    def groups(self) -> range:
        """The numbers of the row groups."""
        return range(self.file.num_row_groups)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields columns of a row group, given by dotted paths, in batches of about 16 MiB at most.

        Raises:
          DataError: a page is corrupt, or rows are missing.
        """
        info = self.file.metadata.row_group(group)
        rows, size = info.num_rows, max(info.total_byte_size, 1)
        count = max(1, min(_MAX_BATCH, _BATCH_BYTES * rows // size))
        read = 0
        inside = [name for name in columns if name not in self.partitions]
        told = {name: value for name, value in self.partitions.items() if name in columns}
        if not inside:
            yield pa.RecordBatch.from_pydict({name: pa.repeat(value, rows) for name, value in told.items()})
            return
        with self.errors_of(group):
            for found in self.file.iter_batches(count, row_groups=[group], columns=inside, use_threads=False):
                read, batch = read + len(found), found
                for name, value in told.items():
                    batch = batch.append_column(pa.field(name, value.type), pa.repeat(value, len(batch)))
                yield batch
        if read != rows:
            raise DataError(
                f"row group {group}: has {count_of(read, 'row')}, but its footer says {rows:,}",
                path=self.path,
                advice="get the file again",
            )

    def rows_of_groups(self, columns: Sequence[str]) -> tuple[int, ...]:
        """Returns the number of rows in each row group, after checking the given columns.

        Raises:
          DataError: see `rows`; or they do not sum to the file's rows, as with a corrupt footer (it has no checksum).
        """
        counts = tuple(self.rows(group, columns) for group in self.groups)
        if sum(counts) != self.file.metadata.num_rows:
            raise DataError(
                f"its row groups have {count_of(sum(counts), 'row')}, but its footer says "
                f"{self.file.metadata.num_rows:,}; it is corrupt, get the file again",
                path=self.path,
            )
        return counts

    def rows(self, group: int, columns: Sequence[str]) -> int:
        """Returns the number of rows in a row group, after checking that the given columns fit into memory.

        Raises:
          DataError: the row group is larger than 1 GiB or cannot be read; its footer is corrupt.
        """
        rows: int = self.file.metadata.row_group(group).num_rows
        if rows < 0:
            raise DataError(
                f"row group {group}: has {rows} rows; its footer is corrupt, get the file again", path=self.path
            )
        size = self._num_bytes(group, columns)
        if size > MAX_GROUP_BYTES:
            raise DataError(
                f"row group {group}: has {count_of(size, 'byte')}, above {MAX_GROUP_BYTES:,}",
                path=self.path,
                advice="write the file with "
                "smaller row groups: pyarrow.parquet.write_table(table, path, row_group_size=1000)",
            )
        return rows

    def _num_bytes(self, group: int, columns: Sequence[str]) -> int:
        """Returns the decompressed size of the given columns, or of all columns if that is small enough."""
        info = self.file.metadata.row_group(group)
        if info.total_byte_size <= MAX_GROUP_BYTES:
            return int(info.total_byte_size)
        # A corrupt `info.column(...)` crashes pyarrow 25 while reading a corrupt row does not, so read one first.
        next(self.batches(group, columns), None)
        paths = [self.file.metadata.schema.column(leaf).path for leaf in range(self.file.metadata.num_columns)]
        wanted = tuple(f"{column}." for column in columns)
        leaves = [leaf for leaf, name in enumerate(paths) if f"{name}.".startswith(wanted)]
        return sum(info.column(leaf).total_uncompressed_size for leaf in leaves)

    def errors_of(self, group: int) -> contextlib.AbstractContextManager[None]:
        """Adds the file and the row group to pyarrow's errors."""
        return arrow_errors(self.path, f"row group {group}: cannot be read")


@dataclasses.dataclass(frozen=True)
class ParquetTable(Table):
    """Rows in row groups.

    Attributes:
      members: the files, in order.
    """

    members: tuple[ParquetFile, ...]

    def scan(self, names: Sequence[str], visit: Callable[[int, pa.RecordBatch], _Result]) -> list[_Result]:
        """Visits all rows of all files."""

        def read(member: tuple[ParquetFile, int]) -> list[_Result]:
            parquet, first = member
            found = []
            with parquet.opened() as file:
                for group in file.groups:
                    for batch in file.batches(group, names):
                        if len(batch):
                            with file.errors_of(group):
                                found.append(visit(first, batch))
                            first += len(batch)
            return found

        members = zip(self.members, self.files.starts, strict=True)
        return list(itertools.chain.from_iterable(paths.each(read, members, self.folder.is_remote)))

    def take(self, rows: NDArray[np.int64], names: Sequence[str], put: Put) -> None:
        """Reads each row group once. Memory: the rows and one batch."""
        for number, positions, in_file in base.by_part(self.files.counts, rows):
            with self.members[number].opened() as file:
                for group, chosen, in_group in base.by_part(self.members[number].groups, in_file):
                    _take_of_group(file, group, names, positions[chosen], in_group, put)


def _take_of_group(
    file: OpenFile, group: int, names: Sequence[str], positions: NDArray[np.int64], rows: NDArray[np.int64], put: Put
) -> None:
    """Reads rows of a row group, ascending, for positions of `ParquetTable.take`."""
    start = taken = 0
    for batch in file.batches(group, names):
        stop = int(np.searchsorted(rows, start + len(batch)))
        if stop > taken:
            with file.errors_of(group):
                put(positions[taken:stop], batch, rows[taken:stop] - start)
        if stop == len(rows):
            return
        start, taken = start + len(batch), stop


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParquetSource(TableSource):
    """A data set in Parquet files.

    Attributes:
      stored: its rows.
    """

    stored: ParquetTable

    def table(self) -> ParquetTable:
        """Returns the table."""
        return self.stored

    def chunks(self, split: str) -> NDArray[np.int64]:
        """Returns the rows of each row group."""
        groups = {file.path: file.groups for file in self.stored.members}
        folder = self.stored.folder
        return np.array([rows for name in self.parts[split].names for rows in groups[folder / name]], np.int64)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, reading each row group once. Memory: the rows and one batch."""
        keys = None if self.columns.key else self.parts[split].keys(rows, equal_digits=False)
        builder = BatchedBuilder(len(rows), self.columns, self.class_names, keys)
        self.stored.take(self.rows(split, rows), self.columns.paths, builder.put)
        return builder.finished()


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
    names = sorted(itertools.chain.from_iterable(by_split.values()))
    try:
        opened = _open_all(folder, names, told, options)
    except UsageError as error:
        raise error.advised(_LEAVE_OUT) if len(by_split) > 1 else error from None
    first = opened[names[0]]
    doubles = tuple(dict.fromkeys(name for one in opened.values() for name in one.columns.doubles))
    chosen = dataclasses.replace(first.columns, doubles=doubles)
    members = {name: opened[name].file for name in itertools.chain.from_iterable(by_split.values())}
    files = Files(tuple(members), tuple(sum(file.groups) for file in members.values()))
    table = ParquetTable(folder, files, tuple(members.values()))
    tables.check_exact(table, chosen)
    chosen = tables.with_box_classes(table, chosen, options.na_is_class)
    in_splits = tables.by_files(table, by_split)
    class_names = tables.class_names(table, chosen, first.class_names, options.na_is_class)
    source = ParquetSource(
        dataset=options.dataset,
        **in_splits,
        class_names=class_names,
        label=chosen.label_feature(len(class_names)),
        files=_describe(folder, names),
        features=chosen.features,
        unique_keys=not chosen.key,
        columns=chosen,
        stored=table,
    )
    if first.split_column:
        return tables.by_column(source, first.split_column, bool(options.split_column))
    tables.check_suspects(table, first.suspects, [*by_split])
    return source


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
    """An opened file.

    Attributes:
      file: the file.
      columns: columns to read.
      class_names: class names in its metadata.
      split_column: column of splits, "" if there is none.
      suspects: other columns that may hold splits.
    """

    file: ParquetFile
    columns: Columns
    class_names: tuple[str, ...]
    split_column: str
    suspects: tuple[str, ...]


def _open_all(
    folder: StoragePath, names: Sequence[str], told: dict[str, dict[str, pa.Scalar]], options: SourceOptions
) -> dict[str, _Opened]:
    """Returns {file: opened}; all files must have the columns of the first."""
    first = _open(folder / names[0], told[names[0]], options)
    # By its names, not by whichever the names in another file would suggest.
    given = dataclasses.replace(options, image_column=first.columns.image, label_column=first.columns.label)

    def another(name: str) -> _Opened:
        try:
            other = _open(folder / name, told[name], given)
        except UsageError as error:
            advice = f"{first.file.path} has them; all files must have the same columns"
            raise DataError(str(error), advice=advice).advised(_LEAVE_OUT) from None
        if (other.columns, other.class_names) != (first.columns, first.class_names):
            raise DataError(
                f"its columns {', '.join(first.columns.paths)} differ from those of {first.file.path} in type or "
                "class names; all files must have the same",
                path=other.file.path,
            )
        return other

    return dict(zip(names, [first, *paths.each(another, names[1:], folder.is_remote)], strict=True))


def _open(path: StoragePath, told: dict[str, pa.Scalar], options: SourceOptions) -> _Opened:
    parquet = ParquetFile(path, streams.stamp(path))
    with parquet.opened() as file:
        inside = file.schema.names  # a file may itself contain the column of its folder
    parquet = dataclasses.replace(parquet, partitions=tuple((name, told[name]) for name in told if name not in inside))
    with parquet.opened() as file:
        schema = file.schema
        used = columns.resolved(str(path), schema, options)
        of_flags = columns.named(str(path), schema, used)
        kept = (*used.keep_columns, *(name for name, _ in parquet.partitions if name not in of_flags))
        chosen = columns.choose(str(path), schema, dataclasses.replace(used, keep_columns=kept))
        parquet = dataclasses.replace(parquet, groups=file.rows_of_groups(chosen.paths))
    names = columns.class_names(schema).get(chosen.label, ())
    suspects = columns.suspects(schema, options.split_column)
    return _Opened(parquet, chosen, names, used.split_column, tuple(suspects))


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(_SUFFIX) and not any(part.startswith((".", "_")) for part in name.split("/"))


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
