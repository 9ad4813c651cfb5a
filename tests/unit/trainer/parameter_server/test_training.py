"""The loop over workers' steps, with a scheduler that runs them in this process."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.checkpoint import NotFiniteError
from trainer.config.steps import Period
from trainer.loop import Action
from trainer.parameter_server.ledger import Averages, EpochSums, Ledger, Row, Rows, Tally
from trainer.parameter_server.scheduling import Finished
from trainer.parameter_server.training import Loop
from trainer.step.measures import WEIGHT, RowMeasure
from trainer.task import LOSS, Task

EPOCH = 6  # steps


class Steps:
    """A scheduler that runs every step immediately and marks it in the ledger; step s has a loss of s over 4 rows.

    Attributes:
      asked: first and last step of each run.
      made: steps that another worker has made before, which have no rows.
      bad: step whose loss is not finite.
      ahead: number of later steps made by the time of a report.
    """

    def __init__(self, ledger, made=(), bad=None, ahead=0):
        self.asked, self.reached, self.ledger = [], 0, ledger
        self.made, self.bad, self.ahead = made, bad, ahead

    def run(self, first, end, cut, stops):
        self.asked.append((first, end))
        step = first
        while step < end and not stops():
            stop = min(end, cut(step))
            for one in range(step, stop):
                self.ledger.begin(tf.constant(one, tf.int64))
                self.ledger.applied(tf.constant(one, tf.int64))
            rows = {
                one: Row(0.25, 2.0, np.array([4.0, 4.0 * one])) for one in range(step, stop) if one not in self.made
            }
            yield Finished(stop, rows, self.bad not in rows, 0.5, min(end, stop + self.ahead))
            step = stop
        self.reached = step

    def tally(self):
        return Tally(dropped=1)


@pytest.fixture
def train():
    """Returns a function that trains 20 steps with some actions.

    It returns the scheduler, the arguments of `settle` and `watch`, the tally, and whether it ended early.
    """

    def train(*actions, stop_at=None, **options):
        rows, ledger, settled, watched, tally = Rows(RowMeasure(Task(None, None))), Ledger(span=32), [], [], Tally()
        rows.packed({WEIGHT: tf.constant(0.0), LOSS: tf.constant(0.0)}, tf.constant(0.0), tf.constant(0.0))
        steps = Steps(ledger, **options)
        stops = lambda: stop_at is not None and bool(watched) and watched[-1].step >= stop_at  # noqa: E731
        kept = Averages(), EpochSums(EPOCH), ledger, tally
        loop = Loop(steps, rows, *kept, actions, settled.append, stops, watched.append)
        return steps, settled, watched, tally, loop.train(0, 20)

    return train


def test_workers_pause_for_what_needs_the_state_and_go_on_for_what_does_not(train):
    done = []
    light = Action(Period(3), lambda progress: done.append(("log", progress.step)))
    save = Action(Period(8), lambda progress: done.append(("save", progress.step)), pauses=True)
    steps, settled, _, tally, early = train(light, save)
    assert steps.asked == [(0, 8), (8, 16), (16, 20)]
    assert settled == [8, 16, 20]
    logs = [("log", step) for step in (3, 6, 9, 12, 15, 18)]
    assert done == [*logs[:2], ("save", 8), *logs[2:5], ("save", 16), logs[5]]
    assert (tally, early) == (Tally(once=20, dropped=3), False)  # from three runs


def test_a_report_has_the_numbers_of_its_steps(train):
    _, _, watched, _, _ = train(Action(Period(4), lambda progress: None))
    assert [one.step for one in watched] == [1, 4, 8, 12, 16, 20]  # the first step alone, which includes compiling
    last = watched[-1]
    assert last.values == {"total_loss": 19.25, "regularization": 0.25, LOSS: 19.0}
    assert (last.spent.steps, last.spent.waited, last.compiling.waited) == (20, 3.0, 0.5)
    assert float(last.result.norm) == 2.0
    assert last.result.means.numpy().tolist() == [18.75, 0.25, 18.5]  # of steps 18 and 19, the epoch so far


def test_the_speed_is_that_of_all_updates_whatever_has_been_reported(train, monkeypatch):
    """Before each of the first reports, three more steps have been made than it covers; each takes a second."""
    now = iter(range(10**6))
    monkeypatch.setattr("trainer.parameter_server.training.time.perf_counter", lambda: next(now))
    at = Action(Period(5), lambda progress: None), Action(Period(10), lambda progress: None, pauses=True)
    _, _, watched, _, _ = train(*at, ahead=3)
    assert [(one.step, one.spent.steps) for one in watched] == [(1, 1), (5, 5), (10, 7), (15, 15), (20, 17)]
    assert watched[1].since(watched[0])[:2] == (4, 1.0)
    assert watched[2].since(watched[1])[:2] == (2, 1.0)


def test_steps_that_a_lost_worker_had_applied_are_counted_and_report_nothing_new(train):
    _, settled, watched, tally, _ = train(Action(Period(4), lambda progress: None), made=range(4))
    assert [one.step for one in watched] == [5, 8, 12, 16, 20]
    assert watched[-1].spent.steps == 1 + 15  # the first report covers only step 4
    assert (settled, tally.once) == ([20], 20)


def test_a_signal_ends_it_at_the_step_that_was_reached(train):
    steps, settled, _, tally, early = train(Action(Period(4), lambda progress: None), stop_at=8)
    assert (steps.reached, settled, tally.once, early) == (8, [8], 8, True)
    assert train(stop_at=20)[-1] is False


def test_a_loss_that_is_not_finite_ends_it_with_the_steps_number(train):
    with pytest.raises(NotFiniteError) as error:
        train(Action(Period(4), lambda progress: None), bad=6)
    assert str(error.value).startswith("step 8: loss is 7,")


def test_by_the_clock_workers_pause_for_what_needs_the_state_alone(train, monkeypatch):
    now = iter(range(10**6))
    monkeypatch.setattr("trainer.loop.time.monotonic", lambda: next(now))
    at_every_step, often = (
        Action(Period(1), lambda progress: None),
        {"period": Period(0, 5.0), "do": lambda progress: None},
    )
    assert train(at_every_step, Action(**often))[1] == [20]
    assert len(train(at_every_step, Action(**often, pauses=True))[1]) > 1


def test_workers_pause_for_what_was_asked_for_but_not_before_the_first_report(train):
    asked, done = [True], []

    def save(progress):
        asked[0] = False
        done.append(progress.step)

    steps, settled, *_ = train(
        Action(Period(4), lambda progress: None), Action(Period(), save, asked=lambda: asked[0], pauses=True)
    )
    assert (done, settled, steps.reached) == ([1], [1, 20], 20)
