"""Computes only the rows of a batch that need it, in one XLA function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from pipeline.distort import kernels

Distortion: TypeAlias = Callable[..., tf.Tensor]

_BLOCK = 16  # images that are computed together


def by_group(images: tf.Tensor, group: tf.Tensor, functions: Sequence[Distortion], *arguments: tf.Tensor) -> tf.Tensor:
    """Returns images with `functions[g](images, *arguments)` for the rows of group g; others stay as they are.

    The rows are sorted by group. Each function then computes little more than the rows of its group, a block of them at
    a time, which costs hardly more than a row of a whole batch.

    Args:
      images: (rows, height, width, channels).
      group: int32 (rows,), 0 and up.
      functions: each of some rows of the images and the arguments; gives images of the same shape and dtype.
      *arguments: tensors of as many rows.
    """
    rows = images.shape[0]
    block = min(rows, _BLOCK)
    order = tf.argsort(group, stable=True)
    taken = tf.concat([order, tf.zeros(block, tf.int32)], axis=0)  # the last block may reach beyond the last row
    done, *sorted_arguments = (kernels.computed(tf.gather(each, taken)) for each in (images, *arguments))
    of_rows = tf.concat([tf.gather(group, order), tf.fill([block], -1)], axis=0)
    for number, function in enumerate(functions):

        def one(
            first: tf.Tensor, done: tf.Tensor, number: int = number, function: Distortion = function
        ) -> tuple[tf.Tensor, tf.Tensor]:
            some = lambda each: tf.slice(each, [first] + [0] * (each.shape.rank - 1), [block, *each.shape[1:]])  # noqa: E731
            given = kernels.computed(some(done))
            made = kernels.computed(function(given, *(kernels.computed(some(each)) for each in sorted_arguments)))
            kept = tf.where((some(of_rows) == number)[:, None, None, None], made, given)
            return first + block, xla.dynamic_update_slice(done, kernels.computed(kept), [first, 0, 0, 0])

        first, stop = (tf.reduce_sum(tf.cast(group < end, tf.int32)) for end in (number, number + 1))
        _, done = tf.while_loop(lambda first, _, stop=stop: first < stop, one, (first, done))
    return tf.gather(done, tf.argsort(order))
