"""Several batches in one call of an XLA function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla


def batchwise(function: Callable[..., Any], rowwise: bool = False) -> Callable[..., Any]:
    """Returns a function of one batch, or of several.

    XLA may give a row other bits in a batch of another size. Unless the function is known to be rowwise, XLA computes
    several batches one after another: in its own turn of the loop, a batch gets the bits that it gets alone.

    Args:
      function: of tensors (rows, ...), the last of them (rows,); gives tensors in any structure.
      rowwise: whether it gives a row the same bits in a batch of any size; then several batches are computed as one,
        which XLA compiles to faster code than a loop.

    Returns:
      The function, which also takes and gives (batches, rows, ...); unless rowwise, this compiles inside XLA only.
    """

    def of_one_or_several(*arguments: tf.Tensor) -> Any:
        if arguments[-1].shape.rank == 1:
            return function(*arguments)
        return (_as_one if rowwise else _one_by_one)(function, arguments)

    return of_one_or_several


def _as_one(function: Callable[..., Any], arguments: tuple[tf.Tensor, ...]) -> Any:
    count, rows = arguments[-1].shape
    made = function(*(tf.reshape(each, (count * rows, *each.shape[2:])) for each in arguments))
    return tf.nest.map_structure(lambda each: tf.reshape(each, (count, rows, *each.shape[1:])), made)


def _one_by_one(function: Callable[..., Any], arguments: tuple[tf.Tensor, ...]) -> Any:
    count = arguments[0].shape[0]
    of_one = (tf.TensorSpec(each.shape[1:], each.dtype) for each in arguments)
    traced = tf.function(function, autograph=False).get_concrete_function(*of_one)

    def turn(number: tf.Tensor, made: Any) -> tuple[tf.Tensor, Any]:
        # Without the barrier XLA would fuse the slices into each place that reads them.
        batch = xla.optimization_barrier(*(_taken(each, number) for each in arguments))
        return number + 1, tf.nest.map_structure(lambda into, given: _put(into, number, given), made, traced(*batch))

    def empty(spec: Any) -> tf.Tensor:
        return tf.zeros((count, *spec.shape), spec.dtype)

    made = tf.nest.map_structure(empty, traced.structured_outputs)
    return tf.while_loop(lambda number, _: number < count, turn, (tf.constant(0), made))[1]


def _taken(batches: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    of_one = batches.shape[1:]
    return tf.reshape(tf.slice(batches, [number] + [0] * of_one.rank, [1, *of_one]), of_one)


def _put(into: tf.Tensor, number: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return xla.dynamic_update_slice(into, batch[None], [number] + [0] * batch.shape.rank)
