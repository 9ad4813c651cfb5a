"""Proves that what the input feeds is the contract: shards, windows and rows by their bounds, then row by row.

`pipeline.order.feed` is what the input evaluates. Here the same code is evaluated for the workers of a topology and
compared with `pipeline.audit.contract`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from itertools import zip_longest

import numpy as np

from pipeline.audit.claims import Claim, Fault, check_all
from pipeline.audit.contract import I64, Contract
from pipeline.audit.runs import Runs
from pipeline.audit.topology import Topology
from pipeline.commands.text import count_of
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import Feed, make_feed
from pipeline.resolved import ResolvedRequest

FED_ONCE = "each record is fed once, by one replica"  # the claim of a replay that is complete
_BLOCK = 1 << 18  # windows that are looked at together


@dataclasses.dataclass(frozen=True)
class Proof:
    """The proof for one epoch of an ordered split.

    Attributes:
      source: the split.
      epoch: the epoch.
      exhaustive: replay every window of every worker, however long that takes.
    """

    source: ResolvedRequest
    epoch: int
    exhaustive: bool = False

    def claims(self) -> list[Claim]:
        """Returns what holds of the order, whatever the topology; the last may not hold."""
        checks: list[tuple[str, Callable[[], str]]] = [
            ("the order is that of the manifest's records", self._order),
            ("every position is in one window of one stream", self._windows),
            ("a window fits its part of shuffle_bytes", self._memory),
        ]
        return check_all(checks)

    def topology_claims(self, topology: Topology, other: Topology | None = None) -> list[Claim]:
        """Returns what holds of the workers of a topology; of another one, as compared with that.

        Args:
          topology: what is replayed.
          other: one that was replayed before, of the same order.
        """
        same = f"; every global batch is the same on {topology} as on {other}" if other else ""
        runs = Runs(self.source, self.contract, self.epoch, topology, self.exhaustive)
        checks: list[tuple[str, Callable[[], str]]] = [
            (f"every row is one replica's, all have as many ({topology})", lambda: self._rows(topology)),
            (f"every row holds the record of the contract{same}", runs.check_rows),
        ]
        if runs.is_complete:
            checks.append((FED_ONCE, runs.check_count))
        return check_all(checks)

    @cached_property
    def contract(self) -> Contract:
        """What must be fed."""
        return Contract.of(self.source)

    @cached_property
    def feed(self) -> Feed:
        """All rows, as one replica."""
        return make_feed(self.source.order, None, NumpyArrays())

    def _order(self) -> str:
        order, contract, segments = self.source.order, self.contract, self.source.selection.segments
        for i, (own, count) in enumerate(zip_longest(order.counts, contract.counts)):
            if own != count:
                raise Fault(f"shard {i}: the order has {own} records of it, the manifest {count}")
        for name in ("num_records", "rows_per_stream", "windows", "steps_per_epoch"):
            found, wanted = getattr(order, name), getattr(contract, name)
            if found != wanted:
                raise Fault(f"{name} is {found}, but must be {wanted}")
        steps, size = contract.steps_per_epoch, contract.global_batch_size
        real = min(contract.num_records, steps * size)
        dropped = contract.num_records - real
        return (
            f"{count_of(len(segments), 'shard')}, {contract.num_records:,} records; {steps:,} steps of {size:,} rows: "
            f"{real:,} real, {steps * size - real:,} padding" + (f", {dropped:,} records dropped" if dropped else "")
        )

    def _windows(self) -> str:
        contract, sizes = self.contract, []
        block = max(1, _BLOCK // contract.streams)
        starts, stops = np.array([contract.stream_bounds(k) for k in range(contract.streams)]).T
        for first in range(0, contract.windows, block):
            numbers = np.arange(first, min(first + block, contract.windows))[:, None]
            begin, end = self.feed.window_bounds(numbers)
            wanted = (starts + w * (stops - starts) // contract.windows for w in (numbers, numbers + 1))
            for what, found, want in zip(("begins", "ends"), (begin, end), wanted, strict=True):
                wrong = np.argwhere(found != want) if found.shape == want.shape else np.zeros((1, 2), int)
                if wrong.size:
                    w, k = wrong[0].tolist()
                    at, must = found[w, k], f"must {what[:-1]} at {want[w, k]}"
                    raise Fault(f"window {first + w} of stream {k} {what} at position {at}, {must}")
            sizes += [(end - begin).min(), (end - begin).max()]
        return (
            f"{count_of(contract.streams, 'stream')} of {_range(stops - starts)} positions, "
            f"{count_of(contract.windows, 'window')} each, of {_range(np.array(sizes))} records"
        )

    def _memory(self) -> str:
        spec = self.source.spec
        most, pool = self.feed.window_records * spec.record_bytes, spec.shuffle_bytes // spec.streams * spec.streams
        if most > pool:
            raise Fault(f"the largest windows take {most} decoded bytes together, more than {pool}")
        return f"the largest take at most {most:,} of {pool:,} decoded bytes together"

    def _rows(self, topology: Topology) -> str:
        for replica in range(topology.replicas):
            worker, local = divmod(replica, topology.local_replicas)
            feed = make_feed(self.source.order, topology.shard(worker), NumpyArrays())
            first = feed.first_row + local * feed.replica_rows
            wanted = self.contract.replica_rows(replica, topology.replicas)
            if (first, first + feed.replica_rows) != wanted or feed.local_replicas != topology.local_replicas:
                raise Fault(
                    f"row {min(first, wanted[0])}: replica {replica} (worker {worker} of {topology.workers}) gets rows "
                    f"{first} to {first + feed.replica_rows - 1}, not {wanted[0]} to {wanted[1] - 1}"
                )
        rows = topology.global_batch_size
        return f"rows 0 to {rows - 1:,}, {rows // topology.replicas:,} per replica at every step"


def _range(sizes: I64) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
