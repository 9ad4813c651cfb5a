import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import ExactResume, input_fn, order_spec, steps_per_epoch
from pipeline.errors import DataError, UsageError
from tests.datasets import write_dataset

SHAPE = (4, 4, 1)
STEPS = 5  # of 38 records, 8 at a time


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (20, 18), SHAPE)
    return path


def made(data, folder, *, optimizer="adam", width=3, every=2, seed=0, compiled=True, keep=2, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(width)])
    if compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, **options)
    spec = order_spec(data, global_batch_size=8, training=True, seed=seed)
    return model, ExactResume(model, folder, spec, every=every, keep=keep)


class Dies(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.left = at

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def trained(data, folder, *others, epochs=3, **options):
    """Returns the steps at which fits began, the final weights, and the steps that the folder holds."""
    model, resume = made(data, folder, **options)
    resume.restore()
    begins = []
    for step, rest in resume.fits(epochs=epochs, steps_per_epoch=STEPS):
        begins.append((step, rest["initial_epoch"], rest["epochs"], rest["steps_per_epoch"]))
        batches = input_fn(data, global_batch_size=8, training=True, start_step=step, distort="shift", weights="mean")
        model.fit(batches, **rest, callbacks=[*others, resume], verbose=0)
    return begins, [weight.numpy() for weight in model.weights], saved_in(folder)


def saved_in(folder):
    return sorted(int(path.stem.removeprefix("ckpt-")) for path in pathlib.Path(folder).glob("ckpt-*.index"))


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    begins, weights, saved = trained(data, tmp_path_factory.mktemp("undisturbed"))
    assert steps_per_epoch(data, global_batch_size=8) == STEPS
    assert (begins, saved) == ([(0, 0, 3, 5)], [14, 15])
    return weights


@pytest.mark.parametrize(
    ("dies", "begins"),
    [
        pytest.param(1, [(0, 0, 3, 5)], marks=pytest.mark.slow),  # before the first save
        (4, [(2, 0, 1, 3), (5, 1, 3, 5)]),  # on step 4, before it is saved
        pytest.param(9, [(8, 1, 2, 2), (10, 2, 3, 5)], marks=pytest.mark.slow),
        pytest.param(11, [(10, 2, 3, 5)], marks=pytest.mark.slow),  # between two epochs
    ],
)
def test_a_run_that_dies_in_an_epoch_ends_with_the_same_bits(dies, begins, data, tmp_path, undisturbed):
    with pytest.raises(KeyboardInterrupt):
        trained(data, tmp_path, Dies(dies))
    found, weights, saved = trained(data, tmp_path)
    assert (found, saved[-1]) == (begins, 15)
    assert all(np.array_equal(a, b) for a, b in zip(weights, undisturbed, strict=True))
    assert trained(data, tmp_path)[0] == []  # done


def test_several_steps_per_call_are_saved_after_the_call_that_reaches_them(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(data, tmp_path, Dies(2), every=4, steps_per_execution=5)
    assert saved_in(tmp_path) == [5]
    with pytest.raises(UsageError, match="steps_per_execution=3 must divide steps_per_epoch=5"):
        trained(data, tmp_path / "other", steps_per_execution=3)


@pytest.mark.parametrize(
    ("every", "keep", "saved"), [(2, 1, [5]), (2, 9, [2, 4, 5]), pytest.param(3, 9, [3, 5], marks=pytest.mark.slow)]
)
def test_checkpoints_lie_so_many_steps_apart_and_so_many_are_kept(every, keep, saved, data, tmp_path):
    assert trained(data, tmp_path, epochs=1, every=every, keep=keep)[2] == saved


def test_a_callback_that_stops_ends_it(data, tmp_path):
    stops = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(stops.model, "stop_training", True)
    )
    begins, _, saved = trained(data, tmp_path, stops)
    assert len(begins) == 1
    assert saved[-1] <= STEPS


def test_another_order_model_or_optimizer_is_refused(data, tmp_path):
    trained(data, tmp_path, epochs=1)
    for changed, said in (
        ({"seed": 3}, "seed was 0, is 3"),
        ({"width": 4}, "another model"),
        ({"optimizer": "sgd"}, "optimizer Adam, the model has SGD"),
    ):
        _, resume = made(data, tmp_path, **changed)
        with pytest.raises(UsageError, match=said) as caught:
            resume.restore()
        assert caught.value.path == str(tmp_path / "ckpt-5")


def test_what_is_no_checkpoint_of_it_is_named(data, tmp_path):
    trained(data, tmp_path, epochs=1)
    (tmp_path / "ckpt-5.data-00000-of-00001").write_bytes(b"")
    _, resume = made(data, tmp_path)
    with pytest.raises(DataError) as caught:
        resume.restore()
    assert caught.value.path == str(tmp_path / "ckpt-5")


def test_what_cannot_work_is_refused(data, tmp_path):
    with pytest.raises(UsageError, match="compile"):
        made(data, tmp_path, compiled=False)
    with pytest.raises(UsageError, match="^every='0'"):
        made(data, tmp_path, every=0)
    with pytest.raises(UsageError, match="bfloat16"):
        made(data, tmp_path, optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))
    three = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(3)])
    with three.scope(), pytest.raises(UsageError, match="8 is not divisible by 3 replicas"):
        made(data, tmp_path)
