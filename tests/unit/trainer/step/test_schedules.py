import math

import pytest
import tensorflow as tf

from trainer.config.model import OptimizerFlags
from trainer.step import schedules


def rate(step, steps_per_epoch, last_step, **flags):
    schedule = schedules.create(OptimizerFlags(**flags), steps_per_epoch, last_step)
    return float(schedule(tf.constant(step, tf.int64)))


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.1), (136849, 0.1), (136850, 0.01), (273699, 0.01), (273700, 0.001), (136850 * 122 - 1, 0.1 * 0.1**121)],
)
def test_staircase_of_the_cifar10_tutorial(step, expected):
    flags = {"learning_rate": 0.1, "decay_factor": 0.1, "decay_epochs": 350.0}
    assert rate(step, 391, 10**6, **flags) == pytest.approx(expected, rel=1e-5, abs=1e-30)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.1), (35580, 0.1), (35581, 0.01), (53370, 0.01), (53371, 0.001), (10**9, 0.001)]
)
def test_stairs_of_resnet(step, expected):
    """The paper's 32,000 and 48,000 steps, as epochs of 391 steps."""
    flags = {"learning_rate": 0.1, "schedule": "piecewise", "decay_factor": 0.1, "decay_at": "91,136.5"}
    assert rate(step, 391, 64_000, **flags) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_schedules_that_end_with_the_training(schedule):
    flags = {"learning_rate": 0.4, "schedule": schedule, "end_factor": 0.25, "warmup_epochs": 2.0}
    rates = [rate(step, 10, 100, **flags) for step in range(121)]
    assert rates[0] == pytest.approx(0.4 / 20)
    assert rates[9] == pytest.approx(0.4 * 10 / 20)
    assert rates[19] == rates[20] == pytest.approx(0.4)
    assert rates[60] == pytest.approx(0.4 * (0.25 + 0.75 / 2))  # half way between 20 and 100
    quarter = (1 + math.cos(math.pi / 4)) / 2 if schedule == "cosine" else 0.75
    assert rates[40] == pytest.approx(0.4 * (0.25 + 0.75 * quarter))
    assert rates[100] == rates[120] == pytest.approx(0.1)


def test_a_warm_up_precedes_any_schedule():
    assert rate(4, 10, 100, learning_rate=0.4, schedule="constant", warmup_epochs=1.0) == pytest.approx(0.2)
    assert rate(10**7, 10, 100, learning_rate=0.4, schedule="constant", warmup_epochs=1.0) == pytest.approx(0.4)
