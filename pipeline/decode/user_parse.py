"""The result of the user's parse function for a batch of records, checked: one row per record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline.errors import PipelineError, UsageError


def parsed(parse: Callable[[tf.Tensor], Any], records: tf.Tensor) -> Any:
    """Returns what `parse` gives: tensors, ragged and sparse ones, in any structure, one row per record.

    Args:
      parse: the user's function.
      records: serialized, string (rows,), the number of rows static.

    Raises:
      UsageError: it fails, or returns something else. Numbers of rows that are not static are checked in each batch.
    """
    try:
        given = parse(records)
    except PipelineError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[-1].strip()}"
        raise UsageError(f"parse: the function fails on records {records.shape} of strings: {reason}") from error
    given = tuple(given) if isinstance(given, list) else given  # tf.data would stack a list to one tensor
    leaves = tf.nest.flatten(given)
    if not leaves:
        raise _wrong(given, records)
    return tf.nest.pack_sequence_as(given, [_with_rows(leaf, given, records) for leaf in leaves])


def _with_rows(leaf: Any, given: Any, records: tf.Tensor) -> Any:
    rows = records.shape[0]
    if leaf is None:
        raise _wrong(given, records)
    if not isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        leaf = tf.convert_to_tensor(leaf)
    if leaf.shape.rank == 0 or (leaf.shape.rank and leaf.shape[0] not in (None, rows)):
        raise _wrong(given, records)
    if leaf.shape.rank and leaf.shape[0] == rows:
        return leaf
    text = tf.strings.format(f"parse: the function returned {{}} rows for {rows} records", _num_rows(leaf))
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(_num_rows(leaf), rows), [text])]):
        checked = tf.nest.map_structure(tf.identity, leaf, expand_composites=True)
    if isinstance(checked, tf.Tensor) and leaf.shape.rank:
        checked.set_shape([rows, *leaf.shape[1:]])
    return checked


def _num_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    shape = leaf.dense_shape if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf, tf.int64)
    return shape[0]


def _wrong(given: Any, records: tf.Tensor) -> UsageError:
    text = tf.nest.map_structure(lambda leaf: str(getattr(leaf, "shape", leaf)), given)
    return UsageError(
        f"parse: the function must return tensors of {records.shape[0]} rows, one per record, in any structure; "
        f"their shapes are {text}"
    )
