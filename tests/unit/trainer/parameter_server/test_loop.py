"""The loop over workers' steps, with a scheduler that makes them in this process."""

import types

import numpy as np
import pytest

from trainer.loop import Action
from trainer.parameter_server import loop as parts
from trainer.parameter_server.ledger import Tally
from trainer.parameter_server.loop import Loop
from trainer.parameter_server.rows import Row
from trainer.parameter_server.scheduling import Finished


class FakeScheduler:
    """Makes every step at once, and says how far it was asked to go."""

    def __init__(self):
        self.asked, self.reached = [], 0

    def run(self, first, end, cut, stops):
        self.asked.append((first, end))
        step = first
        while step < end and not stops():
            stop = min(end, cut(step))
            yield Finished(stop, {one: Row(0.0, 0.0, np.zeros(2)) for one in range(step, stop)}, True, 0.0)
            step = stop
        self.reached = step

    def tally(self):
        return Tally()


@pytest.fixture
def train(monkeypatch):
    """Returns a function that trains 20 steps with some actions, and returns the scheduler and the steps settled."""
    monkeypatch.setattr(parts.packing, "result", lambda *_: None)
    rows = types.SimpleNamespace(loss=lambda row: 0.0, weight=lambda row: 1.0, values=lambda row: {})
    sums = types.SimpleNamespace(add=lambda *_: None, means=lambda _: [])
    ledger = types.SimpleNamespace(read=lambda first, stop: Tally(once=stop - first))

    def train(*actions):
        scheduler, settled = FakeScheduler(), []
        loop = Loop(
            scheduler, rows, sums, sums, ledger, Tally(), actions, settled.append, lambda: False, lambda progress: None
        )
        assert not loop.train(0, 20)
        assert loop.tally.once == 20
        return scheduler, settled

    return train


def test_workers_pause_for_what_needs_the_state_and_go_on_for_what_does_not(train):
    done = []
    light = Action(3, lambda progress: done.append(("log", progress.step)))
    scheduler, settled = train(light, Action(8, lambda progress: done.append(("save", progress.step)), pauses=True))
    assert scheduler.asked == [(0, 8), (8, 16), (16, 20)]
    assert settled == [8, 16, 20]
    logs = [("log", step) for step in (3, 6, 9, 12, 15, 18)]
    assert done == [*logs[:2], ("save", 8), *logs[2:5], ("save", 16), logs[5]]


def test_by_the_clock_workers_pause_for_what_needs_the_state_alone(train, monkeypatch):
    now = iter(range(10**6))
    monkeypatch.setattr("trainer.loop.time.monotonic", lambda: next(now))
    at_every_step, often = Action(1, lambda progress: None), {"every": 0, "do": lambda progress: None, "seconds": 5.0}
    assert train(at_every_step, Action(**often))[1] == [20]
    assert len(train(at_every_step, Action(**often, pauses=True))[1]) > 1
