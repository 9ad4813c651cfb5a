from types import SimpleNamespace

import pytest

from tests.runs import scalars
from trainer.actions.scalars import Scalars, TrainScalars
from trainer.config.flags.optimizer import OptimizerFlags
from trainer.loop import Progress
from trainer.step import schedules

RESULT = SimpleNamespace(norm=2.5)


def progress(step, loss, accuracy, steps, seconds, start_up):
    return Progress(step, {"total_loss": loss, "accuracy": accuracy}, steps, seconds, 0.0, start_up, RESULT)


def test_the_scalars_of_training_with_the_speed_since_the_last_ones(tmp_path):
    rate = schedules.create(OptimizerFlags(learning_rate=0.5, decay_factor=0.1), 20, 60)
    write = TrainScalars(100, rate, Scalars(tmp_path, 0).write)
    write(progress(30, 1.0, 0.5, 11, 7.0, 5.0))
    write(progress(50, 0.5, 0.75, 31, 8.0, 5.0))
    found = scalars(tmp_path)
    assert found["train/total_loss", 50] == 0.5
    assert found["train/accuracy", 50] == 0.75
    assert found["train/examples_per_second", 30] == 500.0
    assert found["train/examples_per_second", 50] == 2000.0
    assert found["train/learning_rate", 30] == pytest.approx(0.05)  # of the update from step 29
    assert found["train/learning_rate", 50] == pytest.approx(0.005)
    assert found["train/gradient_norm", 50] == 2.5
    assert len(found) == 10


def write_runs(folder):
    """Writes 100 to 500 at every 100th step, as killed at 550; then, resumed from 300, from 350 on."""
    first = Scalars(folder, 0)
    for step in range(100, 600, 100):
        first.write(step, {"train/loss": 1.0})
    first.write(500, {"eval/test/accuracy": 0.5})
    resumed = Scalars(folder, 300)
    for step in range(350, 600, 50):
        resumed.write(step, {"train/loss": 2.0})


EXPECTED = {100: 1.0, 200: 1.0, 300: 1.0, 350: 2.0, 400: 2.0, 450: 2.0, 500: 2.0, 550: 2.0}


def test_after_a_resume_every_step_is_shown_once(tmp_path):
    write_runs(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path) == {("train/loss", step): value for step, value in EXPECTED.items()}


def test_tensorboard_shows_that(tmp_path):
    package = "tensorboard.backend.event_processing"
    public, own = (
        pytest.importorskip(f"{package}.{name}", reason="needs tensorboard: pip install tensorboard")
        for name in ("event_accumulator", "plugin_event_accumulator")
    )
    write_runs(tmp_path)
    read = public.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == list(EXPECTED.items())
    shown = own.EventAccumulator(str(tmp_path)).Reload()
    found = [(event.step, event.tensor_proto.float_val[0]) for event in shown.Tensors("train/loss")]
    assert found == list(EXPECTED.items())
    assert not shown.Tensors("eval/test/accuracy")


def test_without_scalars_there_is_no_file(tmp_path):
    Scalars(tmp_path / "logs", 0)
    Scalars(tmp_path / "logs", 0, writes=False).write(1, {"loss": 1.0})
    assert not (tmp_path / "logs").exists()


def test_scalars_can_be_read_as_soon_as_they_are_written(tmp_path):
    writer = Scalars(tmp_path / "runs" / "logs", 0)
    for step in (1, 2):
        writer.write(step, {"loss": 0.5})
        assert list(scalars(tmp_path / "runs" / "logs")) == [("loss", one) for one in range(1, step + 1)]
