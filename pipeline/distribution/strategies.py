"""Feeds the replicas of a `tf.distribute` strategy: each exactly its rows, on its device ahead of time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from pipeline.errors import UsageError
from pipeline.input import input_fn
from pipeline.order.order import check_replicas
from pipeline.order.sharding import InputContext, Shard

PREFETCH = 2  # batches on each device ahead of the step: one in use by the copy, one ready

MakeDataset = Callable[[Shard | InputContext | None], tf.data.Dataset]


class ReplicaBatches(tf.distribute.DistributedDataset):
    """Batches for replicas that read host memory, split for them inside `tf.data`.

    TensorFlow's distributed iterator runs a generator, a buffer and a thread for each replica, which copy to its
    device. Where there is no copy to make they only cost, 0.3 ms of processor time a replica and step
    (benchmarks/distributed_iterator.py). Here one element holds the values of all replicas. And no step waits for the
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
        """Says also what Keras should be given, which prints this where it is handed one."""
        return f"<ReplicaBatches of {self.element_spec}, for loops of your own; for Keras' fit there is input_fn>"


def distribute(
    strategy: tf.distribute.Strategy,
    data_dir: str | os.PathLike[str],
    split: str = "train",
    *,
    global_batch_size: int,
    training: bool,
    prefetch: int = PREFETCH,
    **arguments: Any,
) -> Any:
    """Returns the input of a strategy: replica r gets rows [rG/R, (r+1)G/R) of every global batch.

    It is for loops of your own, over it or with `next` of its iterator, inside a `tf.function` or outside; Keras' `fit`
    distributes `input_fn`'s dataset by itself. Each worker makes the rows of its own replicas only.

    With a ParameterServerStrategy worker i of W makes, in its own process, rows [iG/W, (i+1)G/W) of every step; the
    result is what `ClusterCoordinator.create_per_worker_dataset` gives: `coordinator.schedule(step, args=(iter(it),))`.
    Workers do not wait for each other, so one may be steps ahead; one that is started again begins at `start_step`
    again. The workers must see the data set's files under the same path as the coordinator.

    Args:
      strategy: OneDevice, Mirrored, MultiWorkerMirrored, ParameterServer, CentralStorage or the default strategy.
      data_dir, split, global_batch_size, training: as `input_fn`'s.
      prefetch: batches that wait on each replica's device; 0 hands over host memory, without a copy ahead. Replicas
        on CPUs read host memory.
      **arguments: `input_fn`'s others: seed, start_step, epochs, distort, remainder, weights, streams, shuffle_bytes,
        record_ids.

    Returns:
      Elements (images, labels, weights): distributed values, or tensors where there is one replica in all.

    Raises:
      DataError, UsageError: as `input_fn`; also where the replicas do not divide the global batch, and for
        `on_corrupt="skip"` with a ParameterServerStrategy, whose workers cannot skip.
    """
    workers = _asynchronous_workers(strategy)
    check_replicas(global_batch_size, max(1, workers) * strategy.num_replicas_in_sync)
    if prefetch < 0:
        raise UsageError(f"prefetch={prefetch}: must be 0 or more")
    if "shard" in arguments:
        raise UsageError("distribute: takes no shard; the strategy says which rows a worker feeds")

    def make_dataset(shard: Shard | InputContext | None) -> tf.data.Dataset:
        return input_fn(
            data_dir, split, global_batch_size=global_batch_size, training=training, shard=shard, **arguments
        )

    if _replicas_are_on_cpus(strategy):
        prefetch = 0
    if workers:
        return _per_worker(strategy, make_dataset, workers, prefetch)
    if prefetch == 0:
        return _in_host_memory(strategy, make_dataset)
    return _on_devices(strategy, make_dataset, prefetch)


def _replicas_are_on_cpus(strategy: tf.distribute.Strategy) -> bool:
    try:
        devices = strategy.extended.worker_devices
    except RuntimeError:  # the default strategy names none, and copies nothing ahead
        return True
    return all(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in devices)


