"""Windows as tensors: reads the records of pieces into one, and takes rows out of it and of its tail."""

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

GOOD = "good"  # column: False where a corrupt record was left out, and a copy of another stands in for it
RECORD_ID = "record_id"


class WindowReader(Protocol):
    """Reads the records of pieces into columns with one row per record.

    Attributes:
      assigns_rows: whether each record goes to the row it is told, rather than in the order of reading.
    """

    assigns_rows: ClassVar[bool]

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor) -> Columns:
        """Returns the columns of pieces, at least one row.

        Args:
          pieces: int64 (p, 3): segment, first record and end.
          row_of: int64 (n,): the row that each record goes to, if the reader `assigns_rows`.
        """


class LocalReader(WindowReader, Protocol):
    """A reader that runs in this process."""

    def load(self, pieces: np.ndarray) -> Columns:
        """Returns the columns at once; errors are Python's.

        Raises:
          DataError: a shard is missing, changed or corrupt.
        """


@dataclasses.dataclass(frozen=True)
class RowColumns:
    """Columns `image` uint8 (n, pixels), `label`, and `key` if it is wanted, in NumPy's memory."""

    assigns_rows: ClassVar[bool] = True

    reader: RowsReader
    buffers: Buffers
    with_good: bool

    def load(self, pieces: np.ndarray) -> Columns:
        """See `LocalReader.load`."""
        rows = self.reader.read(pieces)
        columns = {"image": as_tensor(rows.images), "label": tf.constant(rows.labels)}
        columns |= {"key": tf.constant(rows.keys)} if rows.keys is not None else {}
        return columns | ({GOOD: tf.constant(rows.good)} if self.with_good else {})

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor) -> Columns:
        """See `WindowReader.read`."""
        dtypes = [tf.uint8, tf.int64, tf.string, tf.bool]
        image, label, key, good = _call_numpy(self._read, [pieces, row_of], dtypes)
        image.set_shape([None, self.reader.pixels])
        columns = {"image": image, "label": label, "key": key, GOOD: good}
        wanted = {"image", "label", *(["key"] if self.reader.with_keys else []), *([GOOD] if self.with_good else [])}
        for name in wanted - {"image"}:
            columns[name].set_shape([None])
        return {name: columns[name] for name in sorted(wanted)}

    def _read(self, pieces: np.ndarray, row_of: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = self.reader.read(pieces, row_of, self.buffers.matrix)
        keys = np.array([b""], object) if rows.keys is None else rows.keys.astype(object)
        return rows.images, rows.labels, keys, rows.good


@dataclasses.dataclass(frozen=True)
class RecordColumns:
    """Column `record`: serialized records."""

    assigns_rows: ClassVar[bool] = False

    reader: RecordsReader
    with_good: bool

    def load(self, pieces: np.ndarray) -> Columns:
        """See `LocalReader.load`."""
        records = self.reader.read(pieces)
        columns = {"record": tf.constant(records.records)}
        return columns | ({GOOD: tf.constant(records.good)} if self.with_good else {})

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor) -> Columns:
        """See `WindowReader.read`."""
        del row_of
        record, good = _call_numpy(self._read, [pieces], [tf.string, tf.bool])
        record.set_shape([None])
        good.set_shape([None])
        return {"record": record, GOOD: good} if self.with_good else {"record": record}

    def _read(self, pieces: np.ndarray) -> tuple[np.ndarray, ...]:
        records = self.reader.read(pieces)
        return records.records, records.good


@tf.autograph.experimental.do_not_convert
def _call_numpy(
    function: Callable[..., tuple[np.ndarray, ...]], arguments: list[tf.Tensor], dtypes: list
) -> list[tf.Tensor]:
    """Returns the tensors of a NumPy function; its errors become TensorFlow's, one line and no stack."""

    def call(*values: np.ndarray) -> tuple[np.ndarray, ...]:
        problem = "the interpreter is exiting"
        with at_exit.reading() as may_begin:
            try:
                if may_begin:
                    return *function(*values), np.array(b"", object)
            except PipelineError as error:
                problem = str(error)
            except MemoryError as error:
                problem = (
                    f"not enough memory for a window ({error}): give a smaller shuffle_bytes, which changes the order"
                )
            nothing = (np.array([b""] if dtype == tf.string else [0], dtype.as_numpy_dtype) for dtype in dtypes)
            return *nothing, np.array(problem.encode(), object)

    *tensors, problem = tf.numpy_function(call, arguments, [*dtypes, tf.string])
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        return [tf.identity(tensor) for tensor in tensors]


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Returns an array of numbers as an eager tensor in the same memory, which must be aligned (`buffers`)."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def release_arrays() -> None:
    """Has TensorFlow release the arrays that it no longer needs.

    A thread of TensorFlow that does not hold the interpreter's lock leaves that to the next call of a NumPy function. A
    loop inside one `tf.function` makes no such call for a whole epoch.
    """
    tf.numpy_function(_nothing, [], tf.int64)


@tf.autograph.experimental.do_not_convert
def _nothing() -> np.int64:
    return np.int64(0)


def gather(window: Columns, rows: tf.Tensor) -> Columns:
    """Returns rows of a window, int64 (n,)."""
    return {name: tf.gather(column, rows) for name, column in window.items()}


def gather_both(window: Columns, tail: Columns, rows: tf.Tensor) -> Columns:
    """Returns rows of a window, or of its tail where they are negative: -1 is the tail's first row."""

    def from_both() -> Columns:
        return {name: _from_both(column, tail[name], rows) for name, column in window.items()}

    return tf.cond(tf.reduce_any(rows < 0), from_both, lambda: gather(window, rows))


def rows_of(window: Columns, first: tf.Tensor, count: int, copied: bool) -> Columns:
    """Returns consecutive rows of a window.

    Args:
      window: columns.
      first: int64 scalar, the first row.
      count: how many.
      copied: to new memory, so that keeping them does not keep the window.
    """
    rows = {name: column[first : first + count] for name, column in window.items()}
    if copied:
        rows = {name: tf.raw_ops.DeepCopy(x=part) if part.dtype != tf.string else part for name, part in rows.items()}
    return {name: tf.ensure_shape(part, [count, *window[name].shape[1:]]) for name, part in rows.items()}


def _from_both(window: tf.Tensor, tail: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    # A run that begins in the middle of an epoch has no tail at first; the steps that need one are skipped.
    kept = tf.gather(tail, tf.clip_by_value(-1 - rows, 0, tf.shape(tail, tf.int64)[0] - 1))
    here = tf.gather(window, tf.maximum(rows, 0))
    condition = tf.reshape(rows < 0, [-1] + [1] * (len(window.shape) - 1))
    return tf.where(condition, kept, here)


def empty_tail(spec: dict[str, tf.TensorSpec]) -> Columns:
    """Returns the tail before the first window: one row of zeros, or of empty bytes, per column."""
    return {
        name: tf.zeros([1, *column.shape[1:]], column.dtype)
        if column.dtype != tf.string
        else tf.fill([1, *column.shape[1:]], "")
        for name, column in spec.items()
    }
