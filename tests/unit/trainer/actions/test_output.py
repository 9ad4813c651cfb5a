import pytest

from tests.runs import scalars
from trainer.actions.output import Output, Report
from trainer.config.flags import LearningFlags
from trainer.loop import Progress
from trainer.step import optimizers


def test_the_tutorials_line_with_the_speed_since_the_last_one(tmp_path, capsys):
    schedule = optimizers.schedule(LearningFlags(learning_rate=0.5, decay_factor=0.1), 20)
    report = Report(100, schedule, Output(tmp_path))
    report(Progress(step=30, loss=1.0, accuracy=0.5, steps=10, seconds=2.0))
    report(Progress(step=50, loss=0.5, accuracy=0.75, steps=30, seconds=3.0))
    assert capsys.readouterr().out.splitlines() == [
        "step 30, loss = 1.00 (500.0 examples/sec; 0.200 sec/batch)",
        "step 50, loss = 0.50 (2000.0 examples/sec; 0.050 sec/batch)",
    ]
    found = scalars(tmp_path)
    assert found["train/loss", 50] == 0.5
    assert found["train/accuracy", 50] == 0.75
    assert found["train/examples_per_second", 50] == 2000.0
    assert found["train/learning_rate", 30] == pytest.approx(0.05)  # of the update from step 29
    assert found["train/learning_rate", 50] == pytest.approx(0.005)


def test_workers_other_than_the_chief_write_nothing(tmp_path, capsys):
    output = Output(tmp_path / "logs", is_chief=False)
    output.line("hello")
    output.scalars(1, {"loss": 1.0})
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "logs").exists()
