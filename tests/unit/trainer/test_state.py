import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from trainer import state
from trainer.config import TrainConfig


@pytest.fixture
def made(make_state):
    return make_state(tf.distribute.OneDeviceStrategy("/cpu:0"), "momentum")


def test_new_weights_are_finite(made):
    assert bool(made.is_finite())
    assert bool(made.has_finite_weights())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 3])
def test_one_weight_is_enough(value, index, made):
    variable = made.model.trainable_variables[index]
    values = variable.numpy()
    values.flat[-1] = value
    variable.assign(values)
    assert not bool(made.is_finite())
    assert not bool(made.has_finite_weights())


def test_velocities_count_when_saving(made):
    velocity = made.optimizer.variables[-1]
    velocity.assign(tf.fill(velocity.shape, np.nan))
    assert not bool(made.is_finite())
    assert bool(made.has_finite_weights())


@dataclasses.dataclass(frozen=True)
class FakeManifest:
    image_shape: tuple
    image_mean: tuple = (0.0,)
    image_std: tuple = (1.0,)


@dataclasses.dataclass(frozen=True)
class FakePlan:
    manifest: FakeManifest
    num_classes: int = 10


@pytest.mark.parametrize(
    ("model", "distort", "shape", "inputs", "dtype"),
    [
        ("mlp", "none", (28, 28, 1), (28, 28, 1), "uint8"),
        ("mlp", "shift(pixels=2)", (28, 28, 1), (28, 28, 1), "float32"),
        ("cifar10_cnn", "cifar10_tutorial", (32, 32, 3), (24, 24, 3), "float32"),
    ],
)
def test_the_model_takes_what_the_distortion_gives(model, distort, shape, inputs, dtype):
    config = TrainConfig.for_model(model, data_dir="", model_dir="", distort=distort)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    made = state.create(strategy, config, FakePlan(FakeManifest(shape, (0.0,) * shape[2], (1.0,) * shape[2])))
    assert made.model.input_shape == (None, *inputs)
    assert made.model.inputs[0].dtype == dtype
    assert made.step == 0
