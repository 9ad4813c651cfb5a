"""Functions that are run again where a worker is lost, and errors that are raised, on a coordinator of the tests."""

import re
import time
import types

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator.cluster_coordinator import ClosureAbortedError, ClosureInputError

from trainer.config.steps import Period
from trainer.parameter_server import scheduling
from trainer.parameter_server.scheduling import Closures, WorkerLines

LOST = tf.errors.UnavailableError(None, None, "worker 1 is gone")
CANCELLED = tf.errors.CancelledError(None, None, "another function failed")
NUMBERS = re.compile(r"\d+(?:\.\d+)?").findall
WRONG = tf.errors.InvalidArgumentError(None, None, "shard 3 is corrupt")


class Coordinator:
    """Has a function give, or raise, the next of its outcomes."""

    def __init__(self, refusals=()):
        self.refusals, self.ran = list(refusals), []

    def schedule(self, function, args):
        if self.refusals:
            raise self.refusals.pop(0)
        self.ran.append(args)
        return Remote(function)


class Remote:
    def __init__(self, outcomes):
        self.outcomes = outcomes

    def fetch(self):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def jobs(monkeypatch):
    """Closures that wait for a root cause a tenth of a second, how often a loss was looked at, and the coordinator."""
    monkeypatch.setattr(scheduling, "_ROOT_SECONDS", 0.1)

    def jobs(*refusals):
        coordinator, checked = Coordinator(refusals), []
        return Closures(coordinator, lambda: checked.append(1)), checked, coordinator

    return jobs


def results(made):
    """Returns the results by tag, until all have come back."""
    found, end = {}, time.monotonic() + 10
    while made.waiting and time.monotonic() < end:
        if came := made.next(2):
            found[came[0]] = came[1]
    return found


def test_results_come_with_their_tags_and_nothing_in_time_is_none(jobs):
    made, checked, coordinator = jobs()
    assert made.next(0.01) is None
    for tag in "ab":
        made.schedule(tag, [tag * 2], 1, 2)
    assert made.waiting == 2
    assert results(made) == {"a": "aa", "b": "bb"}
    assert (coordinator.ran, checked) == ([(1, 2)] * 2, [])


def test_what_was_lost_and_cancelled_is_run_again_and_what_came_is_kept(jobs):
    made, checked, coordinator = jobs()
    for tag, outcomes in (("a", [CANCELLED, 1]), ("b", [2]), ("c", [LOST, 3])):
        made.schedule(tag, outcomes, tag)
    assert results(made) == {"a": 1, "b": 2, "c": 3}
    assert sorted(coordinator.ran[3:]) == [("a",), ("c",)]
    assert checked


@pytest.mark.parametrize("wrapper", [None, ClosureInputError, ClosureAbortedError])
def test_an_error_of_the_function_comes_before_what_it_had_cancelled(jobs, wrapper):
    made, _, coordinator = jobs()
    made.schedule("a", [CANCELLED])
    made.schedule("b", [wrapper(WRONG) if wrapper else WRONG])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shard 3 is corrupt"):
        results(made)
    assert len(coordinator.ran) == 2  # nothing is run again


def test_an_error_of_a_function_may_come_when_the_next_is_scheduled(jobs):
    made, _, _ = jobs(ClosureInputError(WRONG))
    made.schedule("a", [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shard 3 is corrupt"):
        results(made)


def test_an_error_that_is_not_tensorflows_is_raised(jobs):
    made, _, _ = jobs()
    made.schedule("a", [ValueError("of the program"), 1])
    with pytest.raises(ValueError, match="of the program"):
        results(made)


def test_losses_without_a_result_in_between_end_it_and_others_do_not(jobs):
    made, checked, _ = jobs()
    for tag in range(8):  # one after another
        made.schedule(tag, [LOST, tag])
        assert results(made) == {tag: tag}
    assert len(checked) == 8
    made.schedule("lost", [LOST] * 7)
    with pytest.raises(tf.errors.UnavailableError):
        results(made)
    assert len(checked) == 8 + 5


def test_a_workers_lines_come_at_its_own_steps_or_by_the_clock(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(scheduling.time, "monotonic", lambda: now[0])
    starts = {0: 1, 1: 1}
    coordinator = types.SimpleNamespace(
        starts=starts.__getitem__, print_at=lambda worker, text: said.append((worker, *map(float, NUMBERS(text))))
    )
    lines = WorkerLines(coordinator, Period(2))
    lines.add(0, 5, [1.5, 2.5, 3.5], 0.75)  # after 1, 2 and 3 steps of its own
    lines.add(1, 6, [4.5], 0.5)
    now[0] = 2.0  # it waited for 1.5 s, then computed
    lines.add(0, 8, [5.5], 0.5)
    lines.add(0, 9, [], 0.5)
    starts[0] = 2  # started again, it counts anew
    lines.add(0, 9, [6.5], 0.5)
    assert said == [(0, 2, 5, 2.5, 0.25), (0, 4, 8, 5.5, 2.0)]
    said.clear()
    lines = WorkerLines(coordinator, Period(seconds=10.0))
    for now[0], worker in ((1.0, 0), (2.0, 1), (10.5, 0), (11.0, 0), (12.0, 1), (20.5, 0), (21.0, 0)):
        lines.add(worker, 0, [1.0, 2.0], 1.0)
    assert [(worker, count) for worker, count, *_ in said] == [(0, 6), (1, 4), (0, 10)]


def test_what_each_worker_has_done_as_scalars():
    coordinator = types.SimpleNamespace(starts=lambda worker: 1, print_at=lambda worker, text: None)
    lines = WorkerLines(coordinator, Period(100))
    assert lines.scalars() == {}
    lines.add(1, 2, [1.0, 1.0], 0.5)
    lines.add(0, 3, [1.0], 1.0)
    lines.add(1, 5, [1.0, 1.0], 1.5)
    assert lines.scalars() == {
        **{"worker/0/steps": 1.0, "worker/0/seconds_per_step": 1.0},
        **{"worker/1/steps": 4.0, "worker/1/seconds_per_step": 0.5},
    }
    lines.add(0, 6, [1.0], 3.0)  # since the last time
    assert lines.scalars() == {"worker/0/steps": 2.0, "worker/0/seconds_per_step": 3.0, "worker/1/steps": 4.0}
