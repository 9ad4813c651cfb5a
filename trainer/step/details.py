"""What a step tells besides its loss: means over its epoch; where it is asked to, norms and histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer.task.sums import WEIGHT, Sums

BUCKETS = 30  # as TensorBoard's own
COLUMNS = 4 + BUCKETS
DECAY = 0.9  # of moving averages: that of the CIFAR-10 tutorial's losses (cifar10.py)


def norm(gradients: Sequence[tf.Tensor], wanted: tf.Tensor) -> tf.Tensor:
    """Returns the norm of all gradients together, float32 scalar; 0, at no cost, unless `wanted`."""
    return tf.cond(wanted, lambda: tf.linalg.global_norm(gradients), lambda: tf.constant(0.0))


def histograms(tensors: Sequence[Any], wanted: tf.Tensor) -> tf.Tensor:
    """Returns a histogram of each tensor or variable, float32 (tensors, COLUMNS); none, at no cost, unless `wanted`.

    A row is the least value, the greatest, their sum and the sum of squares, then the counts in equal buckets between
    the first two.
    """
    if not tensors:
        return tf.zeros([0, COLUMNS])
    return tf.cond(
        wanted,
        lambda: tf.stack([_histogram(tf.convert_to_tensor(one)) for one in tensors]),
        lambda: tf.zeros([0, COLUMNS]),
    )


def no_averages() -> tf.Variable:
    """Returns a place for the moving averages of a run: NaN, until there is a first update."""
    return tf.Variable([math.nan] * 3, trainable=False, dtype=tf.float32)


def moved(averages: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns moving averages after one more update with these values; they begin with the first of them."""
    return tf.where(tf.math.is_nan(averages), values, DECAY * averages + (1 - DECAY) * values)


def no_sums() -> tf.Variable:
    """Returns a place for the sums over an epoch: of no length, until there is a first update."""
    return tf.Variable(tf.zeros([0], tf.float64), trainable=False, shape=tf.TensorShape([None]))


def added_up(before: tf.Tensor, sums: Sums, penalty: tf.Tensor, begins: tf.Tensor) -> tf.Tensor:
    """Returns the sums over an epoch after one more update, float64: in the same order, they come to the same bits.

    Args:
      before: those after the update before; of another length, such as 0, they begin with this update.
      sums: of the measure, over all rows of the update.
      penalty: its regularisation.
      begins: whether the update is the first of its epoch, bool scalar.

    Returns:
      The number of updates, the regularisation of each times the weight of its rows, then the sums, flat.
    """
    weight = tf.cast(sums[WEIGHT], tf.float64)
    own = tf.stack([tf.constant(1.0, tf.float64), tf.cast(penalty, tf.float64) * weight])
    here = tf.concat([own, *(tf.reshape(tf.cast(value, tf.float64), [-1]) for value in sums.values())], axis=0)
    size = here.shape[0]
    padded = tf.ensure_shape(tf.pad(before[:size], [[0, size - tf.minimum(tf.size(before), size)]]), [size])
    return tf.where(begins | tf.not_equal(tf.size(before), size), here, padded + here)


def taken_apart(epoch: tf.Tensor, shapes: Mapping[str, tf.TensorShape]) -> tuple[Sums, tf.Tensor]:
    """Returns the sums of the measure over an epoch, and the mean regularisation, of what `added_up` returned."""
    _, penalty, *parts = tf.split(epoch, [1, 1, *(shape.num_elements() for shape in shapes.values())])
    sums = {name: tf.reshape(part, shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
    return sums, penalty[0] / tf.maximum(sums[WEIGHT], 1.0)


def _histogram(tensor: tf.Tensor) -> tf.Tensor:
    values = tf.reshape(tf.cast(tensor, tf.float32), [-1])
    least, greatest = tf.reduce_min(values), tf.reduce_max(values)
    span = tf.where(greatest > least, greatest - least, 1.0)
    place = tf.cast(tf.minimum((values - least) / span * BUCKETS, BUCKETS - 1), tf.int32)
    counts = tf.math.bincount(tf.maximum(place, 0), minlength=BUCKETS, maxlength=BUCKETS, dtype=tf.float32)
    statistics = [least, greatest, tf.reduce_sum(values), tf.reduce_sum(values * values)]
    return tf.ensure_shape(tf.concat([tf.stack(statistics), counts], axis=0), [COLUMNS])
