"""Agreement between workers: they stop together, and resume from the same step."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from pipeline.errors import DataError
from trainer.cluster.tf_config import Cluster

_MOST_NUMBERS = 62  # in an int64, summed over local replicas


class Agreement:
    """Small all-reduces between workers; a single worker sends nothing.

    Every worker must make the same calls in the same order.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        self._strategy, self._cluster = strategy, cluster

    def on_any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any worker."""
        return any(self._gather(int(flag)))

    def union(self, numbers: Iterable[int]) -> set[int]:
        """Returns the numbers, 0 to 61, that any worker gives."""
        masks = self._gather(sum(1 << number for number in set(numbers)))
        return {number for number in range(_MOST_NUMBERS) if any(mask >> number & 1 for mask in masks)}

    def wait(self) -> None:
        """Waits for all workers: one that leaves early, above all the chief, costs the others seconds."""
        self._gather(0)

    def check_equal(self, what: str, value: int) -> None:
        """Raises DataError if the workers have different values, as without a shared --model_dir."""
        values = self._gather(value)
        if len(set(values)) > 1:
            raise DataError(f"{what} differs between workers: {values}; --model_dir must be the same folder for all")

    def _gather(self, value: int) -> list[int]:
        """Returns every worker's value (>= 0), by rank."""
        if self._cluster.size == 1:
            return [value]
        # A gather made of a sum: each worker has its own place. All of its replicas add the value there.
        mine = [value if rank == self._cluster.rank else 0 for rank in range(self._cluster.size)]
        sums = self._all_sum(tf.constant(mine, tf.int64)).numpy()
        local_replicas = self._strategy.num_replicas_in_sync // self._cluster.size
        return [int(total) // local_replicas for total in sums]

    @tf.function(autograph=False)
    def _all_sum(self, values: tf.Tensor) -> tf.Tensor:
        def replica_sum() -> tf.Tensor:
            here = tf.identity(values)  # on the replica's device
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

        return self._strategy.experimental_local_results(self._strategy.run(replica_sum))[0]
