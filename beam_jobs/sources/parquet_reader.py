"""Reads row groups of Parquet files batch by batch into blocks; faults name the file and row group, or the row."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from beam_jobs.sources.base import BlockBuilder
from beam_jobs.sources.parquet_columns import IMAGE_FIELD, Columns
from beam_jobs.sources.streams import KnownFile
from pipeline.commands.text import count_of
from pipeline.errors import DataError, PipelineError, UsageError, kind_of
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature
from pipeline.records import labels
from pipeline.records.labels import SeenLabels

MAX_GROUP_BYTES = 1 << 30  # 1 GiB: shards read whole row groups, and the one at a boundary is read by two shards
_BATCH_BYTES = 16 << 20  # 16 MiB
MAX_CLASSES = 100_000  # five times the largest published label sets; more means a column of names or numbers
_MAX_BATCH = 512  # rows: dictionary-encoded rows can be larger than the footer says
_BUFFER = 1 << 20  # 1 MiB: reads page by page rather than a whole column of the row group
_FOOTERS = 256  # files whose footers a process keeps
_MOST_TEXT = 200  # characters of pyarrow's message
_HIGHEST = np.iinfo(np.int64).max


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


@contextlib.contextmanager
def arrow_errors(path: object, problem: str) -> Iterator[None]:
    """Context that turns any pyarrow error into one of ours, in one line with the file and the problem."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:  # corrupt files raise pyarrow's kinds, OSError, UnicodeDecodeError, OverflowError, ...
        text = " ".join(str(error).split())
        reason = f"{problem} ({text[:_MOST_TEXT] or type(error).__name__})"
        raise kind_of(error)(reason, path=path) from None


class BatchedBuilder(BlockBuilder):
    """A block that is filled batch by batch, each row at its position."""

    def __init__(
        self, count: int, columns: Columns, class_names: tuple[str, ...], keys: NDArray[np.bytes_] | None
    ) -> None:
        """Makes a block of `count` rows; string labels become their numbers in `class_names`."""
        super().__init__(count, dict(columns.kept), keys=keys)
        self._columns = columns
        self._texts = pa.array(class_names, pa.large_string()) if columns.label_kind == "string" else None

    def put(self, positions: NDArray[np.int64], batch: pa.RecordBatch, rows: NDArray[np.int64]) -> None:
        """Puts rows of a batch, int64 (n,), to positions, int64 (n,).

        Raises:
          ValueError, pyarrow.ArrowException: the values do not have the types that the footer says.
        """
        columns = self._columns
        taken = {name: _taken(batch.column(name), rows) for name in batch.schema.names}
        bad: dict[int, str] = {}
        missing = "has no image bytes (a path is not followed)" if columns.nested else f"{columns.image} is null"
        self.images[positions] = _bytes(taken[columns.image], missing, bad)
        self.labels[positions] = _labels(taken[columns.label], columns, self._texts, bad)
        if columns.key:
            self.keys[positions] = _keys(taken[columns.key], columns.key, bad)
        for name, feature in columns.kept:
            self.extra[name][positions] = _kept(taken[name], name, feature, name in columns.given, bad)
        self.bad.update({int(positions[row]): reason for row, reason in bad.items()})


