import math

import pytest

from pipeline.errors import DataError, PipelineError
from trainer import loop
from trainer.loop import InnerResult, Progress


class Recorder:
    def __init__(self, name, every, log):
        self.every, self._name, self._log = every, name, log

    def __call__(self, progress: Progress):
        self._log.append((self._name, progress.step))


def fake_trainer(start, bad_at=None):
    """An inner loop that counts, with the lengths that it was asked for."""
    lengths = []

    def inner(steps):
        lengths.append(steps)
        step = start + sum(lengths)
        if bad_at is not None and step >= bad_at:
            return InnerResult(bad_at, math.nan, 0.0, False)
        return InnerResult(step, 0.5, 0.9, True)

    return inner, lengths


@pytest.mark.parametrize(("step", "expected"), [(0, 20), (20, 5), (25, 20), (45, 5), (90, 7), (96, 1)])
def test_an_inner_loop_passes_no_stop(step, expected):
    assert loop.steps_to_next_stop(step, last_step=97, steps_per_loop=20, every=[25, 0, 50]) == expected


def test_actions_run_in_order_at_their_multiples():
    log = []
    inner, lengths = fake_trainer(0)
    actions = [Recorder("log", 5, log), Recorder("save", 10, log), Recorder("never", 0, log)]
    assert loop.train(inner, 0, 12, 4, actions, lambda: False) is False
    assert lengths == [4, 1, 4, 1, 2]
    assert log == [("log", 5), ("log", 10), ("save", 10)]


def test_a_resumed_loop_stops_at_the_same_steps():
    log = []
    inner, lengths = fake_trainer(7)
    loop.train(inner, 7, 12, 4, [Recorder("log", 5, log)], lambda: False)
    assert lengths == [3, 2]
    assert log == [("log", 10)]


def test_stop_is_asked_after_the_actions():
    log = []
    inner, lengths = fake_trainer(0)
    assert loop.train(inner, 0, 100, 10, [Recorder("log", 10, log)], lambda: len(log) == 2) is True
    assert sum(lengths) == 20


def test_a_bad_loss_ends_with_its_step():
    inner, _ = fake_trainer(0, bad_at=13)
    with pytest.raises(DataError, match=r"step 13: loss is nan; try a lower --learning_rate"):
        loop.train(inner, 0, 100, 10, [], lambda: False)


def test_the_step_has_to_advance_as_claimed():
    with pytest.raises(PipelineError, match="ended at step 9 instead of 10"):
        loop.train(lambda steps: InnerResult(9, 0.5, 0.5, True), 0, 10, 10, [], lambda: False)
