"""Batches for replicas that read host memory: one dataset per worker, split between its replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pipeline.batch.compose import make_dataset
from pipeline.batch.dataset import split
from pipeline.order.sharding import Shard
from pipeline.request import Request


class ReplicaBatches(tf.distribute.DistributedDataset):
    """The batches, each already split for this worker's replicas inside `tf.data`.

    TensorFlow's distributed iterator runs a generator, a buffer and a thread for each replica, which copy to its
    device. Where there is nothing to copy that only costs 0.3 ms of processor time per replica and step
    (benchmarks/distributed_iterator.py). Here one element holds the values of all replicas, and no step waits for the
    workers to tell each other whether one has run out: all have the same number of steps.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)

    @property
    def element_spec(self) -> Any:
        """The type specification of an element."""
        return self._dataset.element_spec

    @property
    def cardinality(self) -> Any:
        """Steps, int64; as `tf.data.Dataset.cardinality()`."""
        return self._dataset.cardinality()

    def __len__(self) -> int:
        """Returns the steps.

        Raises:
          TypeError: they have no end.
        """
        return len(self._dataset)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Returns the state after `state = reduce_func(state, element)` for all elements: `for` in a `tf.function`."""
        iterator = iter(self._dataset)

        def advance(optional: Any, state: Any) -> tuple[Any, Any]:
            state = reduce_func(state, optional.get_value())
            return iterator.get_next_as_optional(), state

        def has_value(optional: Any, state: Any) -> tf.Tensor:
            del state
            return optional.has_value()

        first = iterator.get_next_as_optional()
        return tf.while_loop(has_value, advance, (first, initial_state), parallel_iterations=1)[1]

    def __repr__(self) -> str:
        """Says what to give Keras instead, which prints this in its error."""
        return f"<ReplicaBatches of {self.element_spec}, for your own loops; give Keras' fit the dataset of input_fn>"


def in_parts(request: Request, parts: int) -> tf.data.Dataset:
    """Returns the steps of a request for `parts` local replicas, all of them stacked in one element."""
    return make_dataset(request).batch(parts, drop_remainder=True)


def in_host_memory(
    strategy: tf.distribute.Strategy, request: Request, virtual_replicas: int | None = None
) -> tf.distribute.DistributedDataset | tf.data.Dataset:
    """Returns the rows of this worker's replicas, made as one batch (or stacked virtual replicas) and split."""
    replicas, local = strategy.num_replicas_in_sync, _local_replicas(strategy)
    workers = replicas // len(local)
    between = len(local) if replicas > 1 else None
    if virtual_replicas:
        parts = virtual_replicas // workers
        shard: Shard | None = Shard(local[0] // len(local), workers, parts)
        of_replicas = tf.autograph.experimental.do_not_convert(lambda *stacked: split(stacked, between))
        dataset = in_parts(dataclasses.replace(request, shard=shard), parts).map(of_replicas).prefetch(1)
    else:
        shard = Shard(local[0] // len(local), workers) if workers > 1 else None
        dataset = make_dataset(dataclasses.replace(request, shard=shard), between)
    return dataset if between is None else as_distributed(strategy, dataset)


def as_distributed(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> ReplicaBatches:
    """Returns distributed values of a dataset's elements, which are tuples of what each of this worker's replicas gets.

    TensorFlow runs nothing for the map below, which only hands on its arguments.
    """

    @tf.autograph.experimental.do_not_convert
    def distributed(*elements: Any) -> Any:
        return tf.nest.map_structure(lambda *values: _distributed(strategy, values), *elements)

    return ReplicaBatches(dataset.map(distributed))


def _local_replicas(strategy: tf.distribute.Strategy) -> list[int]:
    """Returns the numbers, among all replicas, of those that this worker feeds: consecutive."""
    found: list[int] = []

    def note(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        found.append(context.replica_id_in_sync_group)
        return tf.constant(0)

    strategy.experimental_distribute_values_from_function(note)
    return found


def _distributed(strategy: tf.distribute.Strategy, values: Sequence[Any]) -> Any:
    """Returns the values of the local replicas as one distributed value."""

    def value_of(context: tf.distribute.experimental.ValueContext) -> Any:
        return values[context.replica_id_in_sync_group % len(values)]

    return strategy.experimental_distribute_values_from_function(value_of)
