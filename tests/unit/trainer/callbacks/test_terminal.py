import datetime
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers import displays
from tests.helpers.displays import terminal
from trainer.callbacks import heartbeat
from trainer.callbacks import progress as progress_bar
from trainer.callbacks import terminal as live
from trainer.callbacks.base import Phase
from trainer.callbacks.progress import EpochLine, LogLine, ProgressBar
from trainer.callbacks.terminal import LiveLine, Output
from trainer.config.steps import Period
from trainer.loop import Progress, Spent
from trainer.task import Evaluation

CLEAR = "\r\x1b[K"


def progress(step, seconds, waited=0.0):
    """Returns a progress whose last batch is better than its epoch."""
    epoch = {"total_loss": 0.25, "regularization": 0.0, "loss": 0.25, "accuracy": 0.875, "top5": 1.0, "third": 0.0}
    result = SimpleNamespace(means=SimpleNamespace(numpy=lambda: np.array(list(epoch.values()))))
    return Progress(
        step, {**epoch, "total_loss": 0.0, "accuracy": 1.0}, Spent(step, seconds, waited), Spent(1, 0.5), result
    )


@pytest.fixture
def clock(monkeypatch):
    """Returns a list whose only number is the time."""
    now = [100.0]
    for module in (live, progress_bar):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def drawn(text):
    """Returns the drawings in order, without colours."""
    return [one.replace("\x1b[32m", "").replace("\x1b[0m", "") for one in text.split(CLEAR)[1:]]


def test_without_a_terminal_there_is_no_line(capfd):
    with LiveLine() as line:
        assert not line.is_on
        assert not line.is_due
        line.on_phase(Phase("loading"))
        Output(0, line).line("hello")
    assert capfd.readouterr() == ("hello\n", "")


@pytest.mark.parametrize(
    ("is_timed", "launched", "expected"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False)],
)
def test_lines_begin_with_the_time_where_wanted(is_timed, launched, expected, capfd, monkeypatch, tmp_path):
    monkeypatch.delenv(heartbeat.VARIABLE, raising=False)
    if launched:
        monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path / "beat"))
    before = datetime.datetime.now().replace(microsecond=0)
    Output(0, is_timed=is_timed).line("step 1, loss = 2.3")
    Output(2, is_timed=is_timed).other_line("done at step 1")
    lines = capfd.readouterr().out.splitlines()
    assert list(map(live.without_time, lines)) == ["step 1, loss = 2.3", "worker 2: done at step 1"]
    assert [line != live.without_time(line) for line in lines] == [expected] * 2
    if expected:
        assert before <= datetime.datetime.fromisoformat(lines[0].partition(": ")[0]) <= datetime.datetime.now()


@pytest.mark.parametrize(("wanted", "term"), [(False, "xterm"), (True, "dumb")])
def test_neither_where_it_is_not_wanted(wanted, term, monkeypatch):
    monkeypatch.setenv("TERM", term)
    with terminal(80) as sent, LiveLine(wanted) as line:
        line.on_phase(Phase("loading"))
        assert sent() == ""


def test_other_lines_pass_by_and_the_end_removes_it(capsys):
    with terminal(80) as sent:
        with LiveLine() as line:
            line.on_phase(Phase("loading"))
            line.on_phase(Phase("loading"))
            Output(0, line).line("hello")
        assert sent() == f"{CLEAR}loading{CLEAR}{CLEAR}loading{CLEAR}"
    assert capsys.readouterr().out == "hello\n"


def test_what_takes_long_says_for_how_long(monkeypatch):
    monkeypatch.setattr(live, "_TICK", 0.02)
    with terminal(80) as sent, LiveLine() as line:
        line.on_phase(Phase("loading"))
        line._phase = ("loading", line._phase[1] - 7.0)
        line._closed.wait(0.2)
        assert drawn(sent()) == ["loading", "loading, 7 s"]


