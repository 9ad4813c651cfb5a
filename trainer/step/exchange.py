"""Sums over all replicas, and the clock that tells what the workers wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # public nowhere


def all_sum(value: Any) -> Any:
    """Returns the sums of a structure of tensors over all replicas, on each of them. Call it in a replica context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    # In one call for all tensors, which TensorFlow packs into few messages.
    flat = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.nest.flatten(value))
    return tf.nest.pack_sequence_as(value, flat)


def timed(sum_all: Callable[[Any], Any], own: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum over all replicas of what each has, and the seconds from having its own part to having the sum.

    The seconds are a float64 scalar, this replica's own.
    """
    began, total = seconds_after(tf.nest.flatten(own)), sum_all(own)
    # Nothing else may read these, or the bits of the weights could depend on it: see `train_step.apart`. On GPUs, too,
    # collective operations are over only when they have the sum.
    with tf.device("CPU:0"), tf.control_dependencies(tf.nest.flatten(total)):
        return total, seconds() - began


def seconds() -> tf.Tensor:
    """Returns the time at which the op runs, float64 scalar; only differences have a meaning."""
    # Under op determinism TensorFlow refuses its own clock, since results could depend on it; here it is only reported.
    # Python's clock needs the interpreter for a moment, so that it is used only then.
    if is_op_determinism_enabled():
        return tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])
    return tf.timestamp()


def seconds_after(values: list[tf.Tensor]) -> tf.Tensor:
    """Returns the time at which all values have been computed on their device; see `seconds`."""
    with tf.control_dependencies(values):
        # A GPU's operations count as over once they are queued; what is copied from it has waited for those before.
        first = tf.reshape(values[0], [-1])[:1]
    with tf.device("CPU:0"), tf.control_dependencies([tf.ensure_shape(first, first.shape)]):
        return seconds()
