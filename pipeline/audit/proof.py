"""Proves that an order keeps the contract on any topology, in its windows and in every row fed to each replica.

The input evaluates `pipeline.order.feed`. The proof evaluates it in NumPy, with record ids instead of records, and
compares the result with `pipeline.audit.contract`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from pipeline.audit.contract import I64, Bools, Contract
from pipeline.commands.text import count_of, range_of, size_of
from pipeline.errors import DataError, UsageError
from pipeline.order.feed import Feed, WindowPlan, make_feed
from pipeline.order.hashing import permutation
from pipeline.order.order import Order
from pipeline.order.reading import Topology
from pipeline.read import memory
from pipeline.resolved import ResolvedRequest

Check = tuple[str, Callable[[], str]]  # a claim, and the function that returns its evidence
BUDGET = 1 << 24  # most records to replay, about 4 s; a smaller epoch is replayed completely
_REPLAY_BYTES = 160  # bytes of memory per record or row replayed at a time; 75 to 150 were measured
_WINDOW_BLOCK = 1 << 18  # windows compared at a time
NOT_READ = -1  # marks a row without a record
_PLAN_COST = 1 << 13  # records whose replay takes as long as making a plan, however small its window is
_SHOW_AFTER = 2.0  # seconds until a progress bar appears
_FEW = 8  # least number of resumed runs; 2 if windows or steps are very large
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are evenly spread


class Fault(Exception):  # noqa: N818, not an error of the program but the finding of an audit
    """The first record, position or row that contradicts a claim."""


class NotCheckedError(Exception):
    """The reason why a claim could not be checked."""


def check_all(checks: Iterable[Check]) -> None:
    """Prints each claim with its evidence; stops at the first that fails, because later claims rest on it.

    Raises:
      DataError: a claim does not hold.
    """
    for claim, check in checks:
        label, failed = "holds", False
        try:
            evidence = check()
        except NotCheckedError as error:
            label, evidence = "open ", str(error)
        except (Fault, ArithmeticError, LookupError, TypeError, ValueError) as error:
            label, failed = "FAILS", True
            cause = "" if isinstance(error, Fault) else f"cannot be evaluated: {type(error).__name__}: "
            evidence = f"{cause}{error}"
        print(f"{label}  {claim}\n       {evidence}", flush=True)
        if failed:
            print("\nproof FAILS")
            raise DataError(f"the proof fails: {claim}: {evidence}")


def part_size(order: Order, topology: Topology) -> int:
    """Returns the size of the smallest part that can be replayed: a window or a worker's rows of a batch."""
    width, rows = order.rows_per_stream, topology.worker_rows()
    streams = int((-(-rows[:, 1] // width) - rows[:, 0] // width).max())
    longest = -(-order.num_records // order.streams)
    return max(streams * -(-longest // order.windows), topology.global_batch_size // topology.workers)


def check_memory(order: Order, topology: Topology) -> None:
    """Raises UsageError if this machine has too little memory to replay every window."""
    size = part_size(order, topology)
    needed, available = size * _REPLAY_BYTES, memory.available()
    if needed > available:
        raise UsageError(
            f"--exhaustive: a worker's window or step has {size:,} records; replaying it takes about "
            f"{size_of(needed)} of memory, and this machine has {size_of(available)}; leave --exhaustive out"
        )


def order_checks(source: ResolvedRequest, contract: Contract) -> list[Check]:
    """Returns the checks of a split's order against its contract."""
    feed = make_feed(source.order, None)  # one replica with all rows
    return [
        ("the order is that of the manifest's records", lambda: _check_order(source, contract)),
        ("every position is in one window of one stream", lambda: _check_windows(feed, contract)),
        ("a window fits its part of shuffle_bytes", lambda: _check_memory(feed, source)),
    ]


def _check_order(source: ResolvedRequest, contract: Contract) -> str:
    order = source.order
    for i, (own, count) in enumerate(zip_longest(order.counts, contract.counts)):
        if own != count:
            raise Fault(f"shard {i}: the order has {own} of its records, the manifest {count}")
    for name in ("num_records", "rows_per_stream", "windows", "steps_per_epoch"):
        found, wanted = getattr(order, name), getattr(contract, name)
        if found != wanted:
            raise Fault(f"{name} is {found}, but must be {wanted}")
    rows = contract.steps_per_epoch * contract.global_batch_size
    dropped = contract.num_records - contract.records_fed
    return (
        f"{count_of(len(contract.counts), 'shard')}, {count_of(contract.num_records, 'record')}; "
        f"{count_of(contract.steps_per_epoch, 'step')} of {count_of(contract.global_batch_size, 'row')}: "
        f"{contract.records_fed:,} real, {rows - contract.records_fed:,} padding"
        + (f", {dropped:,} records dropped" if dropped else "")
    )


def _check_windows(feed: Feed, contract: Contract) -> str:
    sizes: list[int] = []
    block = max(1, _WINDOW_BLOCK // contract.streams)
    starts, stops = np.array([contract.stream_bounds(k) for k in range(contract.streams)]).T
    for first in range(0, contract.windows, block):
        numbers = np.arange(first, min(first + block, contract.windows))[:, None]
        begin, end = feed.window_bounds(numbers)
        wanted = (starts + w * (stops - starts) // contract.windows for w in (numbers, numbers + 1))
        for verb, found, want in zip(("begin", "end"), (begin, end), wanted, strict=True):
            wrong = np.argwhere(found != want) if found.shape == want.shape else np.zeros((1, 2), int)
            if wrong.size:
                w, k = wrong[0].tolist()
                at, must = found[w, k], f"must {verb} at {want[w, k]}"
                raise Fault(f"window {first + w} of stream {k} {verb}s at position {at}, {must}")
        sizes += [(end - begin).min(), (end - begin).max()]
    return (
        f"{count_of(contract.streams, 'stream')} of {range_of(stops - starts)} positions, "
        f"{count_of(contract.windows, 'window')} each, of {range_of(sizes)} records"
    )


def _check_memory(feed: Feed, source: ResolvedRequest) -> str:
    spec = source.spec
    most, pool = feed.window_records * spec.record_bytes, spec.shuffle_bytes // spec.streams * spec.streams
    if most > pool:
        raise Fault(f"the largest windows take {most} decoded bytes together, more than {pool}")
    return f"the largest take at most {most:,} of {pool:,} decoded bytes together"


class Fed(NamedTuple):
    """The elements that a window feeds, in order.

    Attributes:
      window: number of the window, counted across epochs.
      records: record ids, int64 (elements, rows of a replica).
      real: mask of rows that are not padding, bool (elements, rows of a replica).
      real_rows: number of rows of the global batch that are not padding, int64 (elements,); the divisor of "mean".
    """

    window: int
    records: I64
    real: Bools
    real_rows: I64


def replay(feed: Feed, first_step: int, last_step: int) -> Iterator[Fed]:
    """Yields the elements that each window feeds in a run from a global step to the one before `last_step`.

    Raises:
      Fault: a plan contradicts itself.
    """
    tail = np.array([NOT_READ])
    for number in range(*feed.window_numbers(first_step, last_step)):
        epoch, window = feed.epoch_and_window(number)
        try:
            plan = feed.plan(epoch, window)
            ids = _read(feed, plan)
            found = _take(plan, ids, tail, feed.order.num_stored)
            # The second form of the plan, for readers that place records themselves, must feed the same rows.
            contiguous = plan.with_contiguous_elements()
            _check_same(found, _take(contiguous, ids, tail, feed.order.num_stored), contiguous)
            first = feed.first_element(first_step, epoch, window)
        except (LookupError, ValueError) as error:  # a wrong plan has indices or shapes that do not match
            raise Fault(f"window {window} of epoch {epoch}: its plan cannot be carried out: {error}") from None
        except Fault as fault:
            raise Fault(f"window {window} of epoch {epoch}: {fault}") from None
        if not 0 <= first <= len(found[0]) == plan.num_elements:
            raise Fault(f"window {window} of epoch {epoch}: begins at element {first} of {len(found[0])}")
        yield Fed(number, found[0][first:], plan.real[first:], plan.real_rows[first:])
        tail = found[1]


def _read(feed: Feed, plan: WindowPlan) -> I64:
    """Returns the ids of the records that a plan reads, in order; a single `NOT_READ` if it reads none."""
    first = np.cumsum(feed.order.count_array) - feed.order.count_array
    pieces = [first[segment] + np.arange(start, stop) for segment, start, stop in plan.pieces.tolist()]
    ids = np.concatenate(pieces or [np.array([NOT_READ])])
    if len(plan.times):
        ids = np.repeat(ids, plan.times)
    if len(ids) > feed.window_records:
        raise Fault(f"{len(ids)} records are read, more than the {feed.window_records} that memory is checked for")
    return ids


def _take(plan: WindowPlan, ids: I64, tail: I64, num_stored: int) -> tuple[I64, I64]:
    """Returns the records of a plan's elements, and of the tail that it leaves for the next window.

    `ids` are the ids of the records that the window reads, `tail` the records left by the previous window.
    """
    rows = np.full(len(ids), NOT_READ)
    rows[plan.slots] = ids
    named = plan.records % num_stored  # also for copies
    wrong = np.flatnonzero(rows != named)
    if wrong.size and ids[0] != NOT_READ:
        raise Fault(f"row {wrong[0]} holds record {rows[wrong[0]]}, but its record id is {named[wrong[0]]}")
    if ids[0] != NOT_READ:
        rows = plan.records
    return _of_both(rows, tail, plan.take), _of_both(rows, tail, plan.next_tail)


def _of_both(rows: I64, tail: I64, index: I64) -> I64:
    """Returns rows of a window or, for negative indices, of the tail; the first window of a run has no tail."""
    return np.where(index < 0, tail[np.clip(-1 - index, 0, len(tail) - 1)], rows[np.maximum(index, 0)])


def _check_same(found: tuple[I64, I64], placed: tuple[I64, I64], plan: WindowPlan) -> None:
    for one, other in zip(found, placed, strict=True):
        wrong = np.argwhere(one != other)
        if wrong.size:
            at = tuple(wrong[0])
            raise Fault(f"record {one[at]} of element {at[0]} is record {other[at]} with contiguous elements")
    first, stop = plan.contiguous.tolist()
    rows = plan.take[first:stop].ravel()
    if not (0 <= first <= stop <= len(plan.take) and np.array_equal(rows, np.arange(len(rows)))):
        raise Fault(f"elements {first} to {stop - 1} do not have their rows one after the other")
    if not plan.real[first:stop].all():
        raise Fault(f"elements {first} to {stop - 1} have padding, and are given without weights")


class Runs:
    """Replays the runs of a topology's workers: the whole epoch if it is small enough, else runs resumed within it.

    Args:
      source: split with its order.
      contract: contract of the split.
      epoch: epoch to replay.
      topology: topology of the job.
      exhaustive: whether to replay the whole epoch, however large it is.
      share: fraction of `BUDGET` that the epoch may use.

    Attributes:
      epoch: epoch that is replayed.
      is_complete: whether the whole epoch is replayed, so that each record can be counted.
    """

    def __init__(
        self,
        source: ResolvedRequest,
        contract: Contract,
        epoch: int,
        topology: Topology,
        exhaustive: bool,
        share: float = 1.0,
    ) -> None:
        self.epoch = epoch
        self._selection, self._topology, order = source.selection, topology, source.order
        self._contract, self._epoch = contract, contract.epoch(epoch)
        permute = functools.lru_cache(2 * order.streams)(permutation)  # workers may share streams
        self._feeds = [make_feed(order, topology.shard(w), permute) for w in range(topology.workers)]
        self._windows = topology.workers * contract.windows
        self._is_view = contract.times is not None
        streams = sum(len(feed.streams) for feed in self._feeds)
        # Workers that share a stream read more than they feed; padding is fed without being read.
        read, fed = (
            streams * contract.num_records // contract.streams,
            contract.steps_per_epoch * order.global_batch_size,
        )
        self._cost = max(read, fed) + self._windows * _PLAN_COST  # in records, as in the budget
        self._part = part_size(order, topology)
        self._few = max(2, min(_FEW, BUDGET // self._part))
        self.is_complete = exhaustive or max(self._cost, self._part) <= BUDGET * share

    def checks(self, other: Topology | None = None) -> list[Check]:
        """Returns the checks of the runs.

        Args:
          other: topology whose runs were checked before, for a comparison of its global batches with these.
        """
        topology = self._topology
        same = f"; every global batch is the same on {topology} as on {other}" if other else ""
        often = "as often as its view says" if self._is_view else "once, by one replica"
        count: Check = (f"each record is fed {often}", self._check_count)
        return [
            (f"every row belongs to one replica, and all have the same number ({topology})", self._check_replicas),
            (f"every row holds the record of the contract{same}", self._check_rows),
            *([count] if self.is_complete else []),
        ]

    def checks_again(self) -> list[Check]:
        """Returns a check of a second epoch, after `checks` of the first: the order must not repeat in every epoch."""
        if self._part > BUDGET:  # the first epoch was not checked either
            return []
        return [(f"every row of epoch {self.epoch} holds the record of the contract, too", self._check_again)]

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
            windows, rows = self._replay(self._whole_epoch(), self._windows)
            resumed = (
                f"; {self._replay(self._parts(self._few), 2 * self._few)[0]} again, in runs that resume at some step"
            )
            return f"all {windows:,} windows of the workers replayed, {rows:,} rows{resumed}"
        if self._part > BUDGET:
            raise NotCheckedError(
                f"a worker's window or step has {self._part:,} records, more than the {BUDGET:,} that are replayed at "
                "most; --exhaustive replays it"
            )
        count = max(self._few, BUDGET * self._windows // self._cost // 2)
        windows, rows = self._replay(self._parts(count), 2 * count)
        what = "in runs that resume at steps spread over the epoch; --exhaustive replays all"
        return f"{windows:,} of {self._windows:,} windows of the workers replayed, {rows:,} rows, {what}"

    def _check_again(self) -> str:
        if self.is_complete:
            windows, rows = self._replay(self._whole_epoch(), self._windows)
            return f"all {windows:,} windows of the workers replayed, {rows:,} rows; {self._check_count()}"
        windows, rows = self._replay(self._parts(self._few), 2 * self._few)
        return f"{windows:,} of {self._windows:,} windows of the workers replayed, {rows:,} rows"

    def _check_count(self) -> str:
        """Checks that the epoch fed every record as often as it should; `_check_rows` did the counting."""
        contract, first = self._contract, self._epoch.number * self._contract.steps_per_epoch
        wanted = contract.records_fed
        if contract.skip_steps:
            sizes = np.full(contract.steps_per_epoch, contract.global_batch_size)
            sizes[-1] -= max(0, sizes.sum() - contract.num_records)
            wanted = sum(int(n) for step, n in enumerate(sizes, first) if not contract.is_skipped(step))
        if contract.times is not None:
            return self._check_view(contract.times(self._epoch.number), wanted)
        once = int((self._times == 1).sum())
        if (once, self._real_rows) != (wanted, wanted):
            record = int(self._times.argmax() if self._times.max() > 1 else self._times.argmin())
            raise Fault(f"{self._name(record)} is fed {self._times[record]} times; {once} of {wanted} are fed once")
        dropped = contract.num_records - wanted
        return f"{once:,} records counted" + (f", {dropped:,} are dropped" if dropped else "")

    def _check_view(self, times: I64, wanted: int) -> str:
        wrong = np.flatnonzero(self._times > times if wanted < times.sum() else self._times != times)
        if wrong.size or self._real_rows != wanted:
            record = int(wrong[0]) if wrong.size else 0
            raise Fault(
                f"{self._name(record)} is fed {self._times[record]} times, not {times[record]}; {self._real_rows} rows "
                f"of {wanted}"
            )
        there = times[times > 0]
        left = f", {int(times.sum()) - wanted:,} rows are dropped or skipped" if wanted < times.sum() else ""
        return f"{len(there):,} of {len(times):,} records counted, {range_of(there)} times each{left}"

    def _replay(self, plans: Iterator[Fed], count: int) -> tuple[int, int]:
        """Returns the numbers of windows and rows that were replayed."""
        windows = rows = 0
        delay = _SHOW_AFTER if self._part <= BUDGET >> 3 else 0  # no delay if the first window may take long
        for fed in tqdm(plans, total=count, unit=" windows", delay=delay, disable=None, leave=False):
            windows, rows = windows + 1, rows + fed.records.size
        return windows, rows

    def _whole_epoch(self) -> Iterator[Fed]:
        """Yields all workers' windows in turn, so that workers with the same streams share a cached permutation.

        Counts the records and the real rows.
        """
        self._times, self._real_rows = np.zeros(self._contract.num_stored, np.int64), 0
        runs = [self._checked(worker, 0) for worker in range(len(self._feeds))]
        for fed in (fed for of_workers in zip_longest(*runs) for fed in of_workers if fed):
            records = fed.records[fed.real]
            np.add.at(self._times, records % self._contract.num_stored, 1)
            self._real_rows += len(records)
            yield fed

    def _parts(self, count: int) -> Iterator[Fed]:
        """Yields the first windows of resumed runs: two, to check the tail in between, and more until one has rows."""
        for worker, step in self._spread(count):
            for number, fed in enumerate(self._checked(worker, step)):
                yield fed
                if number and fed.records.size:
                    break

    def _spread(self, count: int) -> Iterator[tuple[int, int]]:
        """Yields the (worker, step) at which each run begins: the first and last of both, and others in between."""
        workers, steps = len(self._feeds), self._contract.steps_per_epoch
        corners = [(0, 0), (workers - 1, steps - 1), (0, steps - 1), (workers - 1, 0)]
        yield from dict.fromkeys(corners[:count])
        for i in range(1, count - len(corners) + 1):
            yield i * workers // count, int(i * _GOLDEN % 1 * steps)

    def _checked(self, worker: int, first_step: int) -> Iterator[Fed]:
        """Yields what a worker feeds when resumed at a step of the epoch, comparing each window with the contract."""
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
        first = self._epoch.number * contract.steps_per_epoch
        real_rows[[contract.is_skipped(first + step) for step in steps]] = 0
        if not np.array_equal(fed.real_rows, real_rows.repeat(self._topology.local_replicas)):
            raise Fault(f"steps {steps.start} to {steps.stop - 1}: real rows per step end with {fed.real_rows[-1:]}")

    def _name(self, record: int) -> str:
        copy, record = divmod(record, self._contract.num_stored)
        if copy < 0 or (copy and not self._is_view):
            return f"record {record + copy * self._contract.num_stored}, which is not in the split,"
        file, row = self._selection.locate(record)
        return f"record {record} (row {row} of {file}){f', copy {copy}' if copy else ''}"
