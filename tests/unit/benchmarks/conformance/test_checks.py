"""The test program finds broken promises: real processes of an adapter that breaks one promise at a time."""

import dataclasses
import sys

import pytest

from benchmarks.conformance import job, table
from benchmarks.conformance.__main__ import row_of
from benchmarks.conformance.checks import Program
from benchmarks.conformance.job import Peer

PEER = Peer("tests.unit.benchmarks.conformance.broken_adapter", sys.executable)
KEPT = dict.fromkeys(("once", "steps", "resume", "elastic", "same", "skip"), "kept") | {"flip": "noticed and named"}


@pytest.fixture
def verdicts(tmp_path, monkeypatch):
    """Returns a function that runs the program against a fault, perhaps with only some numbers of ranks."""

    def run(fault, ranks=(1, 2)):
        monkeypatch.setenv("FAULT", fault)
        monkeypatch.setattr("benchmarks.conformance.checks.RANKS", ranks)
        declared = job.task(PEER, ["probe"], tmp_path)
        return Program(PEER, declared, tmp_path / "run", seconds=3.0).verdicts()

    return run


def broken(found):
    """Returns the texts of the promises that are not kept as a sound input keeps them."""
    return {name: verdict.text for name, verdict in found.items() if verdict.text != KEPT[name]}


def test_a_sound_input_keeps_all_promises_on_any_number_of_ranks(verdicts):
    found = verdicts("", ranks=(1, 2, 3, 5))
    assert broken(found) == {}
    assert all(verdict.kept for verdict in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("tail lost", {"once": "13 lost (on 1, 2)"}),
        ("padding counted", {"once": "17 repeated (on 1, 2)"}),
        ("order by ranks", {"same": "0 of 34 steps (on 2)", "elastic": "224 lost, 224 repeated"}),
        ("a batch lost on resume", {"resume": "30 lost", "elastic": "30 lost"}),
        ("bytes unchecked", {"flip": "silent: wrong bytes delivered", "skip": "silent: wrong bytes delivered"}),
        ("corruption not named", {"flip": "noticed, not named"}),
    ],
)
def test_a_broken_promise_is_seen(verdicts, fault, expected):
    assert broken(verdicts(fault)) == expected


def test_good_records_that_are_skipped_along_are_counted(verdicts):
    text = verdicts("whole batch skipped")["skip"].text
    assert text.endswith("good records lost")
    assert int(text.split()[0]) > 300


def test_a_rank_that_waits_for_one_that_has_ended_hangs(verdicts):
    found = verdicts("uneven")
    assert found["steps"].text == "kept (on 1); hangs (on 2)"
    assert found["steps"].detail == "at step 32 of epoch 0 rank 0 waits for rank 1, whose epoch has ended"


def test_a_rank_that_says_nothing_hangs_and_one_that_dies_is_an_error(verdicts, monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.conformance.job.START", 3.0)
    outcomes = {}
    for fault in ("hangs", "dies"):
        monkeypatch.setenv("FAULT", fault)
        folder = tmp_path / fault
        folder.mkdir()
        assert job.task(PEER, ["write", str(folder)], tmp_path)["written"]
        jobs = [job.Job(str(folder), str(tmp_path), rank, 2, 15) for rank in range(2)]
        outcomes[fault] = job.run(PEER, jobs, seconds=2.0)
    assert outcomes["hangs"].hung == "rank 1 says nothing for 2 s at step 5 of epoch 0"
    assert outcomes["dies"].error.startswith("exit code -9")
    assert [len(steps) for steps in outcomes["dies"].steps[0]] == [5, 5]


def test_what_is_not_installed_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setenv("FAULT", "")
    row = row_of("tests.no_such_adapter", [sys.executable], 1.0)
    assert row.reason == "ModuleNotFoundError: No module named 'tests.no_such_adapter'"
    assert table.markdown([row]).endswith("- tests.no_such_adapter: skipped, " + row.reason)


def test_the_table_has_a_cell_per_verdict(verdicts):
    found = verdicts("tail lost")
    declared = {"TITLE": "it", "versions": {"numpy": "2.0"}, "NOTE": "so.", "DOCS": ["https://example.org"]}
    lines = table.markdown([table.Row("it", declared, found)]).splitlines()
    assert lines[2] == "| it | **no**: 13 lost (on 1, 2) | yes |" + lines[2].split("yes |", 1)[1]
    assert lines[2].count("|") == len(table.COLUMNS) + 2
    assert lines[4:] == ["- **it** (numpy 2.0): so.", "  <https://example.org>"]
    assert dataclasses.asdict(found["once"]) == {"kept": False, "text": "13 lost (on 1, 2)", "detail": ""}
