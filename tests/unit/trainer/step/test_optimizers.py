import pytest
import tensorflow as tf

from trainer.config.flags import LearningFlags
from trainer.step import optimizers


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.1), (136849, 0.1), (136850, 0.01), (273699, 0.01), (273700, 0.001), (136850 * 122 - 1, 0.1 * 0.1**121)],
)
def test_staircase_of_the_cifar10_tutorial(step, rate):
    schedule = optimizers.schedule(LearningFlags(learning_rate=0.1, decay_factor=0.1), 350 * 391)
    assert float(schedule(tf.constant(step, tf.int64))) == pytest.approx(rate, rel=1e-5, abs=1e-30)


@pytest.mark.parametrize(("name", "slots"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_variables_of_an_optimizer(name, slots):
    optimizer = optimizers.create(LearningFlags(optimizer=name, momentum=0.7))
    optimizer.build([tf.Variable([1.0])])
    assert len(optimizer.variables) == 2 + slots  # iterations and learning rate
    assert getattr(optimizer, "momentum", 0.0) == (0.7 if name == "momentum" else 0.0)
