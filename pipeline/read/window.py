"""Windows as tensors: readers for the records of pieces, and functions that take rows of a window and its tail."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

import numpy as np
import tensorflow as tf

from pipeline import operations
from pipeline.graph_calls import call_numpy, release_arrays
from pipeline.read.memory import Buffers, aligned_matrix
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import ONCE, RowsReader
from pipeline.read.shards import Shards

Columns = dict[str, tf.Tensor]

GOOD = "good"  # column: False if a corrupt record was skipped and its row holds a copy of another row
RECORD_ID = "record_id"
RECORD = "record"  # column: serialized records, string (n,)
# Columns instead of `RECORD`: the memory that the records were read into, and their bounds in it.
MEMORY, BOUNDS = "memory", "bounds"


class WindowReader(Protocol):
    """Reads the records of pieces into columns with one row per record.

    Attributes:
      assigns_rows: whether the caller assigns a row to each record; otherwise rows are in reading order.
    """

    assigns_rows: ClassVar[bool]

    def fetch_ahead(self, pieces: tf.Tensor) -> tf.Tensor:
        """Starts fetching the shards that `read` will need for pieces, if possible; returns the pieces unchanged."""
        return pieces

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor, times: Any = ONCE) -> Columns:
        """Returns the columns for the records of pieces, with at least one row.

        Args:
          pieces: segment, first record and end of each piece, int64 (p, 3).
          row_of: row of each record, followed by its copies' rows, if the reader `assigns_rows`; int64 (n,).
          times: number of rows that each record fills, int64 (records,); empty if each fills one.
        """


class LocalReader(WindowReader):
    """A reader that runs in this process, in NumPy.

    Attributes:
      specs: types of the columns, by name.
      shards: shards to read.
    """

    specs: dict[str, tf.TensorSpec]

    def __init__(self, shards: Shards) -> None:
        self.shards, self._buffers = shards, Buffers(release_arrays)
        self._good = {GOOD: tf.TensorSpec([None], tf.bool)} if shards.corruption.skips else {}

    def arrays(
        self, pieces: np.ndarray, row_of: np.ndarray | None, text: str = "", times: np.ndarray = ONCE
    ) -> dict[str, np.ndarray]:
        """Returns the columns, and possibly others, for the records of pieces.

        Args:
          pieces: pieces to read, as in `read`.
          row_of: row of each record, as in `read`; None for rows in reading order, in memory that is not reused.
          text: label of the progress bar; empty for none.
          times: number of rows that each record fills, as in `read`.

        Raises:
          DataError: a shard is missing, changed or corrupt.
        """
        raise NotImplementedError

    def load(self, pieces: np.ndarray) -> Columns:
        """Reads pieces eagerly and returns their columns.

        Raises:
          DataError: a shard is missing, changed or corrupt.
        """
        found = self.arrays(pieces, None, "reading the data")
        return {n: (as_tensor if n in ("image", MEMORY) else tf.constant)(found[n]) for n in self.specs}

    def fetch_ahead(self, pieces: tf.Tensor) -> tf.Tensor:
        if self.shards.cache is None:
            return pieces

        def fetch(pieces: np.ndarray) -> list[np.ndarray]:
            self.shards.fetch_ahead(pieces)
            return [pieces]

        return tf.ensure_shape(call_numpy(fetch, [pieces], [tf.int64])[0], pieces.shape)

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor, times: Any = ONCE) -> Columns:
        texts = ["reading the first window"]  # the only one that the user waits for: others are read ahead

        def read(pieces: np.ndarray, row_of: np.ndarray, times: np.ndarray) -> list[np.ndarray]:
            found = self.arrays(pieces, row_of, texts.pop() if texts else "", times)
            return [found[name] for name in self.specs]

        tensors = call_numpy(read, [pieces, row_of, times], [spec.dtype for spec in self.specs.values()])
        for tensor, spec in zip(tensors, self.specs.values(), strict=True):
            tensor.set_shape(spec.shape)
        return dict(zip(self.specs, tensors, strict=True))


class RowColumns(LocalReader):
    """Reads raw images: columns `image` uint8 (n, pixels), `label`, and `key` if requested, in NumPy's memory."""

    assigns_rows: ClassVar[bool] = True

    def __init__(self, reader: RowsReader) -> None:
        super().__init__(reader.shards)
        self._reader = reader
        self.specs = {"image": tf.TensorSpec([None, reader.pixels], tf.uint8)}
        self.specs |= {"key": tf.TensorSpec([None], tf.string)} if reader.with_keys else {}
        self.specs |= {"label": tf.TensorSpec([None], tf.int64), **self._good}

    def arrays(
        self, pieces: np.ndarray, row_of: np.ndarray | None, text: str = "", times: np.ndarray = ONCE
    ) -> dict[str, np.ndarray]:
        make_matrix = aligned_matrix if row_of is None else self._buffers.matrix
        rows = self._reader.read(pieces, row_of, make_matrix, text, times)
        keys = {} if rows.keys is None else {"key": rows.keys}
        return {"image": rows.images, "label": rows.labels, GOOD: rows.good, **keys}


