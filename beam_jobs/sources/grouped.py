"""Data sets in files of row groups, such as Parquet: a column of encoded images, one of labels, others as features.

The unit of reading is the row group. A format defines how its files are opened and how many rows each group has; the
rules for columns, splits and classes are the same for all.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from beam_jobs import flag_values
from beam_jobs.sources import base, columns, defaults, streams
from beam_jobs.sources import table as tables
from beam_jobs.sources.arrow_types import class_names
from beam_jobs.sources.base import Block, Files, Source, SourceOptions
from beam_jobs.sources.blocks import BatchedBuilder, arrow_errors
from beam_jobs.sources.columns import Columns
from beam_jobs.sources.defaults import Fill
from beam_jobs.sources.streams import KnownFile
from beam_jobs.sources.table import Put, Table, TableSource
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files import paths
from pipeline.files.paths import StoragePath
from pipeline.manifest import SourceFile
from pipeline.records import splits

MAX_GROUP_BYTES = 1 << 30  # 1 GiB: shards read whole row groups, and the one at a boundary is read by two shards
_LEAVE_OUT = "--splits names the splits to convert, and leaves out the files of others"

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class GroupedFile(KnownFile, abc.ABC):
    """A file of row groups as it was when the source was opened.

    Attributes:
      groups: number of rows in each row group.
      partitions: (column, value) of each column in its folders' names, constant for the whole file.
      fills: values that nulls become.
    """

    groups: tuple[int, ...] = ()
    partitions: tuple[tuple[str, pa.Scalar], ...] = ()
    fills: tuple[Fill, ...] = ()

    @contextlib.contextmanager
    def opened(self) -> Iterator[OpenFile]:
        """Opens the file, and checks before and after that it is unchanged.

        Raises:
          DataError: it changed, or is not of its format.
        """
        self.check_unchanged()
        with contextlib.ExitStack() as stack:
            yield self._open(stack)
        self.check_unchanged()

    @abc.abstractmethod
    def _open(self, stack: contextlib.ExitStack) -> OpenFile:
        """Returns the open file, which `stack` closes."""


@dataclasses.dataclass(frozen=True)
class OpenFile(abc.ABC):
    """An open file, its path for errors, the values of its partitions, and the values that nulls become."""

    path: StoragePath
    partitions: dict[str, pa.Scalar]
    fills: tuple[Fill, ...]

    @property
    @abc.abstractmethod
    def own_schema(self) -> pa.Schema:
        """The columns of the file. Raises DataError if they cannot be read."""

    @property
    @abc.abstractmethod
    def groups(self) -> range:
        """The numbers of the row groups."""

    @abc.abstractmethod
    def count(self, group: int) -> int:
        """Returns the number of rows in a row group, according to the file."""

    @abc.abstractmethod
    def read(self, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields columns of a row group, given by dotted paths, in batches that fit into memory."""

    @abc.abstractmethod
    def rows_of_groups(self, names: Sequence[str]) -> tuple[int, ...]:
        """Returns the number of rows in each row group, after checking that the given columns fit into memory.

        Raises:
          DataError: a row group is larger than 1 GiB or cannot be read; the file contradicts itself.
        """

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file, then of its partitions. Raises DataError if it cannot be read."""
        schema = self.own_schema
        for name, value in self.partitions.items():
            schema = schema.append(pa.field(name, value.type))
        return schema

    def batches(self, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields columns of a row group, given by dotted paths, with defaults in place of nulls.

        Raises:
          DataError: a value is corrupt, or rows are missing.
        """
        rows, read = self.count(group), 0
        inside = [name for name in names if name not in self.partitions]
        told = {name: value for name, value in self.partitions.items() if name in names}
        if not inside:
            batch = pa.RecordBatch.from_pydict({name: pa.repeat(value, rows) for name, value in told.items()})
            yield defaults.filled(batch, self.fills)
            return
        with self.errors_of(group):
            for found in self.read(group, inside):
                read, batch = read + len(found), found
                for name, value in told.items():
                    batch = batch.append_column(pa.field(name, value.type), pa.repeat(value, len(batch)))
                yield defaults.filled(batch, self.fills)
        if read != rows:
            problem = f"row group {group}: has {count_of(read, 'row')}, but the file says {rows:,}"
            raise streams.damaged(self.path, problem)

    def errors_of(self, group: int) -> contextlib.AbstractContextManager[None]:
        """Adds the file and the row group to pyarrow's errors."""
        return arrow_errors(self.path, f"row group {group}: cannot be read")


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files of row groups.

    Attributes:
      find: function that returns (folder, {split: files in it}) for given options.
      open: function that opens a file for the first time.
      describe: function that returns the manifest entries of files in a folder.
    """

    find: Callable[[SourceOptions], tuple[StoragePath, dict[str, list[str]]]]
    open: Callable[[StoragePath], GroupedFile]
    describe: Callable[[StoragePath, Sequence[str]], tuple[SourceFile, ...]]


@dataclasses.dataclass(frozen=True)
class GroupedTable(Table):
    """Rows in row groups.

    Attributes:
      members: the files, in order.
    """

    members: tuple[GroupedFile, ...]

    def scan(self, names: Sequence[str], visit: Callable[[int, pa.RecordBatch], _Result]) -> list[_Result]:

        def read(member: tuple[GroupedFile, int]) -> list[_Result]:
            grouped, first = member
            found = []
            with grouped.opened() as file:
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
    """Writes rows of a row group, ascending, to their positions."""
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
class GroupedSource(TableSource):
    """A data set in files of row groups.

    Attributes:
      stored: table with the rows.
    """

    stored: GroupedTable

    def table(self) -> GroupedTable:
        return self.stored

    def chunks(self, split: str) -> NDArray[np.int64]:
        groups = {file.path: file.groups for file in self.stored.members}
        folder = self.stored.folder
        return np.array([rows for name in self.parts[split].names for rows in groups[folder / name]], np.int64)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        keys = None if self.columns.key else self.parts[split].keys(rows, equal_digits=False)
        builder = BatchedBuilder(len(rows), self.columns, self.class_names, keys)
        self.stored.take(self.rows(split, rows), self.columns.paths, builder.put)
        return builder.finished()


def by_names(folder: StoragePath, names: Sequence[str], options: SourceOptions) -> dict[str, list[str]]:
    """Returns {split: files}, from words in file and folder names; all files are `train` if a column has the splits."""
    if options.split_column not in ("", splits.NO_COLUMN):
        return {splits.TRAIN: list(names)}
    return splits.by_files(folder, names, options.splits)


def open_source(options: SourceOptions, kind: Format) -> Source:
    """Opens files and finds their columns, splits and classes.

    Args:
      options: options; `source` is a file, a folder of files, or a glob; for columns see `config.ConvertConfig`.
      kind: format of the files.

    Raises:
      UsageError: a column is missing or cannot be converted; float32 cannot hold its values.
      DataError: a file is missing or cannot be read, files differ in their columns or class names, the split of a file
        is unclear, a split has no row, a row group is larger than 1 GiB, or no row has a label.
    """
    for flag, value in (("group_by", options.group_by), ("stratify", options.stratify)):
        if flag_values.path_pattern(value):
            raise UsageError(f"--{flag}={value}: images within {options.dataset} files have no paths; name a column")
    folder, by_split = kind.find(options)
    told = tables.partitions(folder, sorted(itertools.chain.from_iterable(by_split.values())), options.split_column)
    names = list(told)
    try:
        opened = _open_all(kind, folder, told, options)
    except UsageError as error:
        raise error.advised(_LEAVE_OUT) if len(by_split) > 1 else error from None
    first = opened[names[0]]
    doubles = tuple(dict.fromkeys(name for one in opened.values() for name in one.columns.doubles))
    chosen = dataclasses.replace(first.columns, doubles=doubles)
    members = {name: opened[name].file for name in itertools.chain.from_iterable(by_split.values())}
    files = Files(tuple(members), tuple(sum(file.groups) for file in members.values()))
    table = GroupedTable(folder, files, tuple(members.values()))
    tables.check_exact(table, chosen)
    chosen = tables.with_box_classes(table, chosen, options.na_is_class)
    in_splits = tables.by_files(table, by_split)
    classes = tables.class_names(table, chosen, first.class_names, options.na_is_class)
    source = GroupedSource(
        dataset=options.dataset,
        **in_splits,
        class_names=classes,
        label=chosen.label_feature(len(classes)),
        files=kind.describe(folder, names),
        features=chosen.features,
        unique_keys=not chosen.key,
        columns=chosen,
        stored=table,
    )
    if first.split_column:
        return tables.by_column(source, first.split_column, bool(options.split_column))
    tables.check_suspects(table, first.suspects, [*by_split])
    return source


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

    file: GroupedFile
    columns: Columns
    class_names: tuple[str, ...]
    split_column: str
    suspects: tuple[str, ...]


def _open_all(
    kind: Format, folder: StoragePath, told: dict[str, dict[str, pa.Scalar]], options: SourceOptions
) -> dict[str, _Opened]:
    names = list(told)
    first = _open(kind, folder / names[0], told[names[0]], options)
    # All files use the first one's column names, even if another file has more usual ones.
    given = dataclasses.replace(options, image_column=first.columns.image, label_column=first.columns.label)

    def another(name: str) -> _Opened:
        try:
            other = _open(kind, folder / name, told[name], given)
        except UsageError as error:
            advice = f"{first.file.path} has them; all files must have the same columns"
            raise DataError(str(error), advice=advice).advised(_LEAVE_OUT) from None
        if (other.columns, other.class_names) != (first.columns, first.class_names):
            raise _unlike(first, other)
        return other

    return dict(zip(names, [first, *paths.each(another, names[1:], folder.is_remote)], strict=True))


def _unlike(first: _Opened, other: _Opened) -> DataError:
    problem = (
        f"its columns {', '.join(first.columns.paths)} differ from those of {first.file.path} in type or class names"
    )
    there, here = first.columns.features, other.columns.features
    for name in sorted(there.keys() & here.keys()):
        if there[name].dtype != here[name].dtype:
            problem = f"its column {name!r} is {here[name]}, and {there[name]} in {first.file.path}"
            return DataError(problem, path=other.file.path, advice=f"give --keep_columns={name}:TYPE, such as float32")
    return DataError(problem, path=other.file.path, advice="all files must have the same")


def _open(kind: Format, path: StoragePath, told: dict[str, pa.Scalar], options: SourceOptions) -> _Opened:
    grouped = kind.open(path)
    with grouped.opened() as file:
        inside = file.own_schema.names  # a file may itself contain the column of its folder
        partitions = {name: value for name, value in told.items() if name not in inside}
        schema = dataclasses.replace(file, partitions=partitions).schema
        used = columns.resolved(str(path), schema, options, folders=partitions)
        chosen = columns.choose(str(path), schema, used)
        names = class_names(schema, chosen.label)
        groups = file.rows_of_groups(chosen.paths)
    fills = defaults.chosen(str(path), schema, chosen, used, names)
    grouped = dataclasses.replace(grouped, partitions=tuple(partitions.items()), groups=groups, fills=fills)
    suspects = columns.suspects(schema, options.split_column)
    return _Opened(grouped, chosen, names, used.split_column, tuple(suspects))
