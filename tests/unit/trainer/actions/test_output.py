from types import SimpleNamespace

import numpy as np

from trainer.actions.output import LogLine, Output
from trainer.loop import Progress


def progress(step, loss, accuracy, steps, seconds, start_up):
    """Returns a progress whose last batch is of another loss than its epoch."""
    result = SimpleNamespace(norm=2.5, means=SimpleNamespace(numpy=lambda: np.array([loss, accuracy])))
    return Progress(step, {"total_loss": 9.0, "accuracy": 0.0}, steps, seconds, 0.0, start_up, result)


def test_the_tutorials_line_with_the_speed_since_the_last_one(capsys):
    line = LogLine(100, Output())
    line(progress(30, 1.0, 0.5, 11, 7.0, 5.0))
    line(progress(50, 0.5, 0.75, 31, 8.0, 5.0))
    assert capsys.readouterr().out.splitlines() == [
        "step 30, loss = 1.00 (500.0 examples/sec; 0.200 sec/batch)",
        "step 50, loss = 0.50 (2000.0 examples/sec; 0.050 sec/batch)",
    ]


def test_a_line_after_the_first_update_has_its_time(capsys):
    line = LogLine(100, Output())
    line(progress(1, 1.0, 0.5, 1, 5.0, 5.0))
    line(progress(2, 0.5, 0.5, 2, 5.5, 5.0))
    assert [text.split("(")[1] for text in capsys.readouterr().out.splitlines()] == [
        "20.0 examples/sec; 5.000 sec/batch)",
        "200.0 examples/sec; 0.500 sec/batch)",
    ]


def test_workers_other_than_the_chief_say_only_what_is_their_own(capsys):
    for rank in (0, 1, 2):
        output = Output(rank)
        output.line("hello")
        output.other_line("done at step 5")
    assert capsys.readouterr().out.splitlines() == ["hello", "worker 1: done at step 5", "worker 2: done at step 5"]
