import pytest
import tensorflow as tf

from trainer import optimizers
from trainer.optimizers import StaircaseDecay


@pytest.mark.parametrize(("step", "rate"), [(0, 0.1), (136849, 0.1), (136850, 0.01), (273699, 0.01), (273700, 0.001)])
def test_staircase_of_the_cifar10_tutorial(step, rate):
    schedule = StaircaseDecay(0.1, 0.1, steps=350 * 391)
    assert float(schedule(tf.constant(step, tf.int64))) == pytest.approx(rate, rel=1e-6)


def test_decay_of_the_mnist_book():
    schedule = StaircaseDecay(0.8, 0.99, steps=600)
    assert float(schedule(tf.constant(600 * 50, tf.int64))) == pytest.approx(0.8 * 0.99**50, rel=1e-5)


@pytest.mark.parametrize(("name", "slots"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_variables_of_an_optimizer(name, slots):
    optimizer = optimizers.create(name, momentum=0.9)
    optimizer.build([tf.Variable([1.0])])
    assert len(optimizer.variables) == 2 + slots  # iterations and learning rate
    assert getattr(optimizer, "momentum", 0.0) == (0.9 if name == "momentum" else 0.0)
