"""Contestants in processes of their own: what they measure, and which are skipped."""

import statistics
import sys

import pytest

from benchmarks import feeding, interpreters, throughput_chart
from benchmarks.feeding import Entry, Result
from benchmarks.feeds.feed import Setting
from benchmarks.interpreters import Interpreters
from pipeline.errors import UsageError

SETTING = Setting("", "", "", rows=10)
FAKE = "tests.unit.benchmarks.fake_feed"


@pytest.fixture
def measure(tmp_path):
    def run(entries):
        ready = feeding.prepared(entries, SETTING, tmp_path / "own", Interpreters({}))
        return {result.name: result for result in feeding.measured("peers", ready, SETTING, rounds=2, seconds=0.5)}

    return run


def test_rates_processor_time_and_memory_are_those_of_all_processes_of_a_contestant(measure):
    found = measure({name: Entry(FAKE, {"sleep": 0.01, "child": name == "works"}) for name in ("waits", "works")})
    for result in found.values():
        assert all(100 < one["rate"] <= 1_000 for one in result.rounds)
        assert result.first >= 0.01
    cpu, memory = (
        {name: statistics.median(one[field] for one in result.rounds) for name, result in found.items()}
        for field in ("cpu", "memory")
    )
    assert cpu["works"] > 4 * cpu["waits"] > 0
    assert 100 << 20 < memory["works"] - memory["waits"] < 140 << 20


def test_a_contestant_that_fails_is_skipped_with_the_reason_and_the_others_run(measure, capsys):
    entries = {
        "fine": Entry(FAKE, {"sleep": 0.001}),
        "broken": Entry(FAKE, {"fails": True}),
        "absent": Entry("tests.no_such_feed"),
    }
    assert set(measure(entries)) == {"fine"}
    said = capsys.readouterr().out
    assert "broken: skipped, RuntimeError: out of order\n" in said
    assert "absent: skipped, ModuleNotFoundError: No module named 'tests.no_such_feed'\n" in said


def test_contestants_that_share_a_folder_prepare_it_once(tmp_path):
    entries = {name: Entry(FAKE, {"sleep": sleep}, shared="one") for name, sleep in (("a", 1), ("b", 2))}
    ready = feeding.prepared(entries, SETTING, tmp_path, Interpreters({}))
    assert ready["a"].own == ready["b"].own
    assert (tmp_path / "one" / "made.json").read_text() == '{"sleep": 1}'


def test_interpreters_are_tried_in_order():
    assert interpreters.parse("", {"a"}).candidates("a") == [sys.executable]
    assert interpreters.parse("/bin/sh", {"a"}).candidates("a") == [sys.executable, "/bin/sh"]
    assert interpreters.parse("a=/bin/sh,/bin/cat", {"a", "b"}).candidates("a") == ["/bin/sh"]
    assert interpreters.parse("a=/bin/sh,/bin/cat", {"a", "b"}).candidates("b") == [sys.executable, "/bin/cat"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c=/bin/sh", r"--python=c=/bin/sh: 'c' is none of a, b"),
        ("a=/no/such", r"--python=a=/no/such: no file /no/such"),
    ],
)
def test_a_wrong_interpreter_is_named(text, message):
    with pytest.raises(UsageError, match=message):
        interpreters.parse(text, {"a", "b"})


def test_the_chart_has_both_panels(tmp_path):
    results = [
        Result("peers", name, rows, augmented, 0.1, [{"rate": rate, "cpu": 1.0, "memory": 1}], {}, "")
        for name, rate in (("ours", 2.5e6), ("other", 3e3))
        for rows in (128, 512)
        for augmented in (True, False)
    ]
    throughput_chart.draw(results, str(tmp_path / "chart.svg"))
    text = (tmp_path / "chart.svg").read_text()
    assert all(word in text for word in ("unaugmented", "2.50 M", "3.0 k", "batch 512"))
