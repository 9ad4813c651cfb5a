"""The clock in a step's graph: how long it waits for its batch, and workers for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.runtime import is_op_determinism_enabled


def timed(sum_all: Callable[[Any], Any], own: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum over all replicas of what each has, and the seconds from having its own part to having the sum.

    The seconds are a float64 scalar, this replica's own.
    """
    began, total = _seconds_after(tf.nest.flatten(own)), sum_all(own)
    # Nothing else may read these, or the bits of the weights could depend on it: see `gradients.apart`. On GPUs, too,
    # collective operations are over only when they have the sum.
    with tf.device("CPU:0"), tf.control_dependencies(tf.nest.flatten(total)):
        return total, clock()() - began


def begun(values: Sequence[tf.Tensor], variable: tf.Variable, device: str) -> tf.Operation:
    """Returns an operation on the host that runs as soon as a GPU has been told to compute some values.

    Whoever waits for the values themselves waits for all that the GPU was told before, too: a whole update.

    Args:
      values: tensors on the GPU.
      variable: any variable there.
      device: the GPU.
    """
    with tf.device(device), tf.control_dependencies(values):
        return on_host(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))


def on_host(is_there: tf.Tensor) -> tf.Operation:
    """Returns an operation on the host that runs as soon as the host has a bool scalar, which is true."""
    # What a GPU's operation leaves in the host's memory must be taken: to wait for it without taking it is to wait for
    # the GPU, and TensorFlow makes that of whatever only passes it on.
    with tf.device("CPU:0"):
        return tf.raw_ops.Assert(condition=is_there, data=[is_there], summarize=1)


def clock() -> Callable[[], tf.Tensor]:
    """Returns the function that makes the op of a clock, a float64 scalar; only differences have a meaning."""
    # Under op determinism TensorFlow refuses its own clock, since results could depend on it; here it is only reported.
    # Python's clock needs the interpreter for a moment, so that it is used only then.
    return _seconds if is_op_determinism_enabled() else tf.timestamp


def _seconds() -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])


def _seconds_after(values: list[tf.Tensor]) -> tf.Tensor:
    """Returns the time at which all values have been computed on their device."""
    with tf.control_dependencies(values):
        # A GPU's operations count as over once they are queued; what is copied from it has waited for those before.
        first = tf.reshape(values[0], [-1])[:1]
    with tf.device("CPU:0"), tf.control_dependencies([tf.ensure_shape(first, first.shape)]):
        return clock()()
