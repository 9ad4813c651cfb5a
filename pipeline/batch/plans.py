"""What of an order a dataset feeds, and the plans of its windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from pipeline.order.arrays import Number, NumpyArrays
from pipeline.order.feed import Feed, WindowPlan
from pipeline.order.order import MAX_STEP
from pipeline.read.numpy_calls import call_numpy

PlanOf = Callable[[tf.Tensor], tuple[WindowPlan, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Run:
    """The part of an order that a dataset feeds.

    Attributes:
      feed: the part of every global batch.
      first_step, last_step: global steps; MAX_STEP is without end.
      replicas: between how many each element is split, which makes it a tuple of what each gets; None: it is not.
    """

    feed: Feed
    first_step: int
    last_step: int
    replicas: int | None = None

    @property
    def num_elements(self) -> int:
        """Of the dataset, or tf.data's number for infinitely many."""
        if self.last_step == MAX_STEP:
            return int(tf.data.INFINITE_CARDINALITY)
        return (self.last_step - self.first_step) * self.feed.local_replicas

    @tf.autograph.experimental.do_not_convert
    def plans(self, contiguous: bool = False) -> tf.data.Dataset:
        """Returns (plan, first) of every window that is read, in order.

        `first` is the number of the window's first element that is fed: those before the run's first step are not.

        Args:
          contiguous: whether records are read to where their elements need them.
        """

        def plan_of(number: Number) -> tuple[WindowPlan, Number]:
            epoch, window = self.feed.epoch_and_window(number)
            plan = self.feed.plan(epoch, window)
            plan = plan.with_contiguous_elements(self.feed.arrays) if contiguous else plan
            return plan, self.feed.first_element(self.first_step, epoch, window)

        # The graph of a plan has 560 nodes. Building them would be half of a dataset's start-up, and a second of a
        # process that makes several datasets. Only datasets that run in other processes need it.
        is_numpy = isinstance(self.feed.arrays, NumpyArrays)
        planned = _by_numpy(plan_of, self.feed.replica_rows) if is_numpy else plan_of
        return tf.data.Dataset.range(*self.feed.window_numbers(self.first_step, self.last_step)).map(planned)


def _by_numpy(plan_of: Callable[[int], tuple[WindowPlan, np.ndarray]], replica_rows: int) -> PlanOf:
    """Returns `plan_of`, which computes with NumPy, as a function of tensors."""
    specs = _plan_specs(replica_rows)

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


def _plan_specs(replica_rows: int) -> list[tf.TensorSpec]:
    """Returns the types of a plan's parts, and of `first`."""
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