def _taken(array: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    if pa.types.is_struct(array.type):
        array = pc.struct_field(array, IMAGE_FIELD)
    if pa.types.is_binary_view(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.large_binary())  # Arrow cannot take rows from a view
    whole = len(rows) == len(array) and bool((rows[1:] > rows[:-1]).all())
    return decoded(array if whole else array.take(pa.array(rows)))


def _refuse(bad: dict[int, str], rows: NDArray[np.bool_], reason: str) -> None:
    for row in np.flatnonzero(rows).tolist():
        bad.setdefault(row, reason)


def _refuse_nulls(bad: dict[int, str], array: pa.Array, reason: str) -> None:
    if array.null_count:
        _refuse(bad, array.is_null().to_numpy(zero_copy_only=False), reason)


def decoded(array: pa.Array) -> pa.Array:
    """Returns the values of a column, without dictionary encoding."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _bytes(array: pa.Array, missing: str, bad: dict[int, str]) -> NDArray[np.object_]:
    if not pa.types.is_binary(array.type):
        array = array.cast(pa.large_binary())
    if array.null_count:
        _refuse_nulls(bad, array, missing)
        array = array.fill_null(b"")
    values: NDArray[np.object_] = array.to_numpy(zero_copy_only=False)
    return values


def _integers(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.int64]:
    """Returns integers or booleans; 0 in bad rows."""
    _refuse_nulls(bad, array, f"{name} is null")
    values = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64 and len(values) and values.max() > _HIGHEST:
        _refuse(bad, values > _HIGHEST, f"{name} is above {_HIGHEST}, the most that int64 holds")
        values = np.where(values > _HIGHEST, 0, values)
    return values.astype(np.int64)


def _labels(array: pa.Array, columns: Columns, class_names: pa.Array | None, bad: dict[int, str]) -> NDArray[np.int64]:
    if class_names is None:
        return _integers(array, columns.label, bad)
    array = array.cast(pa.large_string())
    _refuse_nulls(bad, array, f"{columns.label} is null")
    numbers = pc.index_in(array, value_set=class_names).fill_null(-1).to_numpy().astype(np.int64)
    for row in np.flatnonzero(numbers < 0).tolist():
        bad.setdefault(row, f"{columns.label} {labels.refusal(array[row].as_py() or '')}")
    return np.maximum(numbers, 0)


def seen_labels(columns: Columns, na_is_class: bool) -> SeenLabels:
    """Returns an empty collection for the labels of these columns."""
    advice = "name the column of labels with --label_column"
    return SeenLabels(f"column {columns.label!r}", MAX_CLASSES, advice, na_is_class)


def known_classes(columns: Columns, named: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the class names if they follow from `named`, the files' metadata or the labels' type; else ()."""
    if columns.label_kind == "bool":
        return "false", "true"
    return named if columns.label_kind == "int" else ()


def labels_in(array: pa.Array, columns: Columns) -> list[str | int]:
    """Returns the distinct texts in a label column, or its highest number."""
    values = decoded(array)
    found = pc.unique(values).to_pylist() if columns.label_kind == "string" else [pc.max(values).as_py()]
    return [label for label in found if label is not None]


def _keys(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.object_]:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.large_string())
    keys = _bytes(array, f"{name} is null", bad)
    _refuse(bad, keys == b"", f"{name} is empty")
    return keys


def first_inexact(array: pa.Array) -> tuple[int, float] | None:
    """Returns (row, value) of the first float64, or element of a list, that float32 cannot hold exactly."""
    array = decoded(array)
    is_scalar = pa.types.is_floating(array.type)
    values = (array if is_scalar else array.flatten()).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(_is_inexact(values))
    if not len(wrong):
        return None
    row = int(wrong[0]) if is_scalar else pc.list_parent_indices(array)[int(wrong[0])].as_py()
    return row, float(values[wrong[0]])


def rounded(where: tuple[object, int], name: str, value: float, feature: Feature) -> UsageError:
    """Returns an error about a value of a kept column, at (file, row), that float32 cannot hold exactly."""
    choices = [f"{name}:float32 (rounded)"]
    choices += [] if feature.shape else [f"{name}:string (exact, as text)"]
    choices += [f"{name}:int64 (whole numbers)"] if value.is_integer() and abs(value) < 2**63 else []
    return UsageError(
        f"--keep_columns={name}: {where[0]}, row {where[1]}: is {value!r}, which float32, the only floating-point type "
        f"of a tf.train.Example, cannot hold; keep {' or '.join(choices)}"
    )


