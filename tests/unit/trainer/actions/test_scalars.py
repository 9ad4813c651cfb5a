from types import SimpleNamespace

import pytest
import tensorflow as tf

from tests.runs import scalars
from trainer.actions.events import EventFile
from trainer.actions.scalars import TrainScalars
from trainer.config.model import OptimizerFlags
from trainer.loop import Progress
from trainer.step import optimizers


def progress(step, loss, accuracy, steps, seconds, start_up, waited):
    values = {"total_loss": loss, "accuracy": accuracy}
    result = SimpleNamespace(norm=2.5, averages=tf.constant([0.25, 0.5, 0.125]), means=tf.constant([2.0, 0.25]))
    return Progress(step, values, steps, seconds, waited, start_up, result, start_wait=3.0)


def test_the_scalars_of_training_with_the_speed_since_the_last_ones(tmp_path):
    rate = optimizers.schedule(OptimizerFlags(learning_rate=0.5, decay_factor=0.1), 20, 60)
    write = TrainScalars(100, rate, EventFile(tmp_path, 0).scalars)
    write(progress(30, 1.0, 0.5, 11, 7.0, 5.0, 3.5))
    write(progress(50, 0.5, 0.75, 31, 8.0, 5.0, 3.75))
    found = scalars(tmp_path)
    assert found["train/total_loss", 50] == 0.5
    assert found["train/accuracy", 50] == 0.75
    assert found["train/examples_per_second", 30] == 500.0
    assert found["train/examples_per_second", 50] == 2000.0
    assert found["train/learning_rate", 30] == pytest.approx(0.05)  # of the update from step 29
    assert found["train/learning_rate", 50] == pytest.approx(0.005)
    assert found["train/gradient_norm", 50] == 2.5
    assert found["train/input_wait", 30] == 0.25  # half a second of two: that of the first step does not count
    assert found["train/input_wait", 50] == 0.25
    assert found["train/loss_average", 50] == 0.5
    assert (found["train/epoch_total_loss", 50], found["train/epoch_accuracy", 50]) == (2.0, 0.25)
    assert len(found) == 22
