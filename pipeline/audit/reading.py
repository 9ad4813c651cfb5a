"""Who reads what: the streams, shards and bytes of every worker, from the manifest alone."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from pipeline.audit.topology import Topology
from pipeline.order.arrays import NumpyArrays
from pipeline.order.laid_shards import LaidShards
from pipeline.order.order import I64
from pipeline.resolved import ResolvedRequest

_WINDOWS = 2  # in memory: this one and the next


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the workers of a topology read in one epoch.

    A worker opens the streams that overlap its replicas' rows, and reads each of them from its first position to its
    last; where these are all streams, in one window, it reads them once per run and keeps them. Bytes of a part of a
    shard are its share of the file: exact where all records are of one length.
    """

    source: ResolvedRequest
    epoch: int
    topology: Topology

    @cached_property
    def streams(self) -> I64:
        """The first stream of each worker and the one after its last: int64 (W, 2)."""
        rows, q = self.topology.worker_rows(), self.source.order.rows_per_stream
        return np.stack([rows[:, 0] // q, -(-rows[:, 1] // q)], axis=1)

    @cached_property
    def positions(self) -> I64:
        """Where each worker's positions begin and end: int64 (W, 2)."""
        return self.source.order.stream_bounds()[self.streams]

    @cached_property
    def laid(self) -> I64:
        """Positions where the shards begin, in the epoch's order, and the last ends: int64 (S + 1,)."""
        return np.concatenate([[0], np.cumsum(self.source.order.count_array[self.segments])])

    @cached_property
    def segments(self) -> I64:
        """The segments that have records, in the epoch's order."""
        laid = LaidShards.of(self.source.order, self.epoch, NumpyArrays())
        return laid.segments[laid.counts > 0]

    @cached_property
    def _laid_bytes(self) -> I64:
        segments = [self.source.selection.segments[i] for i in self.segments.tolist()]
        sizes = [s.shard.num_bytes * s.num_examples // s.shard.num_examples for s in segments]
        return np.cumsum([0, *sizes])

    def bytes_before(self, positions: I64) -> I64:
        """Returns the bytes of the shards' records that are laid before each position; any shape, int64."""
        return np.rint(np.interp(positions, self.laid, self._laid_bytes)).astype(np.int64)

    @cached_property
    def split_bytes(self) -> int:
        """Bytes of the records of the split."""
        return int(self.bytes_before(self.laid[-1:])[0])

    @cached_property
    def worker_bytes(self) -> I64:
        """Bytes that each worker reads in the epoch: int64 (W,)."""
        return np.diff(self.bytes_before(self.positions))[:, 0]

    @property
    def amplification(self) -> float:
        """Bytes that all workers read together, over those of the split."""
        return float(self.worker_bytes.sum() / self.split_bytes)

    @cached_property
    def worker_shards(self) -> I64:
        """The shards that each worker opens, as the first and the one after the last in the epoch's order: (W, 2)."""
        first = np.searchsorted(self.laid, self.positions[:, 0], "right") - 1
        return np.stack([first, np.searchsorted(self.laid, self.positions[:, 1], "left")], axis=1)

    def shards_of(self, worker: int) -> list[str]:
        """Returns the file names that a worker opens, in the epoch's order."""
        first, stop = self.worker_shards[worker].tolist()
        segments = self.source.selection.segments
        return list(dict.fromkeys(segments[i].shard.file for i in self.segments[first:stop].tolist()))

    @cached_property
    def memory(self) -> I64:
        """Decoded bytes that the design promises each worker to stay within: int64 (W,).

        It is 2 x shuffle_bytes x its streams / K: a window and the next one of each of its streams.
        """
        spec = self.source.spec
        return _WINDOWS * (spec.shuffle_bytes // spec.streams) * np.diff(self.streams)[:, 0]

    @cached_property
    def windows_memory(self) -> I64:
        """Decoded bytes of the two largest windows of each of a worker's streams: int64 (W,)."""
        order = self.source.order
        least, larger = np.divmod(np.diff(order.stream_bounds()), order.windows)  # records; windows with one more
        in_memory = min(_WINDOWS, order.windows)
        largest = in_memory * least + np.minimum(larger, in_memory)
        sums = np.concatenate([[0], np.cumsum(largest)]) * self.source.spec.record_bytes
        return np.diff(sums[self.streams])[:, 0]

    @cached_property
    def padding(self) -> I64:
        """Rows of weight 0 of each worker in the epoch's last step: int64 (W,)."""
        order, width = self.source.order, self.source.order.rows_per_stream
        left = np.diff(order.stream_bounds()) - (order.steps_per_epoch - 1) * width
        real = np.append(np.clip(left, 0, width), width)  # of each stream's rows, which padding follows
        stream, row = np.divmod(self.topology.worker_rows(), width)
        before = np.concatenate([[0], np.cumsum(width - real)])[stream] + np.maximum(row - real[stream], 0)
        return np.diff(before)[:, 0]
