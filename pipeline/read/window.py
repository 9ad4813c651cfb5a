"""Windows as tensors: how the records of pieces get into one, and how rows are taken out of it and of its tail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.read import at_exit
from pipeline.read.buffers import Buffers
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader

Columns = dict[str, tf.Tensor]

GOOD = "good"  # column: False where a corrupt record was left out, and another stands there
RECORD_ID = "record_id"


class WindowReader(Protocol):
    """Reads the records of pieces into columns that have one row a record.

    Attributes:
      places: whether it puts records where it is told, rather than in the order in which they are read.
    """

    places: ClassVar[bool]

    def read(self, pieces: tf.Tensor, place: tf.Tensor) -> Columns:
        """Returns the columns of pieces, at least one row.

        Args:
          pieces: int64 (p, 3): segment, first record and end.
          place: int64 (n,): the row that each record goes to, if the reader `places`.
        """


class LocalReader(WindowReader, Protocol):
    """A reader that is code of this process."""

    def load(self, pieces: np.ndarray) -> Columns:
        """Returns the columns at once, so that errors are those of Python.

        Raises:
          DataError: a shard is missing, changed or corrupt.
        """


@dataclasses.dataclass(frozen=True)
class RowColumns:
    """Columns `image` uint8 (n, pixels), `label`, and `key` where it is wanted, in NumPy's own memory."""

    places: ClassVar[bool] = True

    reader: RowsReader
    buffers: Buffers
    with_good: bool

    def load(self, pieces: np.ndarray) -> Columns:
        """See `LocalReader.load`."""
        rows = self.reader.read(pieces)
        columns = {"image": as_tensor(rows.images), "label": tf.constant(rows.labels)}
        columns |= {"key": tf.constant(rows.keys)} if rows.keys is not None else {}
        return columns | ({GOOD: tf.constant(rows.good)} if self.with_good else {})

    def read(self, pieces: tf.Tensor, place: tf.Tensor) -> Columns:
        """See `WindowReader.read`."""
        dtypes = [tf.uint8, tf.int64, tf.string, tf.bool]
        image, label, key, good = _outside(self._read, [pieces, place], dtypes)
        image.set_shape([None, self.reader.pixels])
        columns = {"image": image, "label": label, "key": key, GOOD: good}
        wanted = {"image", "label", *(["key"] if self.reader.with_keys else []), *([GOOD] if self.with_good else [])}
        for name in wanted - {"image"}:
            columns[name].set_shape([None])
        return {name: columns[name] for name in sorted(wanted)}

    def _read(self, pieces: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = self.reader.read(pieces, place, self.buffers.matrix)
        keys = np.array([b""], object) if rows.keys is None else rows.keys.astype(object)
        return rows.images, rows.labels, keys, rows.good


@dataclasses.dataclass(frozen=True)
class RecordColumns:
    """Column `record`: serialized records."""

    places: ClassVar[bool] = False

    reader: RecordsReader
    with_good: bool

    def load(self, pieces: np.ndarray) -> Columns:
        """See `LocalReader.load`."""
        records = self.reader.read(pieces)
        columns = {"record": tf.constant(records.records)}
        return columns | ({GOOD: tf.constant(records.good)} if self.with_good else {})

    def read(self, pieces: tf.Tensor, place: tf.Tensor) -> Columns:
        """See `WindowReader.read`."""
        del place
        record, good = _outside(self._read, [pieces], [tf.string, tf.bool])
        record.set_shape([None])
        good.set_shape([None])
        return {"record": record, GOOD: good} if self.with_good else {"record": record}

    def _read(self, pieces: np.ndarray) -> tuple[np.ndarray, ...]:
        records = self.reader.read(pieces)
        return records.records, records.good


@tf.autograph.experimental.do_not_convert
def _outside(
    function: Callable[..., tuple[np.ndarray, ...]], arguments: list[tf.Tensor], dtypes: list
) -> list[tf.Tensor]:
    """Returns the tensors of a NumPy function; its errors become TensorFlow's, one line and no stack."""

    def call(*values: np.ndarray) -> tuple[np.ndarray, ...]:
        problem = "the interpreter ends"
        with at_exit.call() as goes_on:
            try:
                if goes_on:
                    return *function(*values), np.array(b"", object)
            except PipelineError as error:
                problem = str(error)
            except MemoryError as error:
                problem = f"no memory for a window ({error}): give a smaller shuffle_bytes (another order)"
            nothing = (np.array([b""] if dtype == tf.string else [0], dtype.as_numpy_dtype) for dtype in dtypes)
            return *nothing, np.array(problem.encode(), object)

    *tensors, problem = tf.numpy_function(call, arguments, [*dtypes, tf.string])
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        return [tf.identity(tensor) for tensor in tensors]


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Returns an array of numbers as an eager tensor in the same memory, which must be aligned (`buffers`)."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def let_go() -> None:
    """Has TensorFlow give back the arrays that it does not need any more.

    It may not do so where it lets go of them, in a thread that does not hold the interpreter's lock; it does with the
    next call of this kind. A loop inside one `tf.function` makes none for a whole epoch.
    """
    tf.numpy_function(_nothing, [], tf.int64)


@tf.autograph.experimental.do_not_convert
def _nothing() -> np.int64:
    return np.int64(0)


def gather(window: Columns, rows: tf.Tensor) -> Columns:
    """Returns rows of a window, int64 (n,)."""
    return {name: tf.gather(column, rows) for name, column in window.items()}


def gather_both(window: Columns, tail: Columns, rows: tf.Tensor) -> Columns:
    """Returns rows of a window, or of its tail where they are negative: -1 is the tail's first."""

    def from_both() -> Columns:
        return {name: _from_both(column, tail[name], rows) for name, column in window.items()}

    return tf.cond(tf.reduce_any(rows < 0), from_both, lambda: gather(window, rows))


def rows_of(window: Columns, first: tf.Tensor, count: int, copied: bool) -> Columns:
    """Returns rows of a window that lie side by side.

    Args:
      window: columns.
      first: int64 scalar, the first row.
      count: how many.
      copied: to new memory, so that who keeps them does not keep the window.
    """
    rows = {name: column[first : first + count] for name, column in window.items()}
    if copied:
        rows = {name: tf.raw_ops.DeepCopy(x=part) if part.dtype != tf.string else part for name, part in rows.items()}
    return {name: tf.ensure_shape(part, [count, *window[name].shape[1:]]) for name, part in rows.items()}


def _from_both(window: tf.Tensor, tail: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    # A run that begins in the middle of an epoch has no tail at first; the steps that want it are not made.
    kept = tf.gather(tail, tf.clip_by_value(-1 - rows, 0, tf.shape(tail, tf.int64)[0] - 1))
    here = tf.gather(window, tf.maximum(rows, 0))
    condition = tf.reshape(rows < 0, [-1] + [1] * (len(window.shape) - 1))
    return tf.where(condition, kept, here)


def empty_tail(spec: dict[str, tf.TensorSpec]) -> Columns:
    """Returns the tail before the first window: one row of zeros, or empty bytes, a column."""
    return {
        name: tf.zeros([1, *column.shape[1:]], column.dtype)
        if column.dtype != tf.string
        else tf.fill([1, *column.shape[1:]], "")
        for name, column in spec.items()
    }