def test_progress_with_the_speed_of_the_last_seconds(clock):
    with terminal(160) as sent, LiveLine() as line:
        shown = ProgressBar(line, last_step=1000, steps_per_epoch=50, rows=64, unit="img")
        shown.on_loop(progress(1, 0.5))
        clock[0] += 0.05
        shown.on_loop(progress(2, 0.55))  # too soon
        clock[0] += 0.95
        shown.on_loop(progress(101, 1.0, waited=0.125))
        first, second = drawn(sent())
    assert first.startswith("  0%|")
    assert first.endswith("| step 1/1,000, epoch 0.0/20, loss 0.25, accuracy 0.875, top5 1.000")
    assert second.startswith(" 10%|█")
    assert "| step 101/1,000, epoch 2.0/20, loss 0.25, accuracy 0.875, top5 1.000, " in second
    assert second.endswith(", 12,800 img/s, input wait 25%, 00:08 left")


def test_the_window_moves(clock):
    with terminal(160) as sent, LiveLine() as line:
        shown = ProgressBar(line, last_step=10_000, steps_per_epoch=50, rows=1, unit="rows")
        for second in range(30):  # 1 step per second, later 100
            clock[0] += 1.0
            shown.on_loop(progress(1 + second if second < 15 else 100 * second, 1.0 + second))
        assert "100 rows/s" in drawn(sent())[-1]


def test_it_fits_the_terminal(clock):
    with terminal(60) as sent, LiveLine() as line:
        ProgressBar(line, 1000, 50, 64, "img").on_loop(progress(500, 0.5))
        assert len(drawn(sent())[0]) == 59


def test_a_run_goes_on_where_its_terminal_is_closed(clock, monkeypatch):
    ours, theirs = displays.opened(60)
    monkeypatch.setattr(live.sys, "stderr", theirs)
    with LiveLine() as line:
        shown = ProgressBar(line, 1000, 50, 64, "img")
        shown.on_loop(progress(500, 0.5))
        os.close(ours)
        clock[0] += 1.0
        with pytest.raises(OSError, match="Input/output error"):
            os.get_terminal_size(theirs.fileno())
        shown.on_loop(progress(501, 1.0))
        line.on_phase(Phase("saving"))
    theirs.close()


