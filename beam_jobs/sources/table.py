"""Tables: rows of Arrow columns in files of any format, and the rules for what they mean.

A format only says how many rows its files have and reads columns of them. The split of a row, the names of the classes,
values that would be rounded, the place of a row in messages: these rules are here, once for all formats. `columns`
chooses the columns of a table, `blocks` converts their values. Folders named `column=value`, which Hive and Spark write
for partitions, are columns of the files in them, kept as features unless a flag names them.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources import base, blocks, defaults, placed_columns
from beam_jobs.sources.arrow_types import kind_of
from beam_jobs.sources.base import LABEL, DealtSource, Files, Source, Texts
from beam_jobs.sources.columns import Columns
from beam_jobs.sources.defaults import Fill
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS
from pipeline.records import splits
from pipeline.records.labels import SeenLabels

MAX_CLASSES = 100_000  # five times the largest published label sets; more means a column of names or numbers
SHOWN = 80  # characters of a value in errors
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")

_Result = TypeVar("_Result")
Put = Callable[[NDArray[np.int64], pa.RecordBatch, NDArray[np.int64]], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Table(abc.ABC):
    """Rows of files, numbered across all of them.

    Attributes:
      folder: folder that the files' names are relative to.
      files: names of the files, with their numbers of rows.
    """

    folder: StoragePath
    files: Files

    @abc.abstractmethod
    def scan(self, names: Sequence[str], visit: Callable[[int, pa.RecordBatch], _Result]) -> list[_Result]:
        """Reads columns of all rows, batch by batch.

        Args:
          names: names of the columns.
          visit: function called with the number of a batch's first row and the batch; remote files are read by several
            threads.

        Returns:
          The results of `visit`, in the order of the rows.
        """

    @abc.abstractmethod
    def take(self, rows: NDArray[np.int64], names: Sequence[str], put: Put) -> None:
        """Reads columns of some rows, each unit of reading once.

        Args:
          rows: row numbers, int64 (n,).
          names: dotted paths of the columns.
          put: function called with positions in `rows`, a batch, and the batch's rows for these positions.
        """

    @property
    def first_file(self) -> StoragePath:
        """Path of the first file."""
        return self.folder / self.files.names[0]

    def where(self, row: int) -> tuple[str, int]:
        """Returns (file, row in it) of a row."""
        return self.files.where(row)

    def place(self, row: int) -> tuple[StoragePath, int]:
        """Returns (path of the file, row in it) of a row."""
        name, own = self.files.where(row)
        return self.folder / name, own

    def refused(self, row: int, problem: str, advice: str = "") -> DataError:
        """Returns an error about a row."""
        path, own = self.place(row)
        return DataError(problem, path=path, part=f"row {own}", advice=advice)


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedTable(Table):
    """A table in memory.

    Attributes:
      data: columns of all rows.
    """

    data: pa.Table

    def scan(self, names: Sequence[str], visit: Callable[[int, pa.RecordBatch], _Result]) -> list[_Result]:
        found, first = [], 0
        for batch in self.data.select(list(names)).to_batches():
            found.append(visit(first, batch))
            first += len(batch)
        return found

    def take(self, rows: NDArray[np.int64], names: Sequence[str], put: Put) -> None:
        every = np.arange(len(rows))
        for batch in self.data.select(list(names)).take(pa.array(rows)).combine_chunks().to_batches():  # one, or none
            put(every, batch, every)

    def filled(self, fills: Sequence[Fill]) -> LoadedTable:
        """Returns the table with defaults in place of nulls."""
        if not fills:
            return self
        batches = [defaults.filled(batch, fills) for batch in self.data.to_batches()]
        return dataclasses.replace(self, data=pa.Table.from_batches(batches).combine_chunks())

    def replaced(self, name: str, column: pa.ChunkedArray) -> LoadedTable:
        """Returns the table with new values of a column, in one piece so that taking rows is faster."""
        number = self.data.schema.names.index(name)
        return dataclasses.replace(self, data=self.data.set_column(number, name, column).combine_chunks())


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TableSource(Source):
    """The rows of a table, each in the split of its file.

    Attributes:
      columns: columns to read, the same for all files.
      firsts: {split: the table's first row of each of its files}.
    """

    columns: Columns
    firsts: dict[str, tuple[int, ...]]

    @abc.abstractmethod
    def table(self) -> Table:
        """Returns the table; a worker may have to read it again."""

    def rows(self, split: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the table's rows for rows of a split, int64 (n,)."""
        files, own = base.locate(self.parts[split].counts, rows)
        return np.array(self.firsts[split], np.int64)[files] + own

    def rows_of_splits(self) -> NDArray[np.int64]:
        """Returns the table's rows of all splits, one split after another, int64 (n,)."""
        return np.concatenate([self.rows(split, np.arange(count)) for split, count in self.splits.items()])

    def texts(self, column: str, needed: str = "") -> Texts:
        table, is_label = self.table(), column == LABEL
        found = _texts(table, self.columns.label if is_label else column)
        codes, values = found.codes[self.rows_of_splits()], found.values
        if needed and "" in values and (empty := np.flatnonzero(codes == values.index(""))).size:
            row = int(self.rows_of_splits()[empty[0]])
            problem = f"column {column!r} has no value, which {needed} needs ({count_of(len(empty), 'such row')})"
            raise table.refused(row, problem, "give these rows values, each its own if nothing connects them")
        if is_label and self.columns.label_kind == "int":
            named = dict(enumerate(self.class_names))  # other texts stay, since their rows are invalid
            values = tuple(named.get(int(value), value) if value.isdecimal() else value for value in values)
        return Texts(codes, values)

    def where(self, split: str, row: int) -> tuple[str, int]:
        return self.table().where(int(self.rows(split, np.array([row], np.int64))[0]))


def partitions(
    folder: StoragePath, names: Sequence[str], split: str, are_texts: bool = False
) -> dict[str, dict[str, pa.Scalar]]:
    """Returns {file: {column: value}} from folders `column=value`; whole numbers if all values of a column are numbers.

    Folders that name splits are left to `splits.by_files`, unless they are the column `split`, which the user named.

    Args:
      folder: folder of the files.
      names: names of the files in it.
      split: column that the user named for splits.
      are_texts: whether all values are texts, as CSV fields are; a missing value is then an empty text.

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
    if are_texts:
        return {file: {name: pa.scalar(own[name] or "", pa.string()) for name in used} for file, own in told.items()}
    types = {
        name: pa.int64() if all(_WHOLE.fullmatch(own[name] or "0") for own in told.values()) else pa.string()
        for name in used
    }
    return {
        file: {name: pa.scalar(own[name], pa.string()).cast(types[name]) for name in used} for file, own in told.items()
    }


def by_files(table: Table, files: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the fields of a `TableSource` that assign its rows to splits.

    Args:
      table: the table.
      files: {split: names of its files}.

    Raises:
      DataError: a split has no row.
    """
    counts = dict(zip(table.files.names, table.files.counts, strict=True))
    firsts = dict(zip(table.files.names, table.files.starts, strict=True))
    parts = {split: Files(tuple(names), tuple(counts[name] for name in names)) for split, names in files.items()}
    return {
        "splits": base.rows_of(parts, table.folder),
        "parts": parts,
        "firsts": {split: tuple(firsts[name] for name in names) for split, names in files.items()},
    }


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ColumnSplitSource(DealtSource):
    """A table with a column that names the split of each row. Workers read the column again, and keep it.

    Attributes:
      column: name of the column.
      is_given: whether the user named the column: it may then hold words other than train, validation and test.
    """

    inner: TableSource
    column: str
    is_given: bool

    def _rows(self, split: str) -> NDArray[np.int64]:
        return _rows_by_split(self.inner.table(), self.column, self.is_given)[split]


def by_column(source: TableSource, column: str, is_given: bool) -> Source:
    """Returns a source with the splits that a column names; the source itself if its files are in these splits.

    Args:
      source: source whose splits follow one another in the table.
      column: name of the column.
      is_given: whether the user named the column, so that names of files do not matter.

    Raises:
      DataError: a value names no split, or contradicts the name of a file.
    """
    table = source.table()
    found = _rows_by_split(table, column, is_given)
    if not is_given and _agree(table, source.parts, found, column):
        return source
    counts = {split: len(found[split]) for split in splits.in_order(found)}
    return ColumnSplitSource.of(source, counts, column=column, is_given=is_given)


def _agree(table: Table, parts: Mapping[str, Files], found: Mapping[str, NDArray[np.int64]], column: str) -> bool:
    """Returns whether a column names the splits that the files are in."""
    first, agree = 0, True
    for split, files in parts.items():
        for name, count in zip(files.names, files.counts, strict=True):
            by_name = split if len(parts) > 1 else splits.hint(name)
            for by_value, rows in found.items():
                own = rows[(rows >= first) & (rows < first + count)]
                if len(own):
                    agree &= by_value == split
                    splits.check_name(table.folder / name, int(own[0]) - first, by_name, by_value, column)
            first += count
    return agree


@functools.lru_cache(maxsize=2)
def _rows_by_split(table: Table, column: str, is_given: bool) -> dict[str, NDArray[np.int64]]:
    """Returns {split: its rows, int64 (n,), ascending} from the split column."""
    found: dict[str, list[NDArray[np.int64]]] = {}

    def visit(first: int, batch: pa.RecordBatch) -> None:
        encoded = _as_text(table, first, batch, column).fill_null("").dictionary_encode()
        codes = encoded.indices.to_numpy()
        for code, word in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code) + first
            split = splits.of_value(word.strip(), is_given)
            if not split:
                advice = splits.not_a_split(word, column)
                raise table.refused(int(rows[0]), f"column {column!r} has {word[:SHOWN]!r}", advice)
            found.setdefault(split, []).append(rows)

    table.scan([column], visit)
    return {split: np.sort(np.concatenate(rows)) for split, rows in found.items()}


