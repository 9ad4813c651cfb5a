"""Workers and replicas of a job."""

from __future__ import annotations

import dataclasses

import numpy as np

from pipeline.audit.contract import I64
from pipeline.commands.text import count_of
from pipeline.errors import UsageError
from pipeline.order.counts import check_replicas
from pipeline.order.sharding import Shard

_MOST = 1 << 20  # replicas


@dataclasses.dataclass(frozen=True)
class Topology:
    """Workers and replicas of a job.

    Attributes:
      workers: W, processes that read.
      replicas: R; each worker feeds R / W of them.
      global_batch_size: G.

    Raises:
      UsageError: W does not divide R, R does not divide G, or R is more than 1,048,576.
    """

    workers: int
    replicas: int
    global_batch_size: int

    def __post_init__(self) -> None:
        if self.workers < 1 or self.replicas < 1:
            raise UsageError(f"workers={self.workers}, replicas={self.replicas}: must be 1 or more")
        if self.replicas > _MOST:
            raise UsageError(
                f"{self.replicas:,} replicas on {self.workers:,} workers: the audit takes at most {_MOST:,}"
            )
        if self.replicas % self.workers:
            raise UsageError(f"{self.replicas} replicas on {self.workers} workers: each must feed the same number")
        check_replicas(self.global_batch_size, self.replicas)

    @property
    def local_replicas(self) -> int:
        """Replicas that a worker feeds."""
        return self.replicas // self.workers

    def __str__(self) -> str:
        return f"{count_of(self.workers, 'worker')}, {count_of(self.replicas, 'replica')}"

    def shard(self, worker: int) -> Shard:
        """Returns a worker's shard, as the input gets it."""
        return Shard(worker, self.workers, self.local_replicas)

    def worker_rows(self) -> I64:
        """Returns where each worker's rows begin and end: int64 (W, 2)."""
        bounds = np.arange(self.workers + 1) * self.global_batch_size // self.workers
        return np.stack([bounds[:-1], bounds[1:]], axis=1)

    def name_of_row(self, row: int) -> str:
        """Names the replica that has a row of the global batch."""
        replica = row * self.replicas // self.global_batch_size
        return f"replica {replica} (worker {replica // self.local_replicas} of {self.workers})"
