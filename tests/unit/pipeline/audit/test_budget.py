"""However large a batch or a window is, the audit's work and memory stay bounded."""

import tracemalloc

import pytest

from pipeline.audit import __main__ as audit
from pipeline.audit import proof
from pipeline.audit.contract import Contract
from pipeline.audit.proof import Runs
from pipeline.errors import UsageError
from pipeline.order.reading import Reading, Topology
from pipeline.read import memory
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import write_dataset

HUGE = 1_000_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder, (30, 0, 25, 44), (2, 3, 1))
    return folder


def source_of(data, size, **more):
    return resolve(Request(data, global_batch_size=size, training=True, **more))


def peak_of(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_batch_that_memory_cannot_hold_is_not_replayed_and_said_to_be_open(data, capsys):
    peak = peak_of(lambda: audit.main([str(data), f"--global_batch_size={HUGE}", "--streams=8", "--shuffle_bytes=480"]))
    assert peak < 64 << 20
    out = capsys.readouterr().out
    assert "open   every row holds the record of the contract" in out
    assert f"has {HUGE:,} records, more than the {proof.BUDGET:,}" in out
    assert f"{HUGE - 99:,} of the last step's {HUGE:,} rows have weight 0" in out
    assert "once per epoch" not in out.splitlines()[-1]


@pytest.mark.parametrize(("flags", "count"), [([], "3 of 5 windows"), (["--exhaustive"], "all 5 windows")])
def test_exhaustive_replays_what_is_else_a_sample(flags, count, data, monkeypatch, capsys):
    monkeypatch.setattr(proof, "BUDGET", 40)  # records, of 99
    audit.main([str(data), "--global_batch_size=4", "--streams=4", "--shuffle_bytes=160", *flags])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.strip().startswith(f"{count} of the workers replayed") for line in lines)
    assert lines[-1].startswith("proof holds: each of 99 records once" if flags else "no fault in what was checked")


def test_exhaustive_is_refused_where_memory_cannot_hold_a_batch_or_a_window(data, monkeypatch, capsys):
    with pytest.raises(UsageError, match=f"--exhaustive: .* {10 * HUGE:,} .* TiB "):
        audit.main([str(data), f"--global_batch_size={10 * HUGE}", "--exhaustive"])
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(memory, "available", lambda: 10_000)
    with pytest.raises(UsageError, match=" 99 records"):
        audit.main([str(data), "--global_batch_size=3", "--exhaustive"])


def test_the_epoch_of_one_huge_batch_for_many_workers_is_not_replayed_as_a_whole(data):
    topology = Topology(1000, 1000, HUGE)
    source = source_of(data, HUGE)
    assert proof.part_size(source.order, topology) == HUGE // 1000
    assert not Runs(source, Contract.of(source), 0, topology, False).is_complete


@pytest.mark.parametrize("part", [99, 33, 11])
def test_few_runs_are_replayed_of_large_windows(data, monkeypatch, part):
    source, topology = source_of(data, 3, shuffle_bytes=part * 6, streams=1), Topology(1, 1, 3)
    assert proof.part_size(source.order, topology) == part
    monkeypatch.setattr(proof, "BUDGET", part)
    found = Runs(source, Contract.of(source), 0, topology, False)
    assert not found.is_complete
    replayed = found.checks()[1][1]()
    assert int(replayed.split()[0]) <= 3, "the first run has two windows, the last step's has one"


def test_a_window_of_more_records_than_are_replayed_is_open(data, monkeypatch, capsys):
    monkeypatch.setattr(proof, "BUDGET", 98)
    audit.main([str(data), "--global_batch_size=1"])
    assert "has 99 records, more than the 98" in capsys.readouterr().out


def test_the_memory_of_many_windows_is_found_without_listing_them(data):
    source = source_of(data, 1, shuffle_bytes=6)
    assert source.order.windows == 99
    reading = Reading(source.order, source.spec, source.selection, 0, Topology(1, 1, 1))
    assert reading.windows_memory.tolist() == [12]


def test_more_replicas_than_any_job_has_are_refused():
    with pytest.raises(UsageError, match="1,048,576"):
        Topology(HUGE, HUGE, HUGE)