@pytest.mark.parametrize(("variable", "coloured"), [(None, True), ("1", False), ("", True)])
def test_colours_can_be_switched_off(variable, coloured, clock, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if variable is not None:
        monkeypatch.setenv("NO_COLOR", variable)
    with terminal(120) as sent, LiveLine() as line:
        ProgressBar(line, 1000, 50, 64, "img").on_loop(progress(500, 0.5))
        assert ("\x1b[32m" in sent()) == coloured


def logged(step, loss, accuracy, steps, seconds, start_up):
    """Returns a progress whose last batch has another loss than its epoch."""
    result = SimpleNamespace(norm=2.5, means=SimpleNamespace(numpy=lambda: np.array([loss, accuracy])))
    return Progress(step, {"total_loss": 9.0, "accuracy": 0.0}, Spent(steps, seconds), Spent(1, start_up), result)


def test_the_tutorials_line_with_the_speed_since_the_last_one(capsys):
    line = LogLine(Period(10), 100, Output())
    line.print(logged(30, 1.0, 0.5, 11, 7.0, 5.0))
    line.print(logged(50, 0.5, 0.75, 31, 8.0, 5.0))
    assert capsys.readouterr().out.splitlines() == [
        "step 30, loss = 1.00 (500.0 examples/sec; 0.200 sec/batch)",
        "step 50, loss = 0.50 (2000.0 examples/sec; 0.050 sec/batch)",
    ]


def test_a_line_of_a_skipped_step_says_so_and_an_epoch_of_them_has_no_loss(capsys):
    line = LogLine(Period(10), 100, Output(), ((28, 30), (39, 40)))
    for step, loss in ((28, 1.0), (30, 1.0), (31, 1.0), (40, math.nan)):
        line.print(logged(step, loss, 0.5, step, step / 10, 0.1))
    assert [text.partition(" (")[0] for text in capsys.readouterr().out.splitlines()] == [
        "step 28, loss = 1.00",
        "step 30, loss = 1.00, skipped",
        "step 31, loss = 1.00",
        "step 40, skipped",
    ]
    skipped = logged(40, math.nan, math.nan, 40, 4.0, 0.1)
    epoch = EpochLine(20, 60, lambda: 20, lambda step: False, Output())
    epoch.print(skipped)
    assert capsys.readouterr().out == "epoch 2 of 3, step 40: skipped\n"
    with LiveLine() as live:
        assert ProgressBar(live, 60, 20, 100, "img").text(skipped) == "step 40/60, epoch 2.0/3"


def test_a_line_after_the_first_update_has_its_time(capsys):
    line = LogLine(Period(10), 100, Output())
    line.print(logged(1, 1.0, 0.5, 1, 5.0, 5.0))
    line.print(logged(2, 0.5, 0.5, 2, 5.5, 5.0))
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


def evaluation(loss, accuracy):
    return Evaluation("test", 9, 0, loss, {"accuracy": accuracy})


@pytest.fixture
def epoch_line():
    """Returns a function that makes the lines of epochs of 10 steps, up to step 30, of which some are evaluated."""

    def make(evaluated=(), summed=lambda: 10, last_step=30):
        return EpochLine(10, last_step, summed, evaluated.__contains__, Output())

    return make


def test_an_epoch_has_its_means_and_the_evaluation_of_its_last_step(epoch_line, capsys):
    line = epoch_line(evaluated=(20, 30))
    assert [action.next_after(12) for action in line.actions()] == [20]
    line.print(logged(10, 1.5, 0.5, 11, 7.0, 5.0))
    line.on_evaluation(15, evaluation(9.0, 0.1))  # within an epoch
    line.print(logged(20, 1.25, 0.625, 21, 7.0, 5.0))
    assert len(capsys.readouterr().out.splitlines()) == 1  # the second waits
    line.on_evaluation(20, evaluation(0.75, 0.8125))
    line.print(logged(30, 1.0, 0.75, 31, 7.0, 5.0))
    line.on_train_end()
    line.on_evaluation(30, evaluation(0.5, 0.875))
    assert capsys.readouterr().out.splitlines() == [
        "epoch 2 of 3, step 20: loss = 1.2500, accuracy = 0.6250; test loss = 0.7500, accuracy = 0.8125",
        "epoch 3 of 3, step 30: loss = 1.0000, accuracy = 0.7500; test loss = 0.5000, accuracy = 0.8750",
    ]


def test_a_line_whose_evaluation_was_stopped_is_printed_without(epoch_line, capsys):
    line = epoch_line(evaluated=(20, 30))
    line.print(logged(20, 1.25, 0.625, 21, 7.0, 5.0))
    line.on_train_end()
    line.print(logged(30, 1.0, 0.75, 31, 7.0, 5.0))
    line.on_train_end()
    assert capsys.readouterr().out == "epoch 2 of 3, step 20: loss = 1.2500, accuracy = 0.6250\n"
    line.flush()
    line.flush()
    assert capsys.readouterr().out == "epoch 3 of 3, step 30: loss = 1.0000, accuracy = 0.7500\n"


def test_means_over_a_part_of_an_epoch_say_so_and_a_run_may_end_within_one(epoch_line, capsys):
    epoch_line(summed=lambda: 7, last_step=25).print(logged(10, 1.5, 0.5, 11, 7.0, 5.0))
    assert capsys.readouterr().out == (
        "epoch 1 of 2.50, step 10: loss = 1.5000, accuracy = 0.5000 (over 7 of its 10 steps)\n"
    )
