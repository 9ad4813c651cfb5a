"""The streams, shards and bytes that each worker reads, computed from the manifest alone."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import UsageError
from pipeline.order.feed import LaidShards
from pipeline.order.order import I64, Order, OrderSpec
from pipeline.order.sharding import Shard, check_replicas

if TYPE_CHECKING:
    from pipeline.manifest.splits import Selection

_MOST_REPLICAS = 1 << 20
_WINDOWS_IN_MEMORY = 2  # the current window and the next one


@dataclasses.dataclass(frozen=True)
class Topology:
    """Workers and replicas of a job.

    Attributes:
      workers: W, the number of processes that read.
      replicas: R, the number of replicas; each worker feeds R / W of them.
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
        if self.replicas > _MOST_REPLICAS:
            raise UsageError(
                f"{self.replicas:,} replicas on {self.workers:,} workers: the audit takes at most {_MOST_REPLICAS:,}"
            )
        if self.replicas % self.workers:
            raise UsageError(f"{self.replicas} replicas on {self.workers} workers: each must feed the same number")
        check_replicas(self.global_batch_size, self.replicas)

    @property
    def local_replicas(self) -> int:
        """Number of replicas that a worker feeds."""
        return self.replicas // self.workers

    def __str__(self) -> str:
        workers, replicas = ("" if count == 1 else "s" for count in (self.workers, self.replicas))
        return f"{self.workers:,} worker{workers}, {self.replicas:,} replica{replicas}"

    def shard(self, worker: int) -> Shard:
        """Returns a worker's shard, as passed to the input."""
        return Shard(worker, self.workers, self.local_replicas)

    def worker_rows(self) -> I64:
        """Returns the first row of each worker and the one after the last: int64 (W, 2)."""
        bounds = np.arange(self.workers + 1) * self.global_batch_size // self.workers
        return np.stack([bounds[:-1], bounds[1:]], axis=1)

    def name_of_row(self, row: int) -> str:
        """Returns the name of the replica that gets a row of the global batch."""
        replica = row * self.replicas // self.global_batch_size
        return f"replica {replica} (worker {replica // self.local_replicas} of {self.workers})"


@dataclasses.dataclass(frozen=True)
class Reading:
    """The data that a topology's workers read in one epoch.

    A worker opens the streams that overlap its replicas' rows, and reads each of them from the first position to the
    last. If it has all streams, and each has one window, it reads them once per run and keeps them in memory. A part of
    a shard counts as that fraction of the file's bytes, which is exact if all records have the same length.

    Attributes:
      order: order of the records.
      spec: arguments of the order.
      selection: records of the split.
      epoch: number of the epoch.
      topology: workers and replicas of the job.
    """

    order: Order
    spec: OrderSpec
    selection: Selection
    epoch: int
    topology: Topology

    @cached_property
    def streams(self) -> I64:
        """First stream of each worker and the one after the last: int64 (W, 2)."""
        rows, q = self.topology.worker_rows(), self.order.rows_per_stream
        return np.stack([rows[:, 0] // q, -(-rows[:, 1] // q)], axis=1)

    @cached_property
    def positions(self) -> I64:
        """First position of each worker and the one after the last: int64 (W, 2)."""
        return self.order.stream_bounds()[self.streams]

    @cached_property
    def laid(self) -> I64:
        """First position of each shard in the epoch's order, and the end of the last: int64 (S + 1,)."""
        return np.concatenate([[0], np.cumsum(self._shards.counts[self._shards.counts > 0])])

    @cached_property
    def _shards(self) -> LaidShards:
        return LaidShards.of(self.order, self.epoch)

    @cached_property
    def segments(self) -> I64:
        """Segments with records to read, in the epoch's order."""
        return self._shards.segments[self._shards.counts > 0]

    @cached_property
    def _laid_bytes(self) -> I64:
        counts, times = self.order.count_array, self.order.times
        if times is not None:  # only records that occur in the epoch are read
            read = times.ids(np.flatnonzero(times.of(self.epoch)))
            counts = np.bincount(np.searchsorted(np.cumsum(counts), read, "right"), minlength=len(counts))
        shards = [self.selection.segments[i].shard for i in self.segments.tolist()]
        each = zip(shards, counts[self.segments].tolist(), strict=True)
        return np.cumsum([0, *(shard.num_bytes * count // shard.num_examples for shard, count in each)])

    def bytes_before(self, positions: I64) -> I64:
        """Returns the bytes of all records before each position: int64, with the shape of `positions`."""
        return np.rint(np.interp(positions, self.laid, self._laid_bytes)).astype(np.int64)

    @cached_property
    def split_bytes(self) -> int:
        """Bytes of all records of the split."""
        return int(self.bytes_before(self.laid[-1:])[0])

    @cached_property
    def worker_bytes(self) -> I64:
        """Bytes that each worker reads in the epoch: int64 (W,)."""
        return np.diff(self.bytes_before(self.positions))[:, 0]

    @property
    def amplification(self) -> float:
        """Bytes that all workers read together, divided by the split's bytes."""
        return float(self.worker_bytes.sum() / self.split_bytes)

    @cached_property
    def worker_shards(self) -> I64:
        """First shard that each worker opens and the one after the last, in the epoch's order: int64 (W, 2)."""
        first = np.searchsorted(self.laid, self.positions[:, 0], "right") - 1
        return np.stack([first, np.searchsorted(self.laid, self.positions[:, 1], "left")], axis=1)

    def shards_of(self, worker: int) -> list[str]:
        """Returns the names of the files that a worker opens, in the epoch's order."""
        first, stop = self.worker_shards[worker].tolist()
        segments = self.selection.segments
        return list(dict.fromkeys(segments[i].shard.file for i in self.segments[first:stop].tolist()))

    @cached_property
    def memory(self) -> I64:
        """Upper bounds on the decoded bytes in each worker's memory: int64 (W,).

        Each is 2 x shuffle_bytes x streams / K: two windows, the current and the next, of each of its streams.
        """
        spec = self.spec
        return _WINDOWS_IN_MEMORY * (spec.shuffle_bytes // spec.streams) * np.diff(self.streams)[:, 0]

    @cached_property
    def windows_memory(self) -> I64:
        """Decoded bytes of the two largest windows of each worker's streams: int64 (W,)."""
        order = self.order
        least, larger = np.divmod(np.diff(order.stream_bounds()), order.windows)  # records; windows with one more
        in_memory = min(_WINDOWS_IN_MEMORY, order.windows)
        largest = in_memory * least + np.minimum(larger, in_memory)
        sums = np.concatenate([[0], np.cumsum(largest)]) * self.spec.record_bytes
        return np.diff(sums[self.streams])[:, 0]

    @cached_property
    def padding(self) -> I64:
        """Number of rows of weight 0 that each worker has in the last step of the epoch: int64 (W,)."""
        order, width = self.order, self.order.rows_per_stream
        left = np.diff(order.stream_bounds()) - (order.steps_per_epoch - 1) * width
        real = np.append(np.clip(left, 0, width), width)  # real rows of each stream; padding comes after them
        stream, row = np.divmod(self.topology.worker_rows(), width)
        before = np.concatenate([[0], np.cumsum(width - real)])[stream] + np.maximum(row - real[stream], 0)
        return np.diff(before)[:, 0]