def _in_host_memory(
    strategy: tf.distribute.Strategy, make_dataset: MakeDataset
) -> tf.distribute.DistributedDataset | tf.data.Dataset:
    """Makes the rows of this worker's replicas as one batch, and splits it."""
    replicas, local = strategy.num_replicas_in_sync, _local_replicas(strategy)
    if replicas == 1:
        return make_dataset(None)

    def split(*batch: Any) -> tuple[Any, ...]:
        return tf.nest.map_structure(lambda component: _distributed(strategy, _split(component, len(local))), batch)

    workers = replicas // len(local)
    dataset = make_dataset(Shard(local[0] // len(local), workers) if workers > 1 else None)
    return ReplicaBatches(dataset.map(split).prefetch(1))


def _local_replicas(strategy: tf.distribute.Strategy) -> list[int]:
    """Returns the numbers, among all replicas, of those that this worker feeds: consecutive."""
    found: list[int] = []

    def note(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        found.append(context.replica_id_in_sync_group)
        return tf.constant(0)

    strategy.experimental_distribute_values_from_function(note)
    return found


def _split(component: tf.Tensor | tf.RaggedTensor, parts: int) -> list[Any]:
    """Returns as many equal runs of rows; of a RaggedTensor, too, which `tf.split` does not take."""
    if isinstance(component, tf.RaggedTensor):
        rows = component.nrows() // parts
        return [component[part * rows : (part + 1) * rows] for part in range(parts)]
    return tf.split(component, parts)


def _distributed(strategy: tf.distribute.Strategy, values: list[Any]) -> Any:
    """Returns the values of the local replicas as one distributed value."""

    def value_of(context: tf.distribute.experimental.ValueContext) -> Any:
        return values[context.replica_id_in_sync_group % len(values)]

    return strategy.experimental_distribute_values_from_function(value_of)


def _on_devices(
    strategy: tf.distribute.Strategy, make_dataset: MakeDataset, prefetch: int
) -> tf.distribute.DistributedDataset:
    """Copies to each replica's device ahead of the step, with TensorFlow's distributed iterator.

    One worker makes the global batch as a whole, to be split, which costs less than many small batches.
    """
    options = _ahead(prefetch)
    # TensorFlow 2.21's CentralStorageStrategy.experimental_distribute_dataset fails on any options (a misspelt name).
    by_function = (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.experimental.CentralStorageStrategy)
    if isinstance(strategy, by_function):
        return strategy.distribute_datasets_from_function(make_dataset, options)
    return strategy.experimental_distribute_dataset(make_dataset(None), options)


def _ahead(prefetch: int) -> tf.distribute.InputOptions:
    return tf.distribute.InputOptions(experimental_fetch_to_device=True, experimental_per_replica_buffer_size=prefetch)


def _asynchronous_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the workers of a ParameterServerStrategy, 0 of any other."""
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return 0
    return strategy.extended._num_workers  # public nowhere: the strategy's cluster_resolver is None


@dataclasses.dataclass(frozen=True)
class _RunningWorker(Shard):
    """The shard of the worker that runs the graph: `index` is a tensor, which nobody knows yet."""

    def __post_init__(self) -> None:
        pass


def _per_worker(strategy: tf.distribute.Strategy, make_dataset: MakeDataset, workers: int, prefetch: int) -> Any:
    """Has every worker make its rows in its own process, by one graph that is the same for all."""

    # Not converted: an error of the arguments would become many lines.
    @tf.function(autograph=False)
    def dataset() -> tf.data.Dataset | tf.distribute.DistributedDataset:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        made = make_dataset(_RunningWorker(tf.cast(index, tf.int64), workers, strategy.num_replicas_in_sync))
        if prefetch == 0 and strategy.num_replicas_in_sync == 1:
            return made
        return strategy.distribute_datasets_from_function(lambda _: made, _ahead(prefetch) if prefetch else None)

    return tf.distribute.coordinator.ClusterCoordinator(strategy).create_per_worker_dataset(dataset)
