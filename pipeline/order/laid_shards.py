"""The shards of an epoch laid end to end: which records lie at which positions before the windows are permuted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.order.arrays import Array, Arrays, Number, consecutive
from pipeline.order.hashing import Domain
from pipeline.order.order import Order


class LaidShards(NamedTuple):
    """The shards (or the selected parts of them: segments) as an epoch lays them, int64 (S,) each.

    Attributes:
      arrays: what evaluates it.
      segments: their numbers in the selection.
      first_records: the id of each one's first record.
      ends: positions where they end.
      counts: their records.
    """

    arrays: Arrays
    segments: Array
    first_records: Array
    ends: Array
    counts: Array

    @classmethod
    def of(cls, order: Order, epoch: Number, arrays: Arrays) -> LaidShards:
        """Returns the shards of an epoch, permuted by (seed, epoch) when training."""
        counts = order.count_array
        segments = arrays.range(len(counts))
        if order.training:
            segments = arrays.permutations(arrays.key(Domain.SHARDS, order.seed, epoch)[None], np.array([len(counts)]))
        laid = arrays.gather(counts, segments)
        return cls(
            arrays, segments, arrays.gather(np.cumsum(counts) - counts, segments), arrays.sums_before(laid) + laid, laid
        )

    def between(self, begin: Array, end: Array) -> tuple[Array, Array]:
        """Returns what lies at positions begin[i]..end[i]-1, one interval after the other.

        Returns:
          The pieces, int64 (p, 3): segment, first record and end; and the ids of their records, int64 (n,).
        """
        arrays, gather = self.arrays, self.arrays.gather
        begins = self.ends - self.counts
        low = arrays.searchsorted(self.ends, begin, "right")
        high = arrays.searchsorted(begins, end, "left")
        count = arrays.maximum(high - low, 0)
        at, interval = consecutive(arrays, low, count), arrays.repeat(arrays.range(arrays.size(count)), count)
        first = gather(begins, at)
        start = arrays.maximum(gather(begin, interval), first) - first
        stop = arrays.minimum(gather(end, interval), gather(self.ends, at)) - first
        pieces = arrays.stack([gather(self.segments, at), start, stop])
        exists = start < stop
        pieces, at = arrays.select(pieces, exists), arrays.select(at, exists)
        records = consecutive(arrays, gather(self.first_records, at) + pieces[:, 1], pieces[:, 2] - pieces[:, 1])
        return pieces, records