@functools.lru_cache(maxsize=4)
def _texts(table: Table, column: str) -> Texts:
    """Returns the values of a column for all rows of a table; rows without a value have an empty one."""
    codes: dict[str, int] = {}
    lock = threading.Lock()  # files in object stores are read by several threads

    def visit(first: int, batch: pa.RecordBatch) -> tuple[int, NDArray[np.int64]]:
        with blocks.arrow_errors(table.place(first)[0], f"column {column!r} cannot be read as texts"):
            array = blocks.decoded(batch.column(0))
            array = array if kind_of(array.type) in ("bytes", "fixed") else array.cast(pa.large_string())
            encoded = array.cast(pa.large_binary()).fill_null(b"").dictionary_encode()
        texts = [value.decode(errors="surrogateescape").strip() for value in encoded.dictionary.to_pylist()]
        with lock:
            own = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64)
        return first, own[encoded.indices.to_numpy()]

    found = table.scan([column], visit)
    # By first row: several threads may have read files in any order, so the codes mean the same but may differ.
    every = np.concatenate([np.zeros(0, np.int64), *(part for _, part in sorted(found, key=lambda pair: pair[0]))])
    return Texts(every, tuple(codes))


def _as_text(table: Table, first: int, batch: pa.RecordBatch, column: str) -> pa.Array:
    with blocks.arrow_errors(table.place(first)[0], f"column {column!r} cannot name splits"):
        return blocks.decoded(batch.column(0)).cast(pa.string())


