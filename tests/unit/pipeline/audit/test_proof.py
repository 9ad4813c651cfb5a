"""The proof holds of orders as they are; test_mutants of the integration tests puts faults into their code."""

import dataclasses
import itertools

import numpy as np
import pytest

from pipeline.audit import proof
from pipeline.audit.contract import Contract
from pipeline.audit.proof import Runs, check_all, order_checks, replay
from pipeline.errors import DataError, UsageError
from pipeline.order.feed import Feed, WindowPlan, make_feed
from pipeline.order.reading import Topology
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import write_dataset

SHAPE = (2, 3, 1)  # 6 bytes


def split_of(folder, counts=(30, 0, 25, 44), **changes):
    write_dataset(folder, counts, SHAPE)
    arguments = {"global_batch_size": 12, "training": True, "streams": 4, "shuffle_bytes": 240, "seed": 3}
    return resolve(Request(folder, "train", **(arguments | changes)))


@pytest.mark.parametrize("remainder", ["pad", pytest.param("drop", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "counts", [pytest.param((99,), marks=pytest.mark.slow), (30, 0, 25, 44), (1,) * 40, (5, 80), (12,)]
)
def test_the_proof_holds_of_every_order(tmp_path, counts, remainder, capsys):
    for streams, shuffle_bytes, training in itertools.product((1, 2, 12), (120, 240, 1 << 30), (True, False)):
        source = split_of(
            tmp_path, counts, training=training, streams=streams, shuffle_bytes=shuffle_bytes, remainder=remainder
        )
        contract = Contract.of(source)
        check_all([*order_checks(source, contract), *Runs(source, contract, 7, Topology(2, 4, 12), False).checks()])
        seen = sum(counts) if remainder == "pad" else sum(counts) // 12 * 12
        claim, evidence = capsys.readouterr().out.splitlines()[-2:]
        assert claim == "holds  each record is fed once, by one replica"
        assert evidence.strip().startswith(f"{seen} records counted")


def test_an_order_of_other_counts_is_found(tmp_path):
    source = split_of(tmp_path)
    source = dataclasses.replace(source, order=dataclasses.replace(source.order, counts=(30, 24, 45)))
    with pytest.raises(DataError, match=": shard 1: .* 24 .* 25$"):
        check_all(order_checks(source, Contract.of(source)))


def test_records_are_counted_as_they_are_fed_whatever_the_contract_says(tmp_path, monkeypatch):
    def wrong(*arguments):
        for fed in replay(*arguments):
            yield fed._replace(records=np.where(fed.records == 7, 8, fed.records))

    source = split_of(tmp_path)
    monkeypatch.setattr(proof, "replay", wrong)
    monkeypatch.setattr(Runs, "_compare", lambda *_: None)
    with pytest.raises(DataError, match=r"record 8 \(row 8 of train-.*\) .* 2 times; 97 of 99 "):
        check_all(Runs(source, Contract.of(source), 0, Topology(2, 4, 12), False).checks())


@pytest.mark.parametrize(
    ("workers", "replicas", "facts"),
    [(0, 1, "workers=0"), (2, 3, "3 replicas .* 2 workers"), (5, 5, "global_batch_size=12 .* 5 replicas")],
)
def test_a_topology_that_cannot_be_is_refused(workers, replicas, facts):
    with pytest.raises(UsageError, match=facts):
        Topology(workers, replicas, 12)


def changed_plan(**changes):
    """Returns a plan of a feed with some of its arrays replaced by functions of the plan."""
    made = Feed.plan

    def plan(feed, epoch, window):
        found = made(feed, epoch, window)
        return found._replace(**{name: change(found) for name, change in changes.items()})

    return plan


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"slots": lambda p: p.slots + 1}, r"its plan cannot be carried out: index \d+ is out of bounds"),
        ({"records": lambda p: p.records + 1}, r"row 0 holds record (\d+), but its record id is \d+"),
        ({"pieces": lambda p: np.concatenate([p.pieces, p.pieces])}, r"\d+ records are read, more than the \d+ that"),
    ],
)
def test_a_plan_that_contradicts_itself_is_found(tmp_path, monkeypatch, changes, facts):
    source = split_of(tmp_path)
    feed = make_feed(source.order, None)
    assert len(list(replay(feed, 0, 9))) == source.order.windows == 3
    monkeypatch.setattr(Feed, "plan", changed_plan(**changes))
    with pytest.raises(proof.Fault, match=f"^window 0 of epoch 0: {facts}"):
        list(replay(feed, 0, 9))


