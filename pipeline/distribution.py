"""Feeds the replicas of a `tf.distribute` strategy: each exactly its rows, copied to its device ahead of time."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from pipeline.errors import UsageError
from pipeline.input import input_fn
from pipeline.order import check_replicas

PREFETCH = 2  # batches on each device ahead of the step: one in use by the copy, one ready


def distribute(
    strategy: tf.distribute.Strategy,
    data_dir: str | os.PathLike[str],
    split: str = "train",
    *,
    global_batch_size: int,
    training: bool,
    prefetch: int = PREFETCH,
    **arguments: Any,
) -> tf.distribute.DistributedDataset:
    """Returns the input of a strategy: replica r gets rows [rG/R, (r+1)G/R) of every global batch.

    On one worker the global batch is made as a whole and split (`experimental_distribute_dataset`), which costs less
    than many small batches; of several workers each makes only the rows of its own replicas
    (`distribute_datasets_from_function`).

    Args:
      strategy: OneDevice, Mirrored, MultiWorkerMirrored, CentralStorage or the default strategy.
      data_dir, split, global_batch_size, training: as `input_fn`'s.
      prefetch: batches that wait on each replica's device; 0 hands over host memory, without a copy ahead.
      **arguments: `input_fn`'s others: seed, start_step, epochs, distort, remainder, weights, streams, shuffle_bytes,
        record_ids.

    Returns:
      A `DistributedDataset` of (images, labels, weights).

    Raises:
      DataError, UsageError: as `input_fn`; also where the replicas do not divide the global batch.
    """
    check_replicas(global_batch_size, strategy.num_replicas_in_sync)
    if prefetch < 0:
        raise UsageError(f"prefetch={prefetch}: must be 0 or more")
    if "shard" in arguments:
        raise UsageError("distribute: takes no shard; the strategy says which rows a worker feeds")
    if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        raise UsageError("distribute: ParameterServerStrategy is not supported yet")

    def dataset_fn(context: tf.distribute.InputContext | None) -> tf.data.Dataset:
        return input_fn(
            data_dir, split, global_batch_size=global_batch_size, training=training, shard=context, **arguments
        )

    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=prefetch > 0, experimental_per_replica_buffer_size=max(1, prefetch)
    )
    # TensorFlow 2.21's CentralStorageStrategy.experimental_distribute_dataset fails on any options (a misspelt name).
    by_function = (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.experimental.CentralStorageStrategy)
    if isinstance(strategy, by_function):
        return strategy.distribute_datasets_from_function(dataset_fn, options)
    return strategy.experimental_distribute_dataset(dataset_fn(None), options)