def _is_inexact(values: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    with np.errstate(over="ignore"):  # beyond float32: infinite
        different: NDArray[np.bool_] = values.astype(np.float32) != values
    return different & ~np.isnan(values)


def _kept(array: pa.Array, name: str, feature: Feature, is_given: bool, bad: dict[int, str]) -> NDArray[Any]:
    if feature.dtype == "string":
        kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
        if is_given and (pa.types.is_decimal(array.type) or not any(is_kind(array.type) for is_kind in kinds)):
            array = array.cast(pa.large_string())  # a float becomes the shortest text with exactly its value
        return _bytes(array, f"{name} is null", bad)
    dtype = feature.dtype if is_given else ""
    if feature.shape == ():
        return _numbers(array, name, dtype, bad)
    _refuse_nulls(bad, array, f"{name} is null")
    return _lists(array, name, dtype, bad) if feature.shape == (None,) else _vectors(array, name, dtype, bad)


def _numbers(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[Any]:
    """Returns numbers as int64 or float32; `given` is the type that the user gave, or ""."""
    if pa.types.is_decimal(array.type) or pa.types.is_temporal(array.type):
        return _from_objects(array, name, given, bad)
    if not pa.types.is_floating(array.type):
        integers = _integers(array, name, bad)
        return integers.astype(np.float32) if given == "float32" else integers
    _refuse_nulls(bad, array, f"{name} is null")
    values = array.to_numpy(zero_copy_only=False)  # nulls become NaN
    if given == "int64":
        whole = (np.floor(values) == values) & (values >= -(2.0**63)) & (values < 2.0**63)
        _refuse_values(bad, ~whole, values, f"{name} {{!r}} is not a whole number that int64 holds")
        return np.where(whole, values, 0).astype(np.int64)
    with np.errstate(over="ignore"):  # beyond float32: infinite
        rounded = values.astype(np.float32)
    if given:
        _refuse_values(bad, np.isinf(rounded) & np.isfinite(values), values, f"{name} {{!r}} is beyond float32")
    else:
        _refuse_values(bad, _is_inexact(values), values, f"{name} {{!r}} is not exactly a float32")
    return rounded


def _from_objects(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[Any]:
    """Returns decimals, or dates and times as numbers of units, as int64 or float32; 0 in bad rows."""
    _refuse_nulls(bad, array, f"{name} is null")
    if pa.types.is_temporal(array.type):
        units = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())  # days, s, ms, us, ns as stored
        return _integers(units.fill_null(0), name, bad)
    out = np.zeros(len(array), given)
    for row, value in enumerate(array.to_pylist()):
        if value is None:
            continue
        if given == "int64" and (value != value.to_integral_value() or not -_HIGHEST - 1 <= value <= _HIGHEST):
            bad.setdefault(row, f"{name} {value} is not a whole number that int64 holds")
        else:
            with np.errstate(over="ignore"):  # beyond float32: infinite
                out[row] = value
            if given == "float32" and np.isinf(out[row]):
                bad.setdefault(row, f"{name} {value} is beyond float32")
    return out


def _refuse_values(
    bad: dict[int, str], rows: NDArray[np.bool_], values: NDArray[np.floating[Any]], reason: str
) -> None:
    """Adds bad rows, with the value formatted into the reason."""
    for row in np.flatnonzero(rows).tolist():
        bad.setdefault(row, reason.format(float(values[row])))


def _lists(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[np.object_]:
    offsets = array.offsets.to_numpy()
    values, wrong = _elements(array.values, name, given)
    for element, reason in wrong.items():
        row = int(np.searchsorted(offsets, element, side="right")) - 1
        if 0 <= row < len(array):  # otherwise it is outside the slice
            bad.setdefault(row, reason)
    out = np.empty(len(array), object)
    for row, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        out[row] = values[start:stop]
    return out


def _vectors(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[Any]:
    size = array.type.list_size
    values, wrong = _elements(array.values.slice(array.offset * size, len(array) * size), name, given)
    for element, reason in wrong.items():
        bad.setdefault(element // size, reason)
    return values.reshape(len(array), size)


def _elements(array: pa.Array, name: str, given: str) -> tuple[NDArray[Any], dict[int, str]]:
    """Returns the numbers in lists, and {element: reason} of the invalid ones."""
    wrong: dict[int, str] = {}
    return _numbers(array, f"an element of {name}", given, wrong), wrong