def test_a_run_that_begins_behind_its_window_is_found(tmp_path, monkeypatch):
    feed = make_feed(split_of(tmp_path).order, None)
    monkeypatch.setattr(Feed, "first_element", lambda *_: 3)
    with pytest.raises(proof.Fault, match=r"^window 0 of epoch 0: begins at element 3 of 2$"):
        list(replay(feed, 0, 9))


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda p, made: p._replace(contiguous=np.array([0, len(p.take)])), "elements 0 to 1 do not have their rows"),
        (lambda p, made: made._replace(take=made.take[::-1]), r"record \d+ of element 0 is record \d+ with contiguous"),
        (lambda p, made: made._replace(real=made.real & False), "elements 0 to 1 have padding, and are given without"),
    ],
)
def test_elements_that_are_not_side_by_side_are_found(tmp_path, monkeypatch, change, facts):
    source = split_of(tmp_path)
    side_by_side = WindowPlan.with_contiguous_elements
    monkeypatch.setattr(WindowPlan, "with_contiguous_elements", lambda plan: change(plan, side_by_side(plan)))
    with pytest.raises(proof.Fault, match=f"^window 0 of epoch 0: {facts}"):
        list(replay(make_feed(source.order, None), 0, 9))


def test_an_order_of_other_windows_or_of_too_many_bytes_is_found(tmp_path, monkeypatch):
    source = split_of(tmp_path)
    contract = Contract.of(source)
    more = dataclasses.replace(source, order=dataclasses.replace(source.order, windows=4))
    with pytest.raises(DataError, match="manifest's records: windows is 4, but must be 3$"):
        check_all(order_checks(more, contract))
    less = dataclasses.replace(source, spec=dataclasses.replace(source.spec, shuffle_bytes=100))
    with pytest.raises(DataError, match="the largest windows take 210 decoded bytes together, more than 100$"):
        check_all(order_checks(less, contract))
    bounds = Feed.window_bounds
    monkeypatch.setattr(Feed, "window_bounds", lambda feed, n: (bounds(feed, n)[0], bounds(feed, n)[1] + 1))
    with pytest.raises(DataError, match="window 0 of stream 0 ends at position 9, must end at 8$"):
        check_all(order_checks(source, contract))


def test_a_replica_that_gets_rows_of_another_is_found(tmp_path):
    source, topology = split_of(tmp_path), Topology(2, 4, 12)
    runs = Runs(source, Contract.of(source), 0, topology, False)
    runs._feeds[0] = runs._feeds[1]
    with pytest.raises(DataError, match=r"row 0: replica 0 \(worker 0 of 2\) gets rows 6 to 8, not 0 to 2$"):
        check_all(runs.checks())


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda fed: fed[:-1], r"worker 0: its windows end before step 5 of the epoch, not 9"),
        (lambda fed: [*fed, fed[-1]], r"worker 0: window 2 goes to step 13 of the epoch, element 0, of 9 steps"),
        (
            lambda fed: [f._replace(records=f.records + 1000) for f in fed],
            r"step 0 of the epoch, row 0, .*: record 10\d\d, which is not in the split, real; the contract has record "
            r"\d+ \(row \d+ of train-0000.*\) real",
        ),
        (lambda fed: [f._replace(real=~f.real) for f in fed], r"row 0, .* as padding; the contract has record .* real"),
        (
            lambda fed: [f._replace(real_rows=f.real_rows - 1) for f in fed],
            r"steps 0 to 1: real rows per step end with \[11\]",
        ),
    ],
)
def test_what_is_fed_otherwise_than_the_contract_says_is_found(tmp_path, monkeypatch, change, facts):
    source = split_of(tmp_path)
    monkeypatch.setattr(proof, "replay", lambda *arguments: iter(change(list(replay(*arguments)))))
    with pytest.raises(DataError, match=f"{facts}$"):
        check_all(Runs(source, Contract.of(source), 0, Topology(2, 4, 12), False).checks())