class RecordColumns(LocalReader):
    """Reads serialized records of any kind. They stay in the memory that they are read into; `gather` copies them."""

    assigns_rows: ClassVar[bool] = False

    def __init__(self, reader: RecordsReader) -> None:
        super().__init__(reader.shards)
        self._reader = reader
        in_memory = {MEMORY: tf.TensorSpec([1, None], tf.uint8), BOUNDS: tf.TensorSpec([None, 2], tf.int64)}
        found = in_memory if operations.is_compiled() else {RECORD: tf.TensorSpec([None], tf.string)}
        self.specs = {**found, **self._good}

    def arrays(
        self, pieces: np.ndarray, row_of: np.ndarray | None, text: str = "", times: np.ndarray = ONCE
    ) -> dict[str, np.ndarray]:
        found = self._reader.read(pieces, aligned_matrix if row_of is None else self._buffers.matrix, text)
        if len(times):  # copies of a record share its memory
            bounds = np.repeat(found.bounds, times, axis=0)
            found = dataclasses.replace(found, bounds=bounds, good=np.repeat(found.good, times))
        if RECORD in self.specs:
            return {RECORD: found.as_bytes(), GOOD: found.good}
        return {MEMORY: found.memory, BOUNDS: found.bounds, GOOD: found.good}


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Returns a numeric array as an eager tensor that shares its memory, which must be aligned (`Buffers`)."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def gather(window: Columns, rows: tf.Tensor) -> Columns:
    """Returns rows of a window, int64 (...)."""
    if MEMORY not in window:
        return {name: tf.gather(column, rows) for name, column in window.items()}
    others = {name: column for name, column in window.items() if name not in (MEMORY, BOUNDS)}
    record = operations.copy_records(window[MEMORY], tf.gather(window[BOUNDS], rows))
    return {RECORD: record, **gather(others, rows)}


def gather_both(window: Columns, tail: Columns, rows: tf.Tensor) -> Columns:
    """Returns rows of a window, int64 (n,). Negative numbers are rows of its tail, from -1 for the first."""

    def from_both() -> Columns:
        # A run that begins mid-epoch has no tail at first; the steps that would need one are skipped.
        number = next(iter(tail.values()))
        kept = gather(tail, tf.clip_by_value(-1 - rows, 0, tf.shape(number, tf.int64)[0] - 1))
        here = gather(window, tf.maximum(rows, 0))
        is_kept = {name: tf.reshape(rows < 0, [-1] + [1] * (len(column.shape) - 1)) for name, column in here.items()}
        return {name: tf.where(is_kept[name], kept[name], column) for name, column in here.items()}

    return tf.cond(tf.reduce_any(rows < 0), from_both, lambda: gather(window, rows))


def rows_of(window: Columns, first: tf.Tensor, count: int, copied: bool) -> Columns:
    """Returns `count` consecutive rows of a window from `first`, an int64 scalar, on.

    If `copied`, the rows are in new memory, so that keeping them does not keep the window in memory.
    """
    rows = {name: column[first : first + count] for name, column in window.items()}
    if copied:
        rows = {name: tf.raw_ops.DeepCopy(x=part) if part.dtype != tf.string else part for name, part in rows.items()}
    return {name: tf.ensure_shape(part, [count, *window[name].shape[1:]]) for name, part in rows.items()}


def empty_tail(spec: dict[str, tf.TensorSpec]) -> Columns:
    """Returns the tail before the first window: one row of zeros or empty bytes, in the columns of `gather`."""
    if MEMORY in spec:
        others = {name: column for name, column in spec.items() if name not in (MEMORY, BOUNDS)}
        return empty_tail({RECORD: tf.TensorSpec([None], tf.string), **others})
    return {
        name: tf.zeros([1, *column.shape[1:]], column.dtype)
        if column.dtype != tf.string
        else tf.fill([1, *column.shape[1:]], "")
        for name, column in spec.items()
    }
