"""The window plans of a run as a dataset: computed by NumPy while it runs, or before that, as data of its graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.graph_calls import call_numpy
from pipeline.order.feed import Feed, WindowPlan, make_feed
from pipeline.order.order import MAX_STEP
from pipeline.order.sharding import Shard
from pipeline.read.graph_reader import GraphReader, packed, unpacked


@dataclasses.dataclass(frozen=True)
class RunningWorker(Shard):
    """The shard of the worker that runs a graph, which is the same for all workers.

    Attributes:
      number: number of that worker, int64 scalar; `index` is 0.
    """

    number: Any = 0

    def each(self) -> list[Shard]:
        """Returns the shards of all workers."""
        return [Shard(index, self.count, self.local_replicas) for index in range(self.count)]


@dataclasses.dataclass(frozen=True)
class Run:
    """The part of an order that a dataset feeds.

    Attributes:
      feed: feed that plans the rows of every global batch fed here.
      first_step: global step at which the dataset begins.
      last_step: global step before which it ends; MAX_STEP for never.
      replicas: number of replicas that share each element, which is then a tuple of their parts; None to leave it
        whole.
      stacked: whether elements made together are handed out together, for a consumer that cuts them; not with
        `replicas`.
    """

    feed: Feed
    first_step: int
    last_step: int
    replicas: int | None = None
    stacked: bool = False

    @property
    def num_elements(self) -> int:
        """Number of elements of the dataset, or tf.data's INFINITE_CARDINALITY."""
        if self.last_step == MAX_STEP:
            return int(tf.data.INFINITE_CARDINALITY)
        return (self.last_step - self.first_step) * self.feed.local_replicas

    @tf.autograph.experimental.do_not_convert
    def plans(self, contiguous: bool = False) -> tf.data.Dataset:
        """Returns (plan, first) for every window to read, in order.

        `first` is the number of the window's first element to feed; elements before it belong to earlier steps.

        Args:
          contiguous: whether the plan puts records next to each other in the order of their elements.
        """
        specs = _specs(self.feed.replica_rows)

        def call(number: np.ndarray) -> tuple[np.ndarray, ...]:
            plan, first = self._plan(self.feed, int(number))
            values = zip((*(plan.with_contiguous_elements() if contiguous else plan), first), specs, strict=True)
            return tuple(np.asarray(value, spec.dtype.as_numpy_dtype) for value, spec in values)

        def planned(number: tf.Tensor) -> tuple[WindowPlan, tf.Tensor]:
            *found, first = call_numpy(call, [number], [spec.dtype for spec in specs])
            for tensor, spec in zip((*found, first), specs, strict=True):
                tensor.set_shape(spec.shape)
            return WindowPlan(*found), first

        return tf.data.Dataset.range(*self._windows(self.feed)).map(planned)

    @tf.autograph.experimental.do_not_convert
    def stored_plans(self, shard: Shard | None, reader: GraphReader) -> tf.data.Dataset:
        """Returns the dataset of `plans` with all plans as data of its graph, which then needs no Python.

        Args:
          shard: shard of the feed; with a `RunningWorker`, the graph has the plans of all workers.
          reader: reader of the windows, which joins their pieces.
        """
        specs, texts, bounds = _specs(self.feed.replica_rows), list[list[bytes]](), [0]
        for each in shard.each() if isinstance(shard, RunningWorker) else [shard]:
            feed = make_feed(self.feed.order, each)
            for number in range(*self._windows(feed)):
                plan, first = self._plan(feed, number)
                pieces, times = reader.joined(plan.pieces, plan.times)
                plan = plan._replace(pieces=pieces, times=times, slots=plan.slots[:0])  # in reading order
                texts.append(packed([*plan, first]))
            bounds.append(len(texts))
        with tf.init_scope():  # a tf.function captures it: as a constant of its graph it would be copied many times
            stored = tf.constant(np.array(texts, object).reshape(-1, len(specs)), tf.string)
        if isinstance(shard, RunningWorker):
            stored = stored[tf.gather(bounds, shard.number) : tf.gather(bounds, shard.number + 1)]

        def planned(text: tf.Tensor) -> tuple[WindowPlan, tf.Tensor]:
            *found, first = unpacked(text, specs)
            return WindowPlan(*found), first

        return tf.data.Dataset.from_tensor_slices(stored).map(planned)

    def _windows(self, feed: Feed) -> tuple[int, int]:
        """Returns the first window that a feed reads and the one after the last, counted across epochs."""
        return feed.window_numbers(self.first_step, self.last_step)

    def _plan(self, feed: Feed, number: int) -> tuple[WindowPlan, int]:
        """Returns the plan of a window, by its number across epochs, and its first element to feed."""
        epoch, window = feed.epoch_and_window(number)
        return feed.plan(epoch, window), feed.first_element(self.first_step, epoch, window)


def _specs(replica_rows: int) -> list[tf.TensorSpec]:
    """Returns the types of the fields of a plan, and of the number of its first element."""
    scalar, numbers = tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)
    plan = WindowPlan(
        epoch=scalar,
        pieces=tf.TensorSpec([None, 3], tf.int64),
        times=numbers,
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