def check_suspects(table: Table, suspects: Sequence[str], named: Sequence[str]) -> None:
    """Raises DataError if a column that is not used as the split column looks like one.

    Args:
      table: the table.
      suspects: names of the columns that may hold splits.
      named: splits found in the files' names.
    """
    for name in suspects if len(named) < 2 else ():

        def visit(first: int, batch: pa.RecordBatch, name: str = name) -> list[str | None]:
            return pc.unique(_as_text(table, first, batch, name)).to_pylist()

        values = itertools.chain.from_iterable(table.scan([name], visit))
        splits.check_suspect(table.first_file, name, values, named)


def class_names(table: Table, columns: Columns, named: tuple[str, ...], na_is_class: bool) -> tuple[str, ...]:
    """Returns the name of each class: `named`, the files' metadata, or else the values of the labels.

    Reads all labels rather than the footers' statistics: pyarrow 25 crashes on corrupt statistics.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if columns.label_kind in ("float", "none"):
        return ()
    if columns.label_kind == "boxes":
        return next(each.feature.class_names for each in columns.placed if each.name == BOX_LABELS)
    if columns.label_kind == "bool":
        return "false", "true"
    if columns.label_kind == "int" and named:
        return named
    seen = SeenLabels(f"column {columns.label!r}", MAX_CLASSES, columns.instead, na_is_class)

    def visit(first: int, batch: pa.RecordBatch) -> None:
        values = blocks.decoded(batch.column(0))
        if columns.has_lists:
            values = blocks.decoded(blocks.label_lists(values, columns.separator).flatten())
        found = pc.unique(values).to_pylist() if columns.label_kind == "string" else [pc.max(values).as_py()]
        seen.add([label for label in found if label is not None], table.place(first)[0])

    table.scan([columns.label], visit)
    return seen.class_names(table.first_file)


def with_box_classes(table: Table, columns: Columns, na_is_class: bool) -> Columns:
    """Returns the columns with the class names of the boxes, taken from the values if nothing else gives them.

    Raises:
      DataError: no row has a box, there are more than 100,000 classes, or a file cannot be read.
    """
    found = next((each for each in columns.placed if each.name == BOX_LABELS), None)
    if found is None or found.feature.class_names:
        return columns
    named = ".".join(found.path)
    seen = SeenLabels(f"column {named!r}", MAX_CLASSES, "name another with --box_labels_column", na_is_class)

    def visit(first: int, batch: pa.RecordBatch) -> None:
        rows = (placed_columns.at(value, found.path[1:]) for value in batch.column(0).to_pylist())
        values = {value for row in rows if row for value in row if value is not None}
        seen.add(sorted(values), table.place(first)[0])

    table.scan([found.column], visit)
    feature = dataclasses.replace(found.feature, class_names=seen.class_names(table.first_file))
    placed = tuple(dataclasses.replace(each, feature=feature) if each is found else each for each in columns.placed)
    return dataclasses.replace(columns, placed=placed)


def check_exact(table: Table, columns: Columns) -> None:
    """Raises UsageError if a kept column has a value that would be rounded without the user's permission.

    All values are read before anything is written, so that a long conversion does not fail halfway.
    """
    kept = dict(columns.kept)

    def visit(first: int, batch: pa.RecordBatch) -> None:
        for name in columns.doubles:
            if inexact := _first_inexact(batch.column(batch.schema.names.index(name))):
                raise _rounded(table.place(first + inexact[0]), name, inexact[1], kept[name])

    if columns.doubles:
        table.scan(columns.doubles, visit)


def _first_inexact(array: pa.Array) -> tuple[int, float] | None:
    """Returns (row, value) of the first float64, or element of a list, that float32 cannot hold exactly."""
    array = blocks.decoded(array)
    is_scalar = pa.types.is_floating(array.type)
    values = (array if is_scalar else array.flatten()).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(blocks.is_inexact(values))
    if not len(wrong):
        return None
    row = int(wrong[0]) if is_scalar else pc.list_parent_indices(array)[int(wrong[0])].as_py()
    return row, float(values[wrong[0]])


def _rounded(where: tuple[object, int], name: str, value: float, feature: Feature) -> UsageError:
    choices = [f"{name}:float32 (rounded)"]
    choices += [f"{name}:string (exact, as {'JSON' if feature.shape else 'text'})"]
    choices += [f"{name}:int64 (whole numbers)"] if value.is_integer() and abs(value) < 2**63 else []
    return UsageError(
        f"--keep_columns={name}: {where[0]}, row {where[1]}: is {value!r}, which float32, the only floating-point type "
        f"of a tf.train.Example, cannot hold; keep {' or '.join(choices)}"
    )
