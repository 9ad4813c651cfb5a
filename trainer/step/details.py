"""What a step tells of its gradients and weights, where it is asked to: norms and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

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


def _histogram(tensor: tf.Tensor) -> tf.Tensor:
    values = tf.reshape(tf.cast(tensor, tf.float32), [-1])
    least, greatest = tf.reduce_min(values), tf.reduce_max(values)
    span = tf.where(greatest > least, greatest - least, 1.0)
    place = tf.cast(tf.minimum((values - least) / span * BUCKETS, BUCKETS - 1), tf.int32)
    counts = tf.math.bincount(tf.maximum(place, 0), minlength=BUCKETS, maxlength=BUCKETS, dtype=tf.float32)
    statistics = [least, greatest, tf.reduce_sum(values), tf.reduce_sum(values * values)]
    return tf.ensure_shape(tf.concat([tf.stack(statistics), counts], axis=0), [COLUMNS])
