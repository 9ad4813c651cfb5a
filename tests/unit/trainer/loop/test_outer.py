import math
from types import SimpleNamespace

import pytest

from pipeline.errors import DataError, PipelineError
from trainer.loop import outer
from trainer.loop.outer import Action


def counting(start, bad_at=None):
    """Returns an inner loop that only counts, and the lengths that it is asked for."""
    lengths = []

    def inner(steps):
        lengths.append(steps)
        step = start + sum(lengths)
        if bad_at is not None and step >= bad_at:
            return SimpleNamespace(step=bad_at, loss=math.nan, accuracy=0.0, finite=False)
        return SimpleNamespace(step=step, loss=0.5, accuracy=0.9, finite=True)

    return inner, lengths


def recorder(name, every, log):
    return Action(every, lambda progress: log.append((name, progress.step)))


@pytest.mark.parametrize(
    ("start", "lengths", "log"),
    [
        (0, [4, 1, 4, 1, 2], [("log", 5), ("log", 10), ("save", 10)]),
        (7, [3, 2], [("log", 10), ("save", 10)]),  # resumed, it stops at the same steps
    ],
)
def test_actions_run_in_order_at_their_multiples(start, lengths, log):
    done = []
    inner, asked = counting(start)
    actions = [recorder("log", 5, done), recorder("save", 10, done), recorder("never", 0, done)]
    assert outer.train(inner, start, 12, 4, actions, lambda: False) is False
    assert (asked, done) == (lengths, log)


def test_stop_is_asked_after_the_actions():
    log = []
    inner, lengths = counting(0)
    assert outer.train(inner, 0, 100, 10, [recorder("log", 10, log)], lambda: len(log) == 2) is True
    assert sum(lengths) == 20


def test_a_bad_loss_ends_with_its_step():
    inner, _ = counting(0, bad_at=13)
    with pytest.raises(DataError, match=r"step 13: .*nan.* --learning_rate"):
        outer.train(inner, 0, 100, 10, [], lambda: False)


def test_the_step_has_to_advance_as_claimed():
    inner, _ = counting(-1)
    with pytest.raises(PipelineError, match="step 9 instead of 10"):
        outer.train(inner, 0, 10, 10, [], lambda: False)
