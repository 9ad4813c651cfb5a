"""The runs of a topology's workers, replayed and compared with the contract row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

import numpy as np
from tqdm import tqdm

from pipeline.audit.bits import Bits
from pipeline.audit.claims import Fault
from pipeline.audit.contract import I64, Bools, Contract
from pipeline.audit.replay import Fed, replay
from pipeline.audit.topology import Topology
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import Feed, make_feed
from pipeline.resolved import ResolvedRequest

_BUDGET = 1 << 24  # records that are replayed, about 4 seconds; an epoch with no more is replayed as a whole
_PLAN = 1 << 13  # records that take as long as what a plan takes anyhow
_SHOW_AFTER = 2.0  # seconds until there is a bar
_FEW = 8  # runs that resume, at least
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly

Count = Callable[[I64, Bools, range, range], None]


class Runs:
    """The runs of a topology's workers that are replayed: whole epochs, or parts of them as of resumed runs."""

    def __init__(
        self, source: ResolvedRequest, contract: Contract, epoch: int, topology: Topology, exhaustive: bool
    ) -> None:
        self._selection, self._topology, order = source.selection, topology, source.order
        self._number, self._contract, self._epoch = epoch, contract, contract.epoch(epoch)
        arrays = NumpyArrays(2 * order.streams + 1)
        self._feeds = [make_feed(order, topology.shard(w), arrays) for w in range(topology.workers)]
        self._windows = topology.workers * self._contract.windows
        q = self._contract.rows_per_stream
        streams = sum(-(-stop // q) - start // q for start, stop in topology.worker_rows().tolist())
        self._cost = streams * self._contract.num_records // self._contract.streams + self._windows * _PLAN
        self.is_complete = exhaustive or self._cost <= _BUDGET
        self._fed_once = Bits(order.num_records)
        self._real = 0

    def check_rows(self) -> str:
        """Checks the rows; returns the evidence."""
        if self.is_complete:
            windows, rows = self._replay(self._whole_epoch(), self._windows)
            resumed = f"; {self._replay(self._parts(_FEW), 2 * _FEW)[0]} again, in runs that resume at some step"
            return f"all {windows:,} windows of the workers replayed, {rows:,} rows{resumed}"
        count = max(_FEW, _BUDGET * self._windows // self._cost // 2)
        windows, rows = self._replay(self._parts(count), 2 * count)
        what = "in runs that resume at steps spread over the epoch; --exhaustive replays all"
        return f"{windows:,} of {self._windows:,} windows of the workers replayed, {rows:,} rows, {what}"

    def _replay(self, plans: Iterator[Fed], count: int) -> tuple[int, int]:
        """Returns how many windows were replayed, and rows."""
        windows = rows = 0
        with tqdm(plans, total=count, unit=" windows", delay=_SHOW_AFTER, disable=None) as bar:
            for fed in bar:
                windows, rows = windows + 1, rows + fed.records.size
        return windows, rows

    def _whole_epoch(self) -> Iterator[Fed]:
        """All workers window by window, so that those of the same streams use a permutation while it is kept."""
        steps = self._contract.steps_per_epoch
        each = [self._checked(w, 0, steps, self._mark) for w in range(len(self._feeds))]
        return (fed for of_workers in zip_longest(*each) for fed in of_workers if fed)

    def _parts(self, count: int) -> Iterator[Fed]:
        steps = self._contract.steps_per_epoch
        for worker, step in self._spread(count):
            yield from _part(self._checked(worker, step, steps))

    def check_count(self) -> str:
        """Checks that the rows, all of which were checked, had every record once; returns the evidence."""
        contract, count = self._contract, self._fed_once.count()
        wanted = min(contract.num_records, contract.steps_per_epoch * contract.global_batch_size)
        if count != wanted or self._real != wanted:
            record = self._name(self._fed_once.first_missing())
            raise Fault(f"{record} is at no step; {count} records come in {self._real} real rows, not {wanted}")
        dropped = contract.num_records - wanted
        return f"{count:,} records counted" + (f", {dropped:,} are dropped" if dropped else "")

    def _spread(self, count: int) -> Iterator[tuple[int, int]]:
        """Yields workers and steps at which their runs begin: the corners, and others between them."""
        workers, steps = len(self._feeds), self._contract.steps_per_epoch
        corners = [(w, t) for w in (0, workers - 1) for t in (0, steps - 1)]
        yield from dict.fromkeys(corners)
        for i in range(1, count - len(corners) + 1):
            yield i * workers // count, int(i * _GOLDEN % 1 * steps)

    def _checked(self, worker: int, first_step: int, last_step: int, count: Count | None = None) -> Iterator[Fed]:
        """Yields what a worker's run feeds, each window compared with the contract; steps are of the epoch."""
        feed, epoch, steps = self._feeds[worker], self._number, self._contract.steps_per_epoch
        at = first_step
        for fed in replay(feed, epoch * steps + first_step, epoch * steps + last_step):
            steps_fed, rest = divmod(len(fed.records), feed.local_replicas)
            if rest or at + steps_fed > last_step:
                where = f"worker {worker}: window {fed.window % self._contract.windows}"
                raise Fault(f"{where} goes to step {at + steps_fed} of the epoch, element {rest}, of {last_step} steps")
            self._check(feed, range(at, at + steps_fed), fed, count)
            at += steps_fed
            yield fed
        if at != last_step:
            raise Fault(f"worker {worker}: its windows end before step {at} of the epoch, not {last_step}")

    def _check(self, feed: Feed, steps: range, fed: Fed, count: Count | None) -> None:
        rows = range(feed.first_row, feed.first_row + feed.rows)
        shape = len(steps), feed.rows
        found, is_real = fed.records.reshape(shape), fed.real.reshape(shape)
        if steps:
            wanted, must_be_real = self._epoch.batches(steps, rows)
            wrong = np.argwhere((found != wanted) | (is_real != must_be_real))
            if wrong.size:
                t, i = wrong[0].tolist()
                self._differs(steps[t], rows[i], (found[t, i], is_real[t, i]), (wanted[t, i], must_be_real[t, i]))
        size = self._contract.global_batch_size
        must_have = np.minimum(size, self._contract.num_records - np.array(steps, np.int64) * size)
        if not np.array_equal(fed.real_rows, must_have.repeat(feed.local_replicas)):
            raise Fault(f"steps {steps.start} to {steps.stop - 1}: real rows per step are {fed.real_rows[-1:]} at last")
        if count is not None:
            count(found, is_real, steps, rows)

    def _mark(self, found: I64, is_real: Bools, steps: range, rows: range) -> None:
        records = found[is_real]
        self._real += len(records)
        again = self._fed_once.add(records)
        if again is not None:
            t, i = np.argwhere(is_real)[again].tolist()
            raise Fault(f"{self._where(steps[t], rows[i])}: {self._name(found[t, i])} comes a second time")

    def _differs(self, step: int, row: int, found: tuple[int, bool], wanted: tuple[int, bool]) -> None:
        one, other = (f"{self._name(int(r))} {'real' if w else 'as padding'}" for r, w in (found, wanted))
        raise Fault(f"{self._where(step, row)}: {one}; the contract has {other}")

    def _name(self, record: int) -> str:
        if not 0 <= record < self._contract.num_records:
            return f"record {record}, which is not in the split,"
        file, row = self._selection.locate(record)
        return f"record {record} (row {row} of {file})"

    def _where(self, step: int, row: int) -> str:
        return f"step {step} of the epoch, row {row}, {self._topology.name_of_row(row)}"


def _part(run: Iterator[Fed]) -> Iterator[Fed]:
    """Yields a run's first windows: two at least, so that there is a tail, and up to one that feeds a row."""
    for number, fed in enumerate(run):
        yield fed
        if number and fed.records.size:
            return
