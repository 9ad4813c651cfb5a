"""The clock in a step's graph: the time that it waits for its batch, and that workers wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.runtime import is_op_determinism_enabled


def timed(sum_all: Callable[[Any], Any], own: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum over all replicas, and the seconds between this replica's own part and the sum.

    The seconds are a float64 scalar, which differs between replicas.
    """
    began, total = _seconds_after(tf.nest.flatten(own)), sum_all(own)
    # Nothing else may read these, or the bits of the weights could depend on it: see `gradients.apart`. Even on GPUs,
    # collective operations only end once they have the sum.
    with tf.device("CPU:0"), tf.control_dependencies(tf.nest.flatten(total)):
        return total, clock()() - began


def begun(values: Sequence[tf.Tensor], variable: tf.Variable, device: str) -> tf.Operation:
    """Returns an operation on the host that runs as soon as a GPU has been told to compute some values.

    Waiting for the values themselves means waiting for everything the GPU was told before: a whole update.

    Args:
      values: tensors on the GPU.
      variable: any variable on the GPU.
      device: name of the GPU.
    """
    with tf.device(device), tf.control_dependencies(values):
        return on_host(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))


def on_host(is_there: tf.Tensor) -> tf.Operation:
    """Returns an operation on the host that runs as soon as the host has a bool scalar, which must be true."""
    # The host must consume what a GPU's operation leaves in its memory: waiting for it without reading it means waiting
    # for the GPU, and TensorFlow turns whatever only passes it on into such a wait.
    with tf.device("CPU:0"):
        return tf.raw_ops.Assert(condition=is_there, data=[is_there], summarize=1)


def clock() -> Callable[[], tf.Tensor]:
    """Returns the function that creates a clock op, a float64 scalar; only differences are meaningful."""
    # Under op determinism TensorFlow refuses its own clock, since results could depend on it; here it is only reported.
    # Python's clock needs the interpreter for a moment, so it is only used then.
    return _seconds if is_op_determinism_enabled() else tf.timestamp


def _seconds() -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])


def _seconds_after(values: list[tf.Tensor]) -> tf.Tensor:
    """Returns the time at which all values have been computed on their device."""
    with tf.control_dependencies(values):
        # A GPU's operations count as done once they are queued; a copy from the GPU has waited for earlier ones.
        first = tf.reshape(values[0], [-1])[:1]
    with tf.device("CPU:0"), tf.control_dependencies([tf.ensure_shape(first, first.shape)]):
        return clock()()
