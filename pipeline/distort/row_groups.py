"""Computes only the rows of a batch that need it, in one XLA function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

Distortion: TypeAlias = Callable[..., tf.Tensor]

_LEAST_BLOCK, _BLOCKS = 16, 16  # images that are computed together: fewer cost as much; and how many such of a batch


def by_group(images: tf.Tensor, group: tf.Tensor, functions: Sequence[Distortion], *arguments: tf.Tensor) -> tf.Tensor:
    """Returns images with `functions[g](images, *arguments)` for the rows of group g; others stay as they are.

    The rows are sorted by group, those that stay before all others. Each function then computes little more than the
    rows of its group, a block of them at a time, which costs hardly more than a row of a whole batch. Compiles inside
    XLA only.

    Args:
      images: (rows, height, width, channels).
      group: int32 (rows,), 0 and up.
      functions: each of some rows of the images and the arguments; gives images of the same shape and dtype.
      *arguments: tensors of as many rows.
    """
    rows = images.shape[0]
    block = min(rows, max(_LEAST_BLOCK, rows // _BLOCKS))
    group = tf.where(group < len(functions), group, -1)
    order = tf.argsort(group, stable=True)
    taken = tf.concat([order, tf.zeros(block, tf.int32)], axis=0)  # the last block may reach beyond the last row
    given = [tf.gather(each, taken) for each in (images, *arguments)]
    done = given[0]
    for number, function in enumerate(functions):
        first, stop = (tf.reduce_sum(tf.cast(group < end, tf.int32)) for end in (number, number + 1))
        done = _in_blocks(function, given, done, first, stop, block)
    return tf.gather(done, tf.argsort(order))


def _in_blocks(
    function: Distortion, given: Sequence[tf.Tensor], done: tf.Tensor, first: tf.Tensor, stop: tf.Tensor, block: int
) -> tf.Tensor:
    """Returns `done` with what the function makes of the given rows from `first` to `stop`.

    Up to a block of the rows behind these are overwritten as well: the next groups come later.
    """

    def one(first: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def held(values: tf.Tensor) -> tf.Tensor:  # as `kernels.computed`: XLA cannot know that there is always a row
            return tf.cond(first < stop, lambda: values, lambda: tf.zeros_like(values))

        some = [held(tf.slice(each, [first] + [0] * (each.shape.rank - 1), [block, *each.shape[1:]])) for each in given]
        made = held(function(*some))  # what is fused into the places where rows lie is not vectorized
        return first + block, xla.dynamic_update_slice(done, made, [first, 0, 0, 0])

    return tf.while_loop(lambda first, _: first < stop, one, (first, done))[1]
