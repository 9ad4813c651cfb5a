"""The runs of a topology's workers, replayed and compared with the contract row by row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
from tqdm import tqdm

from pipeline.audit import budget
from pipeline.audit.claims import Check, Fault
from pipeline.audit.contract import Contract
from pipeline.audit.replay import Fed, replay
from pipeline.audit.topology import Topology
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import make_feed
from pipeline.resolved import ResolvedRequest

_PLAN = 1 << 13  # records that take as long as a plan takes in any case
_SHOW_AFTER = 2.0  # seconds until there is a bar
_FEW = 8  # resumed runs, at least; 2 where their windows or steps are very large
_GOLDEN = 0.6180339887498949  # its multiples, modulo 1, are spread evenly


class Runs:
    """The runs of a topology's workers that are replayed: whole epochs, or parts of them as of resumed runs.

    Attributes:
      is_complete: whether the whole epoch is replayed, so that each record can be counted.
    """

    def __init__(
        self, source: ResolvedRequest, contract: Contract, epoch: int, topology: Topology, exhaustive: bool
    ) -> None:
        self._selection, self._topology, order = source.selection, topology, source.order
        self._contract, self._epoch = contract, contract.epoch(epoch)
        arrays = NumpyArrays(2 * order.streams + 1)
        self._feeds = [make_feed(order, topology.shard(w), arrays) for w in range(topology.workers)]
        self._windows = topology.workers * contract.windows
        streams = sum(len(feed.streams) for feed in self._feeds)
        read, fed = (
            streams * contract.num_records // contract.streams,
            contract.steps_per_epoch * order.global_batch_size,
        )
        self._cost = max(read, fed) + self._windows * _PLAN
        self._part = budget.part_size(order, topology)
        self._few = max(2, min(_FEW, budget.BUDGET // self._part))
        self.is_complete = exhaustive or max(self._cost, self._part) <= budget.BUDGET

    def checks(self, other: Topology | None = None) -> list[Check]:
        """Returns the checks of the runs.

        Args:
          other: a topology whose runs were checked before, in the same order.
        """
        topology = self._topology
        same = f"; every global batch is the same on {topology} as on {other}" if other else ""
        count: Check = ("each record is fed once, by one replica", self._check_count)
        return [
            (f"every row belongs to one replica, and all have the same number ({topology})", self._check_replicas),
            (f"every row holds the record of the contract{same}", self._check_rows),
            *([count] if self.is_complete else []),
        ]

    def _check_replicas(self) -> str:
        topology = self._topology
        for replica in range(topology.replicas):
            worker, local = divmod(replica, topology.local_replicas)
            feed = self._feeds[worker]
            first = feed.first_row + local * feed.replica_rows
            wanted = self._contract.replica_rows(replica, topology.replicas)
            if (first, first + feed.replica_rows) != wanted or feed.local_replicas != topology.local_replicas:
                raise Fault(
                    f"row {min(first, wanted[0])}: replica {replica} (worker {worker} of {topology.workers}) gets rows "
                    f"{first} to {first + feed.replica_rows - 1}, not {wanted[0]} to {wanted[1] - 1}"
                )
        rows = topology.global_batch_size
        return f"rows 0 to {rows - 1:,}, {rows // topology.replicas:,} per replica at every step"

    def _check_rows(self) -> str:
        if self.is_complete:
            self._times = np.zeros(self._contract.num_records, np.uint8)
            self._real_rows = 0
            windows, rows = self._replay(self._whole_epoch(), self._windows)
            resumed = (
                f"; {self._replay(self._parts(self._few), 2 * self._few)[0]} again, in runs that resume at some step"
            )
            return f"all {windows:,} windows of the workers replayed, {rows:,} rows{resumed}"
        budget.check_part(self._part)
        count = max(self._few, budget.BUDGET * self._windows // self._cost // 2)
        windows, rows = self._replay(self._parts(count), 2 * count)
        what = "in runs that resume at steps spread over the epoch; --exhaustive replays all"
        return f"{windows:,} of {self._windows:,} windows of the workers replayed, {rows:,} rows, {what}"

    def _check_count(self) -> str:
        """Checks that the rows of the whole epoch, which were checked, held every record once."""
        contract, wanted = self._contract, self._contract.records_fed
        once = int((self._times == 1).sum())
        if (once, self._real_rows) != (wanted, wanted):
            record = int(self._times.argmax() if self._times.max() > 1 else self._times.argmin())
            raise Fault(f"{self._name(record)} is fed {self._times[record]} times; {once} of {wanted} are fed once")
        dropped = contract.num_records - wanted
        return f"{once:,} records counted" + (f", {dropped:,} are dropped" if dropped else "")

    def _replay(self, plans: Iterator[Fed], count: int) -> tuple[int, int]:
        """Returns how many windows were replayed, and rows."""
        windows = rows = 0
        delay = _SHOW_AFTER if self._part <= budget.BUDGET >> 3 else 0  # the first of them may take long
        for fed in tqdm(plans, total=count, unit=" windows", delay=delay, disable=None, leave=False):
            windows, rows = windows + 1, rows + fed.records.size
        return windows, rows

    def _whole_epoch(self) -> Iterator[Fed]:
        """All workers window by window, so that those of the same streams use a permutation while it is kept."""
        runs = [self._checked(worker, 0) for worker in range(len(self._feeds))]
        for fed in (fed for of_workers in zip_longest(*runs) for fed in of_workers if fed):
            records = fed.records[fed.real]
            np.add.at(self._times, records, 1)
            self._real_rows += len(records)
            yield fed

    def _parts(self, count: int) -> Iterator[Fed]:
        """The first windows of runs that resume: two at least, so that there is a tail, and up to one with a row."""
        for worker, step in self._spread(count):
            for number, fed in enumerate(self._checked(worker, step)):
                yield fed
                if number and fed.records.size:
                    break

    def _spread(self, count: int) -> Iterator[tuple[int, int]]:
        """Yields workers and steps at which their runs begin: the corners, and others between them."""
        workers, steps = len(self._feeds), self._contract.steps_per_epoch
        corners = [(0, 0), (workers - 1, steps - 1), (0, steps - 1), (workers - 1, 0)]
        yield from dict.fromkeys(corners[:count])
        for i in range(1, count - len(corners) + 1):
            yield i * workers // count, int(i * _GOLDEN % 1 * steps)

    def _checked(self, worker: int, first_step: int) -> Iterator[Fed]:
        """Yields what a worker's run feeds from a step of the epoch on, each window compared with the contract."""
        feed, at, last = self._feeds[worker], first_step, self._contract.steps_per_epoch
        epoch_start = self._epoch.number * last
        for fed in replay(feed, epoch_start + first_step, epoch_start + last):
            steps, rest = divmod(len(fed.records), feed.local_replicas)
            if rest or at + steps > last:
                where = f"worker {worker}: window {fed.window % self._contract.windows}"
                raise Fault(f"{where} goes to step {at + steps} of the epoch, element {rest}, of {last} steps")
            self._compare(fed, range(at, at + steps), range(feed.first_row, feed.first_row + feed.rows))
            at += steps
            yield fed
        if at != last:
            raise Fault(f"worker {worker}: its windows end before step {at} of the epoch, not {last}")

    def _compare(self, fed: Fed, steps: range, rows: range) -> None:
        contract, shape = self._contract, (len(steps), len(rows))
        if steps:
            found, wanted = (fed.records.reshape(shape), fed.real.reshape(shape)), self._epoch.batches(steps, rows)
            wrong = np.argwhere((found[0] != wanted[0]) | (found[1] != wanted[1]))
            for t, i in wrong[:1].tolist():
                fed_row, must = (
                    f"{self._name(int(records[t, i]))} {'real' if real[t, i] else 'as padding'}"
                    for records, real in (found, wanted)
                )
                where = f"step {steps[t]} of the epoch, row {rows[i]}, {self._topology.name_of_row(rows[i])}"
                raise Fault(f"{where}: {fed_row}; the contract has {must}")
        size = contract.global_batch_size
        real_rows = np.minimum(size, contract.num_records - np.array(steps, np.int64) * size)
        if not np.array_equal(fed.real_rows, real_rows.repeat(self._topology.local_replicas)):
            raise Fault(f"steps {steps.start} to {steps.stop - 1}: real rows per step are {fed.real_rows[-1:]} at last")

    def _name(self, record: int) -> str:
        if not 0 <= record < self._contract.num_records:
            return f"record {record}, which is not in the split,"
        file, row = self._selection.locate(record)
        return f"record {record} (row {row} of {file})"
