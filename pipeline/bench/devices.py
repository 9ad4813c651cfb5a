"""The replicas that a benchmark feeds."""

from __future__ import annotations

import tensorflow as tf

from pipeline.errors import UsageError
from pipeline.order.counts import check_replicas


def strategy_of(replicas: int | None, global_batch_size: int) -> tf.distribute.Strategy | None:
    """Returns the strategy that feeds so many replicas; None: one replica that reads host memory.

    Args:
      replicas: on the first GPUs, or logical CPUs where there are none; None: all GPUs, or one CPU.
      global_batch_size: which they divide among themselves.

    Raises:
      UsageError: there are fewer GPUs, or the replicas do not divide the global batch.
    """
    gpus = tf.config.list_physical_devices("GPU")
    count = replicas or max(1, len(gpus))
    check_replicas(global_batch_size, count)
    if gpus:
        if count > len(gpus):
            raise UsageError(f"--replicas={count}: this machine has {len(gpus)} GPUs")
        names = [f"GPU:{i}" for i in range(count)]
        return tf.distribute.OneDeviceStrategy(names[0]) if count == 1 else tf.distribute.MirroredStrategy(names)
    if count == 1:
        return None
    cpu = tf.config.list_physical_devices("CPU")[0]
    existing = tf.config.get_logical_device_configuration(cpu)
    if existing is None:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    elif len(existing) < count:
        raise UsageError(f"--replicas={count}: this process has already split its CPU into {len(existing)}")
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def names_of(strategy: tf.distribute.Strategy | None) -> list[str]:
    """Returns the devices of the replicas, as `CPU:0`."""
    if strategy is None:
        return ["CPU:0"]
    return [":".join(name.split(":")[-2:]) for name in strategy.extended.worker_devices]
