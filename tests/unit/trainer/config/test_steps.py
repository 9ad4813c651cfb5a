import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from trainer.config import TrainConfig, file, parse
from trainer.config.steps import Interval, Period, StepFlags, period_of

PATHS = {"data_dir": "D", "model_dir": "M"}
FLAGS = [f"--{name}={value}" for name, value in PATHS.items()]
EVERY = ("log", "summary", "eval", "checkpoint", "histogram", "image")


@pytest.mark.parametrize(
    ("texts", "value", "period"),
    [
        (("100", "1e2", "100 steps", "1_00", " 100 "), 100, Period(100)),
        (("1 step",), 1, Period(1)),
        (("0", "0 epochs", "0s", "-0"), 0, Period(0)),
        (("1 epoch", "1epoch", "1 epochs", "1.0 EPOCHS"), "1 epoch", Period(23)),
        (("0.5 epochs", ".5 epoch", "5e-1 epochs"), "0.5 epochs", Period(Fraction(23, 2))),
        (("2 epochs",), "2 epochs", Period(46)),
        (("30s", "30 s", "30.0s"), "30s", Period(seconds=30.0)),
        (("5m",), "5m", Period(seconds=300.0)),
        (("1.5h",), "1.5h", Period(seconds=5400.0)),
    ],
)
def test_an_interval_has_one_value_and_a_period_in_steps_or_seconds(texts, value, period):
    for text in texts:
        assert Interval.value_of(text) == value
        assert period_of(text, 23) == period
    assert type(Interval.value_of(texts[0])) is type(value)


@pytest.mark.parametrize("given", [7, 7.0, np.int64(7), np.float32(7.0), "7", "7 steps"])
def test_python_gives_a_number_of_steps_or_a_text(given):
    assert TrainConfig.of(**PATHS, eval_every=given).steps.eval_every == 7


@pytest.mark.parametrize(
    "wrong", ["", "x", "1 epcoh", "epoch", "1.5", "1.5 steps", "-1 epoch", "-30s", "30d", "1e400s", "1e10 epochs"]
)
def test_what_is_no_interval_is_one_line_with_the_flag_the_value_and_what_works(wrong):
    for make in (
        lambda: parse([*FLAGS, f"--checkpoint_every={wrong}"]),
        lambda: TrainConfig.of(**PATHS, checkpoint_every=wrong),
        lambda: StepFlags(checkpoint_every=wrong),
    ):
        with pytest.raises(UsageError) as caught:
            make()
        said = str(caught.value)
        assert "checkpoint_every" in said.partition(":")[0]
        assert wrong in said
        assert all(form in said for form in ("100", "'1 epoch'", "30s", "5m"))
        assert "\n" not in said


@pytest.mark.parametrize("wrong", [None, True, 1.5, math.nan, math.inf, ["1 epoch"]])
def test_what_python_must_not_give_is_refused(wrong):
    with pytest.raises(UsageError, match="^eval_every="):
        TrainConfig.of(**PATHS, eval_every=wrong)


@pytest.mark.parametrize("value", [3, 0, "1 epoch", "0.5 epochs", "30s", "5m"])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.quick(6)
def test_each_is_dumped_stored_and_read_as_it_was(name, value, tmp_path, capsys):
    flag = f"--{name}_every={value}"
    config = parse([*FLAGS, flag])
    with pytest.raises(SystemExit):
        parse([*FLAGS, flag, "--dump_config"])
    text = capsys.readouterr().out
    assert f"  {name}_every: {value}\n" in text
    (tmp_path / "dumped.yaml").write_text(text)
    assert parse([f"--config={tmp_path}/dumped.yaml"]) == config == TrainConfig.of(**PATHS, **{f"{name}_every": value})
    assert TrainConfig.of_stored(dataclasses.asdict(config)) == config
    file.write(tmp_path / "stored.yaml", dataclasses.asdict(config))
    assert parse([f"--config={tmp_path}/stored.yaml"]) == config


def test_a_file_with_numbers_of_steps_as_earlier_versions_wrote_it_is_read(tmp_path):
    (tmp_path / "config.yaml").write_text("steps: {log_every: 10, eval_every: 0, checkpoint_every: 400}\n")
    steps = parse([*FLAGS, f"--config={tmp_path}/config.yaml"]).steps
    assert (steps.log_every, steps.eval_every, steps.checkpoint_every) == (10, 0, 400)


@pytest.mark.parametrize("name", ["summary", "checkpoint"])
def test_two_clocks_for_one_thing_are_refused_and_steps_beside_a_clock_are_not(name):
    with pytest.raises(UsageError) as caught:
        parse([*FLAGS, f"--{name}_every=30s", f"--{name}_secs=60"])
    assert str(caught.value).startswith(f"--{name}_every=30s and --{name}_secs=60: ")
    steps = parse([*FLAGS, f"--{name}_every=2 epochs", f"--{name}_secs=60"]).steps
    assert steps.period(name, 23) == Period(46, 60.0)
    assert parse([*FLAGS, f"--{name}_every=1m"]).steps.period(name, 23) == Period(0, 60.0)


INTERVALS = st.integers(1, 99) | st.fractions(Fraction(1, 20), 40)


@given(steps=INTERVALS, start=st.integers(0, 200))
def test_the_kth_time_is_k_intervals_after_the_start_rounded_up(steps, start):
    period = Period(steps)
    due = sorted({math.ceil(k * steps) for k in range(1, math.ceil(420 / steps))})
    assert [step for step in range(1, 400) if period.is_due(step)] == [step for step in due if step < 400]
    assert period.next_after(start) == min(step for step in due if step > start)


def test_half_an_epoch_of_23_steps_is_due_at_the_end_of_each_epoch():
    period = period_of("0.5 epochs", 23)
    assert [step for step in range(1, 93) if period.is_due(step)] == [12, 23, 35, 46, 58, 69, 81, 92]
    assert Period().next_after(5) == math.inf
    assert not Period().is_due(5)


@pytest.mark.parametrize(
    ("flags", "period"),
    [
        ({}, Period(1000, 300.0, 60.0)),
        ({"checkpoint_every": "1 epoch"}, Period(23, 300.0, 60.0)),
        ({"checkpoint_every": 0}, Period(0)),
        ({"checkpoint_every": "10m"}, Period(0, 600.0)),
        ({"checkpoint_secs": 0.0}, Period(1000)),
        ({"checkpoint_secs": 600.0}, Period(1000, 600.0)),
        ({"checkpoint_every": 0, "checkpoint_secs": 30.0}, Period(0, 30.0)),
    ],
)
def test_a_clock_saves_by_default_unless_a_flag_says_when(flags, period):
    assert StepFlags(**flags).period("checkpoint", 23) == period


def test_a_clock_that_slows_down_waits_as_long_as_the_training_so_far():
    period, waits, seconds = Period(1000, 300.0, 60.0), [], 0.0
    for _ in range(6):
        waits.append(period.wait_after(seconds))
        seconds += waits[-1]
    assert waits == [60, 60, 120, 240, 300, 300]
    assert Period(1000, 300.0).wait_after(0) == 300
    assert Period(0, 30.0, 60.0).wait_after(0) == 30
