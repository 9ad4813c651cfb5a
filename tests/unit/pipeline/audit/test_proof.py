"""The proof holds of orders as they are; test_mutants of the integration tests puts faults into their code."""

import dataclasses
import itertools

import numpy as np
import pytest

from pipeline.audit import proof
from pipeline.audit.contract import Contract
from pipeline.audit.proof import Runs, check_all, order_checks, replay
from pipeline.audit.reading import Topology
from pipeline.errors import DataError, UsageError
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.datasets import write_dataset

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
