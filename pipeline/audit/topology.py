"""Workers and replicas: which rows of every global batch each of them has, and that they are all rows once."""

from __future__ import annotations

import dataclasses

import numpy as np

from pipeline.audit.claims import Claim, Fault, check_all, check_tiling
from pipeline.commands.text import count_of
from pipeline.errors import UsageError
from pipeline.order.order import I64, check_replicas
from pipeline.order.sharding import Shard


@dataclasses.dataclass(frozen=True)
class Topology:
    """Workers and replicas of a job.

    Attributes:
      workers: W, processes that read.
      replicas: R; each worker feeds R / W of them.
      global_batch_size: G.

    Raises:
      UsageError: W does not divide R, or R does not divide G.
    """

    workers: int
    replicas: int
    global_batch_size: int

    def __post_init__(self) -> None:
        if self.workers < 1 or self.replicas < 1:
            raise UsageError(f"workers={self.workers}, replicas={self.replicas}: must be 1 or more")
        if self.replicas % self.workers:
            raise UsageError(f"{self.replicas} replicas on {self.workers} workers: each must feed the same number")
        check_replicas(self.global_batch_size, self.replicas)

    @property
    def local_replicas(self) -> int:
        """Replicas that a worker feeds."""
        return self.replicas // self.workers

    def __str__(self) -> str:
        return f"{count_of(self.workers, 'worker')}, {count_of(self.replicas, 'replica')}"

    def replica_rows(self) -> I64:
        """Returns where each replica's rows begin and end, by the arithmetic that the input uses: int64 (R, 2)."""
        rows = [
            Shard(worker, self.workers, self.local_replicas).replica_rows(local, self.global_batch_size)
            for worker in range(self.workers)
            for local in range(self.local_replicas)
        ]
        return np.array(rows, np.int64)

    def worker_rows(self) -> I64:
        """Returns where each worker's rows begin and end: int64 (W, 2)."""
        rows = self.replica_rows()
        return np.stack([rows[:: self.local_replicas, 0], rows[self.local_replicas - 1 :: self.local_replicas, 1]], 1)

    def claims(self) -> list[Claim]:
        """Returns what holds of the rows."""
        return check_all([(f"every row is one replica's, all have as many ({self})", self._check_rows)])

    def same_batches(self, other: Topology) -> list[Claim]:
        """Returns what holds of the global batches of two topologies, each of whose rows were checked."""
        return check_all([(f"every global batch is the same on {other}", lambda: self._check_same(other))])

    def name(self, replica: int) -> str:
        """Names a replica."""
        return f"replica {replica} (worker {replica // self.local_replicas} of {self.workers})"

    def _check_rows(self) -> str:
        rows = self.replica_rows()
        check_tiling(rows[:, 0], rows[:, 1], 0, self.global_batch_size, self.name, lambda row: f"row {row}")
        sizes = np.diff(rows)[:, 0]
        wrong = np.flatnonzero(sizes != self.global_batch_size // self.replicas)
        if wrong.size:
            r = int(wrong[0])
            raise Fault(f"row {rows[r, 0]}: {self.name(r)} has {sizes[r]} rows of {self.global_batch_size}")
        return f"rows 0 to {self.global_batch_size - 1:,}, {sizes[0]:,} a replica at every step"

    def _check_same(self, other: Topology) -> str:
        mine, theirs = (
            np.concatenate([np.arange(*bounds) for bounds in topology.replica_rows().tolist()])
            for topology in (self, other)
        )
        size = max(len(mine), len(theirs))
        wrong = np.flatnonzero(np.resize(mine, size) != np.resize(theirs, size))
        if wrong.size or len(mine) != len(theirs):
            i = int(wrong[0]) if wrong.size else min(len(mine), len(theirs))
            raise Fault(f"row {i} of the batches put together: row {mine[i : i + 1]} here, {theirs[i : i + 1]} there")
        here, there = (self.global_batch_size // topology.replicas for topology in (self, other))
        return f"row i: replica i // {here:,} here, i // {there:,} there; no argument of the order is of the topology"
