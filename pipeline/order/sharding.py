"""Which rows of the global batch an input pipeline feeds: `Shard`, the arithmetic of workers and replicas."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from pipeline.errors import UsageError
from pipeline.order.counts import check_replicas, whole_number


class InputContext(Protocol):
    """What is used of `tf.distribute.InputContext`."""

    input_pipeline_id: int
    num_input_pipelines: int
    num_replicas_in_sync: int


@dataclasses.dataclass(frozen=True)
class Shard:
    """One input pipeline of several, for `distribute_datasets_from_function`, Horovod, JAX and the like.

    Attributes:
      index: which input pipeline this is, 0..count-1 (a Horovod or JAX rank).
      count: input pipelines in the job.
      local_replicas: replicas that this one feeds, the same for every one.
    """

    index: int
    count: int
    local_replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("index", "count", "local_replicas"):
            object.__setattr__(self, name, whole_number(f"Shard: {name}", getattr(self, name)))
        if self.count < 1 or not 0 <= self.index < self.count:
            raise UsageError(f"Shard(index={self.index}, count={self.count}): the index must be in 0..count-1")
        if self.local_replicas < 1:
            raise UsageError(f"Shard(local_replicas={self.local_replicas}): must be 1 or more")

    @property
    def num_replicas(self) -> int:
        """R, replicas in the job."""
        return self.count * self.local_replicas

    def replica_rows(self, local_replica: int, global_batch_size: int) -> tuple[int, int]:
        """Returns the rows [start, stop) of the global batch that local replica i gets.

        Raises:
          UsageError: R does not divide the global batch.
        """
        check_replicas(global_batch_size, self.num_replicas)
        rows = global_batch_size // self.num_replicas
        start = (self.index * self.local_replicas + local_replica) * rows
        return start, start + rows


def as_shard(shard: Shard | InputContext | None) -> Shard | None:
    """Returns a `tf.distribute.InputContext` as a `Shard`; a Shard or None as it is.

    Raises:
      UsageError: it is neither, or the context's workers have unequal numbers of replicas.
    """
    if shard is None or isinstance(shard, Shard):
        return shard
    if not all(hasattr(shard, name) for name in InputContext.__annotations__):
        raise UsageError(f"shard={shard!r}: must be a Shard, such as Shard(0, 2), or a tf.distribute.InputContext")
    replicas, pipelines = shard.num_replicas_in_sync, shard.num_input_pipelines
    if replicas % pipelines:
        raise UsageError(f"{replicas} replicas on {pipelines} input pipelines: every one must feed the same number")
    return Shard(shard.input_pipeline_id, pipelines, replicas // pipelines)
