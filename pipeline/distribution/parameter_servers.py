"""Batches for the workers of a `ParameterServerStrategy`: each makes its own rows, in its own process."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from pipeline.batch.compose import make_dataset
from pipeline.order.sharding import Shard
from pipeline.request import Request


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the workers of a ParameterServerStrategy, 0 of any other."""
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return 0
    return strategy.extended._num_workers  # public nowhere: the strategy's cluster_resolver is None


@dataclasses.dataclass(frozen=True)
class RunningWorker(Shard):
    """The shard of the worker that runs the graph: `index` is a tensor, which nobody knows yet."""

    def __post_init__(self) -> None:
        pass


def per_worker(strategy: tf.distribute.Strategy, request: Request, options: tf.distribute.InputOptions | None) -> Any:
    """Returns the dataset of every worker, made in its own process by one graph that is the same for all.

    Args:
      strategy: a ParameterServerStrategy.
      request: for all rows of the global batch.
      options: how batches are copied to devices; None: they are not, as far as the strategy allows.
    """
    workers, replicas = num_workers(strategy), strategy.num_replicas_in_sync

    # Not converted: an error of the arguments would become many lines.
    @tf.function(autograph=False)
    def dataset() -> tf.data.Dataset | tf.distribute.DistributedDataset:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        shard = RunningWorker(tf.cast(index, tf.int64), workers, replicas)
        made = make_dataset(dataclasses.replace(request, shard=shard))
        if options is None and replicas == 1:
            return made
        return strategy.distribute_datasets_from_function(lambda _: made, options)

    return tf.distribute.coordinator.ClusterCoordinator(strategy).create_per_worker_dataset(dataset)
