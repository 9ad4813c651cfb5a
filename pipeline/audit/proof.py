"""Proves that what the input feeds is the contract: shards, windows and rows by their bounds, then row by row.

`pipeline.order.feed` is what the input evaluates. Here the same code is evaluated for the workers of a topology and
compared with `pipeline.audit.contract`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import zip_longest

import numpy as np
from tqdm import tqdm

from pipeline.audit.bits import Bits
from pipeline.audit.claims import Claim, Fault, check_all
from pipeline.audit.contract import I64, Bools, Contract
from pipeline.audit.replay import Fed, replay
from pipeline.audit.topology import Topology
from pipeline.commands.text import count_of
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import Feed, make_feed
from pipeline.resolved import ResolvedRequest

_BUDGET = 1 << 24  # records that are replayed, about 4 seconds; an epoch with no more is replayed as a whole
_PLAN = 1 << 13  # records that take as long as what a plan takes anyhow
_BLOCK = 1 << 18  # windows that are looked at together
_SHOW_AFTER = 2.0  # seconds until there is a bar
_FEW = 8  # runs that resume, at least
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly

Count = Callable[[I64, Bools, range, range], None]


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
        runs = _Runs(self, topology)
        checks: list[tuple[str, Callable[[], str]]] = [
            (f"every row is one replica's, all have as many ({topology})", lambda: self._rows(topology)),
            (f"every row holds the record of the contract{same}", runs.check_rows),
        ]
        if runs.is_complete:
            checks.append(("each record is fed once, by one replica", runs.check_count))
        return check_all(checks)

    @cached_property
    def contract(self) -> Contract:
        """What must be fed."""
        return Contract.of(self.source)

    @cached_property
    def feed(self) -> Feed:
        """All rows, as one replica."""
        return make_feed(self.source.order, None, NumpyArrays())

    def name(self, record: int) -> str:
        """Names a record."""
        if not 0 <= record < self.contract.num_records:
            return f"record {record}, which is not in the split,"
        file, row = self.source.selection.locate(record)
        return f"record {record} (row {row} of {file})"

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


class _Runs:
    """The runs of a topology's workers that are replayed: whole epochs, or parts of them as of resumed runs."""

    def __init__(self, proof: Proof, topology: Topology) -> None:
        self._proof, self._topology = proof, topology
        order = proof.source.order
        self._contract, self._epoch = proof.contract, proof.contract.epoch(proof.epoch)
        arrays = NumpyArrays(2 * order.streams + 1)
        self._feeds = [make_feed(order, topology.shard(w), arrays) for w in range(topology.workers)]
        self._windows = topology.workers * self._contract.windows
        q = self._contract.rows_per_stream
        streams = sum(-(-stop // q) - start // q for start, stop in topology.worker_rows().tolist())
        self._cost = streams * self._contract.num_records // self._contract.streams + self._windows * _PLAN
        self.is_complete = proof.exhaustive or self._cost <= _BUDGET
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
            record = self._proof.name(self._fed_once.first_missing())
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
        feed, epoch, steps = self._feeds[worker], self._proof.epoch, self._contract.steps_per_epoch
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
            raise Fault(f"{self._where(steps[t], rows[i])}: {self._proof.name(found[t, i])} comes a second time")

    def _differs(self, step: int, row: int, found: tuple[int, bool], wanted: tuple[int, bool]) -> None:
        one, other = (f"{self._proof.name(int(r))} {'real' if w else 'as padding'}" for r, w in (found, wanted))
        raise Fault(f"{self._where(step, row)}: {one}; the contract has {other}")

    def _where(self, step: int, row: int) -> str:
        return f"step {step} of the epoch, row {row}, {self._topology.name_of_row(row)}"


def _part(run: Iterator[Fed]) -> Iterator[Fed]:
    """Yields a run's first windows: two at least, so that there is a tail, and up to one that feeds a row."""
    for number, fed in enumerate(run):
        yield fed
        if number and fed.records.size:
            return


def _range(sizes: I64) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
