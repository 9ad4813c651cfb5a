"""Window plans that NumPy computes while the dataset runs.

The graph of a plan has 560 nodes. Building them would be half of a dataset's start-up, and a second of a process that
makes several datasets. Only datasets that run in other processes need it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from pipeline.order.window_plan import WindowPlan
from pipeline.read.numpy_calls import call_numpy

PlanOf = Callable[[tf.Tensor], tuple[WindowPlan, tf.Tensor]]


def by_numpy(plan_of: Callable[[int], tuple[WindowPlan, np.ndarray]], replica_rows: int) -> PlanOf:
    """Returns a function of tensors that calls one of NumPy.

    Args:
      plan_of: of a window's number; returns its plan, and an integer.
      replica_rows: rows of each element.
    """
    specs = _specs(replica_rows)

    def call(number: np.ndarray) -> tuple[np.ndarray, ...]:
        plan, first = plan_of(int(number))
        values = zip((*plan, first), specs, strict=True)
        return tuple(np.asarray(value, spec.dtype.as_numpy_dtype) for value, spec in values)

    def planned(number: tf.Tensor) -> tuple[WindowPlan, tf.Tensor]:
        *found, first = call_numpy(call, [number], [spec.dtype for spec in specs])
        for tensor, spec in zip((*found, first), specs, strict=True):
            tensor.set_shape(spec.shape)
        return WindowPlan(*found), first

    return planned


def _specs(replica_rows: int) -> list[tf.TensorSpec]:
    """Returns the types of a plan's parts, and of the integer behind it."""
    scalar, numbers = tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)
    plan = WindowPlan(
        epoch=scalar,
        pieces=tf.TensorSpec([None, 3], tf.int64),
        records=numbers,
        slots=numbers,
        num_elements=scalar,
        take=tf.TensorSpec([None, replica_rows], tf.int64),
        real=tf.TensorSpec([None, replica_rows], tf.bool),
        real_rows=numbers,
        next_tail=numbers,
        contiguous=tf.TensorSpec([2], tf.int64),
    )
    return [*plan, scalar]
