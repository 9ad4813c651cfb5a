import contextlib
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn
from pipeline.errors import UsageError
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from tests.helpers.datasets import Kind, write_dataset
from trainer import plan
from trainer.config.model import OptimizerFlags
from trainer.step import state
from trainer.step.state import Forward
from trainer.task import DataSpec, Task, data_spec_of

IMAGES = np.random.default_rng(0).random((2, 4, 5, 3)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).random((60, 3)).astype(np.float32)


@pytest.fixture
def made(make_strategy, make_state):
    return make_state(make_strategy(), "momentum")


def test_new_weights_are_finite(made):
    assert bool(made.is_finite())
    assert bool(made.has_finite_weights())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.quick(2)
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


def test_a_state_that_could_not_be_resumed_is_refused(make_strategy, make_state):
    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(shape=(), dtype="int32", trainable=False, name="count", initializer="zeros")

        def call(self, inputs):
            return inputs

    def build():
        return keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Flatten(), Counting(), keras.layers.Dense(5)])

    with pytest.raises(UsageError, match="variable .*count is int32"):
        make_state(make_strategy(), build=build)


def test_central_storage_refuses_statistics_that_it_cannot_average(make_strategy, make_state):
    def build():
        layers = [keras.Input((4, 3, 1)), keras.layers.Flatten(), keras.layers.BatchNormalization()]
        return keras.Sequential([*layers, keras.layers.Dense(5)])

    with pytest.raises(UsageError, match=r"--strategy=central_storage: --model=\S+ .*moving_mean.*--strategy=mirrored"):
        make_state(make_strategy(2, "central_storage"), build=build)
    make_state(make_strategy(1, "central_storage"), build=build)


@pytest.mark.parametrize("build", [lambda: keras.Sequential, lambda: keras.Sequential([keras.layers.Dense(5)])])
def test_what_is_no_built_model_is_refused(build, make_strategy, make_state):
    with pytest.raises(UsageError, match="build_model: "):
        make_state(make_strategy(), build=build)


def test_the_seed_gives_the_weights_of_any_task(make_strategy, make_state):
    def build():
        return keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(5)])

    one, same, other = (
        make_state(make_strategy(), seed=seed, build=build).model.get_weights()[0] for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("model", "augment", "resize", "stored", "inputs", "dtype"),
    [
        ("mlp", "shift(pixels=2)", None, Kind(), (28, 28, 1), "float32"),
        ("mlp", "none", "20x16", Kind(), (20, 16, 1), "uint8"),
        ("cifar10_cnn", "cifar10_tutorial", "32x32", Kind("png", varied=True), (24, 24, 1), "float32"),
        ("lenet", "random_resized_crop(size=32, normalize=False)", None, Kind("png"), (32, 32, 1), "uint8"),
    ],
)
@pytest.mark.quick(2)
def test_the_model_takes_what_the_input_gives(model, augment, resize, stored, inputs, dtype, tmp_path, config_of):
    write_dataset(tmp_path, (8,), (28, 28, 1), kind=stored)
    flags = {"model": model, "data_dir": tmp_path, "augment": augment, "resize": resize, "ema": 0.9}
    config = config_of(**flags, global_batch_size=4)
    data = data_spec_of(plan.make(config).training.first)
    made = state.build(config, data, tf.distribute.OneDeviceStrategy("/cpu:0"), Task)
    arguments = {"global_batch_size": 4, "training": True, "augment": augment, "resize": resize}
    images = input_fn(tmp_path, **arguments).element_spec[0]
    assert made.model.input_shape == (None, *inputs) == (None, *images.shape[1:])
    assert made.model.inputs[0].dtype == dtype == images.dtype.name
    assert made.step == 0
    assert made.averages is None  # nothing is trained


def test_only_images_are_mirrored(config_of):
    class Rows(Task):
        def build_model(self):
            return keras.Sequential([keras.Input((3,)), keras.layers.Dense(5)])

    rows = DataSpec(tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64), tuple("abcde"))
    for flag in ("true", "false"):
        config = config_of(eval_flip=flag)
        refused = pytest.raises(UsageError, match="--eval_flip: ")
        with refused if flag == "true" else contextlib.nullcontext():
            state.build(config, rows, tf.distribute.OneDeviceStrategy("/cpu:0"), Rows)


def outputs(training, eval_flip):
    """Returns what a linear model gives, as pixels of each row in its own place."""
    images = keras.Input(IMAGES.shape[1:])
    model = keras.Model(images, keras.layers.Dense(3, use_bias=False)(keras.layers.Flatten()(images)))
    return Forward(model, [tf.constant(WEIGHTS)], [], eval_flip)(tf.constant(IMAGES), training=training).numpy()


def of(images):
    return images.reshape(2, -1) @ WEIGHTS


def test_an_evaluation_is_the_mean_over_images_and_their_mirror_images():
    np.testing.assert_allclose(outputs(False, True), (of(IMAGES) + of(IMAGES[:, :, ::-1])) / 2, rtol=1e-5)


def test_training_and_evaluations_without_the_flag_see_each_image_once():
    for training, eval_flip in ((True, True), (True, False), (False, False)):
        np.testing.assert_allclose(outputs(training, eval_flip), of(IMAGES), rtol=1e-5)


def test_a_seed_is_both_halves_of_the_hash_of_its_place_and_the_step():
    generator = tf.constant([1, 2], tf.uint32)
    found = state.seeded(
        [generator, tf.constant(0.5), generator], 7, tf.constant(3, tf.int64), tf.constant(2, tf.int64)
    )
    assert float(found[1]) == 0.5
    for index in (0, 2):
        key = int(hashing.derive_key(Domain.MODEL, 7, index, np.array(3), np.array(2)))
        assert found[index].dtype == tf.uint32
        assert found[index].numpy().tolist() == [key >> 32, key & 0xFFFFFFFF]
        assert min(found[index].numpy()) > 0


def test_moving_averages_begin_at_the_first_values_and_keep_nine_tenths():
    averages = tf.constant([np.nan, np.nan])
    for values, expected in (([2.0, -1.0], [2.0, -1.0]), ([4.0, 9.0], [2.2, 0.0]), ([2.2, 10.0], [2.2, 1.0])):
        averages = state.moving_averages(averages, tf.constant(values))
        np.testing.assert_allclose(averages, expected, atol=1e-6)


def rate(step, steps_per_epoch, last_step, **flags):
    schedule = state.schedule(OptimizerFlags(**flags), steps_per_epoch, last_step)
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
@pytest.mark.quick(1)
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
