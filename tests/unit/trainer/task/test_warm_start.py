import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.task import warm_start


def weights_of(state):
    return [v.numpy() for v in state.model.trainable_variables]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def make(make_strategy, make_state):
    """Returns a function that makes a state of a seed."""
    return lambda seed, **flags: make_state(make_strategy(), seed=seed, **flags)


@pytest.fixture
def saved(make, make_checkpoints):
    """A state whose checkpoints at steps 10 and 20 differ."""
    state = make(1)
    checkpoints = make_checkpoints(state)
    for step in (10, 20):
        state.global_step.assign(step)
        state.model.trainable_variables[0].assign_add(tf.ones(state.model.trainable_variables[0].shape))
        checkpoints.save()
    return state


@pytest.mark.parametrize("name", ["", "ckpt-20"])
def test_the_newest_or_the_named_checkpoint(name, saved, make, tmp_path):
    state = make(2)
    assert not same(weights_of(state), weights_of(saved))
    warm_start.load(state.model, str(tmp_path / name))
    assert same(weights_of(state), weights_of(saved))
    assert state.step == 0
    warm_start.load(state.model, str(tmp_path / "ckpt-10"))
    assert not same(weights_of(state), weights_of(saved))


def test_the_average_where_there_is_one(make, make_checkpoints, tmp_path):
    averaged = make(1, ema=0.5)
    for value in averaged.averages.values:
        value.assign(tf.fill(value.shape, 0.25))
    averaged.global_step.assign(3)
    make_checkpoints(averaged, ema=0.5).save()
    state = make(2)
    warm_start.load(state.model, str(tmp_path))
    assert all(np.all(value == 0.25) for value in weights_of(state))


def test_a_file_of_keras(make, tmp_path):
    one, other = make(1), make(2)
    path = str(tmp_path / "model.weights.h5")
    one.model.save_weights(path)
    warm_start.load(other.model, path)
    assert same(weights_of(one), weights_of(other))


def test_another_model_is_one_line(saved, make, tmp_path):
    layers = [keras.Input((4, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(5)]
    small = make(0, build=lambda: keras.Sequential(layers)).model
    for path in (str(tmp_path), str(tmp_path / "none"), str(tmp_path / "no.weights.h5")):
        with pytest.raises(UsageError, match=f"^--initialize_from={path}: ") as caught:
            warm_start.load(small, path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["--initialize_from", "task"])
def test_a_new_run_begins_with_them_and_so_does_the_average(text, saved, make_strategy, make_state, tmp_path):
    flags = {"initialize_from": tmp_path} if text == "--initialize_from" else {}
    state = make_state(make_strategy(), seed=2, ema=0.9, **flags)
    state.task.initialize(state.model)
    assert same(weights_of(state), weights_of(saved)) == bool(flags)
    state.averages.reset()
    assert same([value.numpy() for value in state.averages.values], weights_of(state))
