import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.config.model import OPTIMIZERS, OptimizerFlags
from trainer.step import optimizers

NOT_OPTIMIZERS = {"lossscaleoptimizer", "optimizer", "optimizermap"}
NEEDS_MORE = {"multioptimizer", "schedulefreeadamw"}  # several optimizers; another mode for evaluation


def test_all_of_keras_by_name():
    known = {name.lower() for name, kind in vars(keras.optimizers).items() if isinstance(kind, type)}
    known = {name for name in known if not name.startswith("_")}
    assert known - NOT_OPTIMIZERS - NEEDS_MORE == set(OPTIMIZERS) - {"momentum", "nesterov"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_can_be_made_and_takes_an_update(name):
    optimizer = optimizers.create(OptimizerFlags(optimizer=name, weight_decay=0.1))
    weights = keras.Variable(np.ones((2, 3), np.float32))
    optimizers.build(optimizer, [weights])
    optimizer.learning_rate = 0.5
    optimizer.apply([tf.ones((2, 3))])
    assert np.all(weights.numpy() < 1)


@pytest.mark.parametrize(("name", "slots"), [("sgd", 0), ("momentum", 1), ("nesterov", 1), ("adam", 2)])
def test_variables_of_an_optimizer(name, slots):
    optimizer = optimizers.create(OptimizerFlags(optimizer=name, momentum=0.7))
    optimizer.build([tf.Variable([1.0])])
    assert len(optimizer.variables) == 2 + slots  # iterations and learning rate
    assert getattr(optimizer, "momentum", 0.0) == (0.7 if slots == 1 else 0.0)
    assert getattr(optimizer, "nesterov", False) == (name == "nesterov")


def test_arguments_as_in_a_call():
    assert optimizers.create(OptimizerFlags(optimizer="adam(beta_2=0.95, epsilon=1e-5)")).beta_2 == 0.95


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("adam(beta=0.95)", "beta"),
        ("adam(learning_rate=1)", "learning_rate has a flag"),
        ("sgd(nesterov=True)", "name"),
    ],
)
def test_arguments_that_it_does_not_take_are_one_line(text, fact):
    with pytest.raises(UsageError, match=fact) as caught:
        optimizers.create(OptimizerFlags(optimizer=text))
    assert "\n" not in str(caught.value)


def test_biases_and_norms_do_not_decay():
    kernel, bias = keras.Variable(np.ones((2, 3), np.float32)), keras.Variable(np.ones(3, np.float32))
    optimizer = optimizers.create(OptimizerFlags(optimizer="sgd", weight_decay=0.1))
    optimizers.build(optimizer, [kernel, bias])
    optimizer.learning_rate = 0.5
    optimizer.apply([tf.zeros((2, 3)), tf.zeros(3)])
    np.testing.assert_allclose(kernel.numpy(), 1 - 0.5 * 0.1)  # decoupled: times the rate
    np.testing.assert_array_equal(bias.numpy(), 1.0)


def test_adamw_decays_by_the_flag_alone():
    assert optimizers.create(OptimizerFlags(optimizer="adamw")).weight_decay == 0.0
    assert optimizers.create(OptimizerFlags(optimizer="adamw", weight_decay=0.2)).weight_decay == 0.2


def test_float16_scales_the_loss():
    optimizer = optimizers.create(OptimizerFlags(), "float16")
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def rate(step, steps_per_epoch, last_step, **flags):
    schedule = optimizers.schedule(OptimizerFlags(**flags), steps_per_epoch, last_step)
    return float(schedule(tf.constant(step, tf.int64)))


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.1), (136849, 0.1), (136850, 0.01), (273699, 0.01), (273700, 0.001), (136850 * 122 - 1, 0.1 * 0.1**121)],
)
def test_staircase_of_the_cifar10_tutorial(step, expected):
    flags = {"learning_rate": 0.1, "decay_factor": 0.1, "decay_epochs": 350.0}
    assert rate(step, 391, 10**6, **flags) == pytest.approx(expected, rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("step", [0, 1, 300, 599, 600, 6000])
def test_the_smooth_decay_of_the_mnist_book(step):
    """tf.train.exponential_decay(0.8, step, 60000 / 100, 0.99), without its staircase."""
    flags = {"learning_rate": 0.8, "decay_factor": 0.99}
    assert rate(step, 600, 10**6, **flags, decay_staircase=False) == pytest.approx(0.8 * 0.99 ** (step / 600), rel=1e-6)
    assert rate(step, 600, 10**6, **flags) == pytest.approx(0.8 * 0.99 ** (step // 600), rel=1e-6)


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
