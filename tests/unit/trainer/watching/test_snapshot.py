"""What a snapshot says: the straggler, JSON, and Prometheus' text format."""

import json
import math
import re

import pytest

from trainer.watching.snapshot import EvaluationRow, Member, Snapshot, as_json, as_metrics, straggler_of


def worker(index, waited=None, **fields):
    return Member(f"worker {index}", "worker", index, waited_per_step=waited, seconds_per_step=0.010, **fields)


def test_the_straggler_of_a_synchronous_job_waits_longest_for_its_input():
    found = straggler_of([worker(0, 0.001), worker(1, 0.004), worker(2, 0.0005)], True)
    assert (found.name, found.why) == (
        "worker 1",
        "waits for its input 3.0 ms per step longer than the next; the others wait for it",
    )
    assert straggler_of([worker(0, 0.001), worker(1, 0.0019)], True) is None  # 9% of a step
    assert straggler_of([worker(0, 0.004)], True) is None
    assert straggler_of([worker(0, 0.0), worker(1, 0.004, state="done")], True) is None


def test_the_straggler_of_a_synchronous_job_has_its_gradients_last():
    found = straggler_of([worker(i, 0.001, exchanged_per_step=s) for i, s in enumerate((0.006, 0.001, 0.005))], True)
    assert (found.name, found.why) == (
        "worker 1",
        "has its gradients 4.0 ms per step later than the next; the others wait for it",
    )
    assert straggler_of([worker(0, exchanged_per_step=0.0059), worker(1, exchanged_per_step=0.005)], True) is None
    assert straggler_of([worker(0, exchanged_per_step=0.005), worker(1)], True) is None


def test_shares_of_a_step_are_compared_since_processes_are_measured_at_different_times():
    members = [
        Member("worker 0", "worker", 0, seconds_per_step=0.0130, waited_per_step=0.0010, exchanged_per_step=0.0089),
        Member("worker 1", "worker", 1, seconds_per_step=0.0116, waited_per_step=0.0007, exchanged_per_step=0.0076),
    ]
    assert straggler_of(members, True) is None


def test_late_gradients_of_a_worker_whose_input_is_late_are_the_input_s():
    members = [worker(0, 0.001, exchanged_per_step=0.009), worker(1, 0.004, exchanged_per_step=0.001)]
    assert straggler_of(members, True).why.startswith("waits for its input 3.0 ms")


@pytest.mark.parametrize(("waited", "name"), [(0.003, "worker 1"), (0.007, "worker 0")])
def test_of_late_input_and_late_gradients_that_counts_which_costs_more(waited, name):
    members = [worker(0, waited, exchanged_per_step=0.006), worker(1, 0.001, exchanged_per_step=0.001)]
    assert straggler_of(members, True).name == name


def test_a_silent_process_is_the_straggler_whatever_the_others_do():
    members = [worker(0, 0.009), worker(1, 0.0), worker(2, 0.0, state="silent", heartbeat=5.0)]
    assert straggler_of(members, True).name == "worker 2"
    assert straggler_of(members, True).why == "gives no sign of life; the others wait for it"
    assert straggler_of(members, False).why == "gives no sign of life"


def test_an_asynchronous_worker_is_slow_by_itself():
    members = [
        Member("chief", "chief", 0, seconds_per_step=9.0),
        *(Member(f"worker {i}", "worker", i, steps=10, seconds_per_step=s) for i, s in enumerate((0.01, 0.02, 0.011))),
    ]
    assert straggler_of(members, False).name == "worker 1"
    assert "needs 2.0 times as long for a step" in straggler_of(members, False).why
    assert straggler_of([one for one in members if one.index != 1], False) is None


NAMES = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAMES})\{{({LABEL}(?:,{LABEL})*)\}} (NaN|[-+0-9.e]+)")


def parsed(text):
    """Returns the samples of an exposition, each of a family that was declared: {name: {labels: value}}."""
    assert text.endswith("\n")
    declared, found = [], {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            declared.append(line.split()[2])
            assert line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            assert line.split()[2:] == [declared[-1], "gauge"]
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert name == declared[-1]  # samples of a family are together
            assert labels not in found.setdefault(name, {})
            found[name][labels] = float(value)
    assert len(declared) == len(set(declared))
    return found


def test_metrics_are_of_prometheus_text_format():
    rows = (EvaluationRow(10, 1.0, {"loss": 0.5, "accuracy": 0.75}, 1, True),)
    given = {"step": 20, "heartbeat": 1795372079.5, "host": "a", "restarts": 2, "exchanged_per_step": 0.25}
    members = (worker(0, 0.001, **given), worker(1, state="silent"))
    first = Snapshot("one", 0.0, "training", step=20, loss=math.nan, members=members, evaluations=rows, restarts=3)
    found = parsed(as_metrics([first, Snapshot('say "hi"\\\n', 0.0, "done", step=7)]))
    assert found["stepfeed_step"] == {'run="one"': 20.0, r'run="say \"hi\"\\\n"': 7.0}
    assert math.isnan(found["stepfeed_loss"]['run="one"'])
    assert found["stepfeed_restarts"] == {'run="one"': 3.0}
    assert found["stepfeed_state"]['run="one",state="training"'] == 1.0
    assert found["stepfeed_member_up"] == {
        'run="one",member="worker 0",host="a"': 1.0,
        'run="one",member="worker 1",host=""': 0.0,
    }
    assert found["stepfeed_member_heartbeat_timestamp_seconds"] == {
        'run="one",member="worker 0",host="a"': 1795372079.5
    }
    assert found["stepfeed_member_exchanged_per_step_seconds"] == {'run="one",member="worker 0",host="a"': 0.25}
    assert found["stepfeed_evaluation"]['run="one",metric="accuracy"'] == 0.75
    assert "stepfeed_epoch" not in found  # nobody knows it


def test_json_has_no_numbers_that_json_lacks():
    content = json.loads(as_json([Snapshot("one", 1.0, "training", loss=math.inf, members=(worker(0, 0.5),))]))
    assert content["version"] == 1
    (run,) = content["runs"]
    assert (run["loss"], run["step"], run["members"][0]["waited_per_step"]) == (None, None, 0.5)


@pytest.mark.parametrize(("state", "live"), [("training", True), ("waiting", True), ("done", False), ("gone", False)])
def test_a_run_that_may_go_on_is_live(state, live):
    assert Snapshot("one", 0.0, state).is_live is live
