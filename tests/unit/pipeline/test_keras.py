import base64
import io
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import ExactResume, input_fn, order_spec, steps_per_epoch
from pipeline.errors import DataError, UsageError
from pipeline.keras import _CallbackState
from tests.helpers.datasets import write_dataset
from tests.helpers.lanes import some_slow

SHAPE = (4, 4, 1)
STEPS = 5  # of 38 records, 8 at a time


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (20, 18), SHAPE)
    return path


def made(data, folder, *, optimizer="adam", width=3, more=False, every=2, seed=0, compiled=True, keep=2, **options):
    keras.utils.set_random_seed(1)
    last = [keras.layers.Dense(width)] if more else []
    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(width), *last])
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
        batches = input_fn(data, global_batch_size=8, training=True, start_step=step, augment="shift", weights="mean")
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


def thawed(data, folder, dies=0):
    """Returns the steps of two compiles, two epochs with a frozen base and two with a thawed one, and the weights."""
    keras.utils.set_random_seed(1)
    base = keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(4), keras.layers.Dropout(0.3)]
    )
    model = keras.Sequential([keras.Input(SHAPE), base, keras.layers.Dense(3)])
    spec, resume, begins = order_spec(data, global_batch_size=8, training=True), None, []
    stops = [Dies(dies)] if dies else []
    for trainable, epochs in ((False, 2), (True, 4)):
        base.trainable = trainable
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01 if trainable else 0.1), loss)
        resume = ExactResume(model, folder, spec, every=2, after=resume)
        begins.append(("restored", resume.restore()))
        for step, rest in resume.fits(epochs=epochs, steps_per_epoch=STEPS):
            begins.append(step)
            batches = input_fn(data, global_batch_size=8, training=True, start_step=step, weights="mean")
            model.fit(batches, **rest, callbacks=[*stops, resume], verbose=0)
    return begins, [weight.numpy() for weight in model.weights]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "found"),
    [
        (7, [("restored", 6), 6, ("restored", 10), 10]),
        (14, [("restored", 10), ("restored", 12), 12, 15]),
        (11, [("restored", 10), ("restored", 10), 10]),  # before it is saved
        (20, [("restored", 10), ("restored", 18), 18]),
    ],
)
def test_a_model_that_is_compiled_again_counts_on(dies, found, data, tmp_path):
    begins, whole = thawed(data, tmp_path / "whole")
    assert begins == [("restored", 0), 0, ("restored", 10), 10]
    with pytest.raises(KeyboardInterrupt):
        thawed(data, tmp_path / "run", dies)
    begins, weights = thawed(data, tmp_path / "run")
    assert begins == found
    assert all(np.array_equal(one, other) for one, other in zip(weights, whole, strict=True))
    assert thawed(data, tmp_path / "run")[0] == [("restored", 10), ("restored", 20)]


def of_two_sizes(data, folder, *others):
    """Returns the steps of two inputs, two epochs with small images and two with large ones, and the weights."""
    keras.utils.set_random_seed(1)
    parts = [keras.layers.Conv2D(4, 3, padding="same"), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((None, None, 1)), *parts])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # Two windows of the large images; the small ones would all be in one.
    what = {"data_dir": data, "global_batch_size": 8, "training": True, "shuffle_bytes": 20 * 64, "record_bytes": 64}
    resume = ExactResume(model, folder, order_spec(**what), every=2)
    begins = [resume.restore()]
    for size, epochs in (("4x4", 2), ("8x8", 4)):
        for step, rest in resume.fits(epochs=epochs, steps_per_epoch=STEPS):
            begins.append(step)
            batches = input_fn(**what, resize=size, start_step=step, augment="flip", weights="mean")
            model.fit(batches, **rest, callbacks=[*others, resume], verbose=0)
    return begins, [weight.numpy() for weight in model.weights]


@pytest.mark.slow
@pytest.mark.parametrize(("dies", "found"), [(7, [6, 6, 10]), (13, [12, 12, 15])])
def test_two_inputs_of_different_sizes_follow_each_other(dies, found, data, tmp_path):
    begins, whole = of_two_sizes(data, tmp_path / "whole")
    assert begins == [0, 0, 10]
    with pytest.raises(KeyboardInterrupt):
        of_two_sizes(data, tmp_path / "run", Dies(dies))
    begins, weights = of_two_sizes(data, tmp_path / "run")
    assert begins == found
    assert all(np.array_equal(one, other) for one, other in zip(weights, whole, strict=True))


def test_the_compile_before_ends_first_and_another_optimizer_follows(data, tmp_path):
    model, resume = made(data, tmp_path)
    spec = order_spec(data, global_batch_size=8, training=True)
    for _, rest in resume.fits(epochs=1, steps_per_epoch=STEPS):
        model.fit(input_fn(data, global_batch_size=8, training=True, weights="mean"), **rest, verbose=0)
    with pytest.raises(UsageError, match=r"^model: has the optimizer of the compile before; compile it with a new one"):
        ExactResume(model, tmp_path, spec, every=2, after=resume)
    model, resume = made(data, tmp_path)
    model.compile("adam", "mse")
    with pytest.raises(UsageError, match=r"ckpt-5: is of the compile before, which ended at step 0; restore it first"):
        ExactResume(model, tmp_path, spec, every=2, after=resume).restore()


def test_several_steps_per_call_are_saved_after_the_call_that_reaches_them(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(data, tmp_path, Dies(2), every=4, steps_per_execution=5)
    assert saved_in(tmp_path) == [5]
    with pytest.raises(UsageError, match="steps_per_execution=3 must divide steps_per_epoch=5"):
        trained(data, tmp_path / "other", steps_per_execution=3)


@pytest.mark.parametrize(
    ("every", "keep", "saved"),
    some_slow([(2, 1, [5]), (2, 9, [2, 4, 5]), (3, 9, [3, 5])], [(2, 1, [5]), (2, 9, [2, 4, 5])]),
)
@pytest.mark.quick(1)
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
        ({"width": 4}, "has a different model"),
        ({"optimizer": "sgd"}, "optimizer Adam, the model has SGD"),
    ):
        _, resume = made(data, tmp_path, **changed)
        with pytest.raises(UsageError, match=said) as caught:
            resume.restore()
        assert caught.value.path == str(tmp_path / "ckpt-5")


@pytest.mark.parametrize(
    ("changed", "damage"),
    [
        pytest.param({"seed": 3}, None, marks=pytest.mark.slow),
        pytest.param({"width": 4}, None, marks=pytest.mark.slow),
        ({"more": True}, None),
        pytest.param({"optimizer": "sgd"}, None, marks=pytest.mark.slow),
        ({}, lambda data: data[:-9]),  # the last values cannot be read, those before could be
        pytest.param({}, lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], marks=pytest.mark.slow),
        pytest.param({}, lambda data: b"", marks=pytest.mark.slow),
    ],
    ids=["order", "shape", "layers", "optimizer", "truncated", "a flipped bit", "empty"],
)
@pytest.mark.quick(1)
def test_what_is_refused_has_changed_nothing_in_the_model(changed, damage, data, tmp_path):
    trained(data, tmp_path, epochs=1)
    if damage:
        path = tmp_path / "ckpt-5.data-00000-of-00001"
        path.write_bytes(damage(path.read_bytes()))
    model, resume = made(data, tmp_path, **changed)
    variables = [*model.variables, *model.optimizer.variables]
    before = [variable.numpy() for variable in variables]
    with pytest.raises((UsageError, DataError), match=r"ckpt-5"):
        resume.restore()
    assert all(np.array_equal(one, v.numpy()) for one, v in zip(before, variables, strict=True))
    model.add(keras.layers.Dense(3))  # nor what is made later
    model.build((None, *SHAPE))
    assert not model.layers[-1].bias.numpy().any()


class Watched(keras.callbacks.Callback):
    """Has a state of its own, of kinds that Keras' callbacks lack; and is told of each epoch once, at its end."""

    def __init__(self, log):
        super().__init__()
        self.log_of_test, self.seen, self.sums = log, {"epochs": 0}, np.zeros(2)
        self._log = log

    def on_epoch_end(self, epoch, logs=None):
        self.seen = {"epochs": self.seen["epochs"] + 1}
        self.sums = self.sums + np.array([1, logs["loss"]])
        self._log[epoch] = (float(self.model.optimizer.learning_rate.numpy()), logs["loss"], logs["accuracy"])


def with_callbacks(data, folder, epochs, log, *, dies=None, first=False, patience=5):
    """Trains with callbacks that remember; returns them and the final weights."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss, weighted_metrics=["accuracy"])
    never = {"monitor": "loss", "min_delta": 100.0}  # no epoch after the first is better
    callbacks = {
        "reduce": keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=2, cooldown=1, **never),
        "stop": keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True, **never),
        "best": keras.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
        "watched": Watched(log),
    }
    spec = order_spec(data, global_batch_size=8, training=True)
    resume = ExactResume(model, folder, spec, every=2, callbacks=list(callbacks.values()))
    resume.restore()
    killer = [Dies(dies)] if dies else []
    for step, rest in resume.fits(epochs=epochs, steps_per_epoch=STEPS):
        batches = input_fn(data, global_batch_size=8, training=True, start_step=step, augment="shift", weights="mean")
        order = [resume, *callbacks.values()] if first else [*callbacks.values(), resume]
        model.fit(batches, **rest, callbacks=[*killer, *order], verbose=0)
    return callbacks, [variable.numpy() for variable in model.variables]


@pytest.mark.parametrize(
    ("deaths", "first"),
    [
        ((13, 4), False),  # in an epoch and before its first save
        pytest.param((13, 4, 7, 3), False, marks=pytest.mark.slow),  # in epochs and at their ends
        pytest.param((4, 9), True, marks=pytest.mark.slow),  # as the first of the callbacks
        *(pytest.param(deaths, False, marks=pytest.mark.slow) for deaths in ((4, 9), (25, 1), (5, 5, 5, 5))),
    ],
)
def test_callbacks_that_remember_do_as_in_a_run_that_was_never_stopped(deaths, first, data, tmp_path):
    """The rate is halved twice, and the same epoch ends the training with the same bits, however it was killed."""
    log = {}
    expected, weights = with_callbacks(data, tmp_path / "undisturbed", 9, log, first=first)
    assert sorted(log) == list(range(6))
    assert [rate for rate, *_ in log.values()] == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert expected["stop"].stopped_epoch == 5
    found = {}
    for dies in deaths:
        with pytest.raises(KeyboardInterrupt):
            with_callbacks(data, tmp_path / "killed", 9, found, dies=dies, first=first)
    callbacks, ended = with_callbacks(data, tmp_path / "killed", 9, found, first=first)
    assert [rate for _, (rate, *_) in sorted(found.items())] == [rate for rate, *_ in log.values()]
    assert np.allclose([found[epoch][1:] for epoch in range(6)], [log[epoch][1:] for epoch in range(6)], rtol=1e-6)
    assert all(np.array_equal(one, other) for one, other in zip(ended, weights, strict=True))
    for name, attributes in {
        "stop": ("wait", "stopped_epoch", "best_epoch"),
        "reduce": ("wait", "cooldown_counter"),
        "watched": ("seen",),
    }.items():
        for attribute in attributes:
            assert getattr(callbacks[name], attribute) == getattr(expected[name], attribute), (name, attribute)
    for name in ("stop", "reduce", "best"):
        assert float(callbacks[name].best) == pytest.approx(float(expected[name].best), rel=1e-6)
    assert np.allclose(callbacks["watched"].sums, expected["watched"].sums, rtol=1e-6)
    again, _ = with_callbacks(data, tmp_path / "killed", 9, more := {}, first=first)
    assert more == {}  # it has ended
    assert again["stop"].stopped_epoch == 0
    with_callbacks(data, tmp_path / "killed", 9, more, first=first, patience=7)
    assert sorted(more) == [6, 7]  # the patience that is given now


class Draws(keras.layers.Layer):
    """Has a seed of its own, in a list."""

    def __init__(self):
        super().__init__()
        self.seeds = [keras.random.SeedGenerator(9)]

    def call(self, values, training=False):
        return values + keras.random.normal((3,), seed=self.seeds[0]) if training else values


def drawing(data, folder, epochs, *callbacks, strategy=None, inner=2, draws=True):
    """Trains a model whose layers draw numbers; returns the first step, the weights and the seeds."""
    keras.utils.set_random_seed(1)
    with (strategy or tf.distribute.get_strategy()).scope():
        dropouts = [keras.layers.Dropout(0.2, seed=3 + number) for number in range(inner if draws else 0)]
        block = keras.Sequential([keras.Input((16,)), keras.layers.Dense(6), *dropouts])
        layers = [keras.layers.RandomFlip(), keras.layers.GaussianNoise(0.1), keras.layers.Flatten()]
        layers = [keras.Input(SHAPE), *(layers if draws else layers[2:]), block, keras.layers.Dense(3)]
        model = keras.Sequential([*layers, Draws()] if draws else layers)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        spec = order_spec(data, global_batch_size=8, training=True)
        resume = ExactResume(model, folder, spec, every=2)
        first = resume.restore()
    for step, rest in resume.fits(epochs=epochs, steps_per_epoch=STEPS):
        batches = input_fn(data, global_batch_size=8, training=True, start_step=step, weights="mean")
        model.fit(batches, **rest, callbacks=[*callbacks, resume], verbose=0)
    weights = set(map(id, model.weights))
    seeds = [variable.numpy().tolist() for variable in model.variables if id(variable) not in weights]
    return first, [weight.numpy() for weight in model.weights], seeds


@pytest.mark.parametrize("replicas", some_slow([1, 2], [1]))
def test_layers_that_draw_go_on_as_without_the_kill(replicas, data, tmp_path):
    devices = [f"CPU:{number}" for number in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices) if replicas > 1 else None
    _, expected, seeds = drawing(data, tmp_path / "undisturbed", 2, strategy=strategy)
    assert len(seeds) == 5
    assert all(state[1] >= 10 for state in seeds)
    with pytest.raises(KeyboardInterrupt):
        drawing(data, tmp_path / "killed", 2, Dies(4), strategy=strategy)
    first, weights, again = drawing(data, tmp_path / "killed", 2, strategy=strategy)
    assert first == 2
    assert all(np.array_equal(one, other) for one, other in zip(weights, expected, strict=True))
    assert again == seeds


@pytest.mark.slow
def test_seeds_that_a_checkpoint_lacks_are_said_to_begin_anew(data, tmp_path, caplog, monkeypatch):
    def said(folder=tmp_path / "run", **options):
        caplog.clear()
        drawing(data, folder, 1, **options)
        return [record.getMessage() for record in caplog.records]

    said()
    assert said() == []
    (message,) = said(inner=1)
    assert message.startswith(f"{tmp_path}/run/ckpt-5: has the state of 5 of the model's seeds")
    assert ", not of 4: they begin anew" in message
    assert said(draws=False) == []
    with monkeypatch.context() as earlier:  # as an earlier version stored it
        memory = ExactResume._memory
        earlier.setattr(ExactResume, "_memory", lambda self: json.dumps({**json.loads(memory(self)), "seeds": []}))
        said(tmp_path / "earlier")
    (message,) = said(tmp_path / "earlier")
    assert "has the state of 0 of the model's seeds" in message
    assert said(tmp_path / "earlier", draws=False) == []


class Keeps(keras.callbacks.Callback):
    """Keeps arrays from the first step on."""

    def __init__(self, arrays=None):
        super().__init__()
        self.kept = None
        self._arrays = arrays

    def on_train_batch_end(self, batch, logs=None):
        self.kept = self.kept or self._arrays


@pytest.mark.slow
def test_arrays_of_types_that_numpy_cannot_name_come_back_as_they_were(data, tmp_path):
    """Weights in bfloat16, as `EarlyStopping` keeps them, would come back as bytes."""
    names = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float16", "float64", "int8", "bool")
    arrays = [np.array([[0.5, 1.0], [-2.0, 0.0]], tf.as_dtype(name).as_numpy_dtype) for name in names]

    def fitted(folder, keeps, epochs):
        model, _ = made(data, folder)
        spec = order_spec(data, global_batch_size=8, training=True)
        resume = ExactResume(model, folder, spec, every=2, callbacks=[keeps])
        resume.restore()
        for step, rest in resume.fits(epochs=epochs, steps_per_epoch=STEPS):
            batches = input_fn(data, global_batch_size=8, training=True, start_step=step, weights="mean")
            model.fit(batches, **rest, callbacks=[keeps, resume], verbose=0)
        return keeps.kept

    fitted(tmp_path, Keeps([*arrays, arrays[0][0]]), 1)
    found = fitted(tmp_path, Keeps(), 2)
    assert [array.dtype for array in found] == [*(array.dtype for array in arrays), arrays[0].dtype]
    assert all(one.tobytes() == other.tobytes() for one, other in zip(found, arrays, strict=False))
    fitted(tmp_path / "objects", Keeps([np.array([object()])]), 1)  # no state


def test_early_stopping_with_bfloat16_weights_resumes(data, tmp_path):
    def fitted(epochs):
        keras.utils.set_random_seed(1)
        dense = keras.layers.Dense(3, dtype=keras.DTypePolicy("bfloat16"))
        model = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), dense])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        stop = keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=9, restore_best_weights=True)
        spec = order_spec(data, global_batch_size=8, training=True)
        resume = ExactResume(model, tmp_path, spec, every=2, callbacks=[stop])
        resume.restore()
        for step, rest in resume.fits(epochs=epochs, steps_per_epoch=STEPS):
            batches = input_fn(data, global_batch_size=8, training=True, start_step=step, weights="mean")
            model.fit(batches, **rest, callbacks=[stop, resume], verbose=0)
        return stop.best_weights

    first, again = fitted(1), fitted(2)
    assert [one.dtype.name for one in (*first, *again)] == ["bfloat16"] * 4
    assert all(one.tobytes() == other.tobytes() for one, other in zip(first, again, strict=True))


def test_bfloat16_weights_that_an_earlier_version_stored_as_bytes_are_read():
    file = io.BytesIO()
    np.save(file, stored := np.array([1.0, -3.0], tf.bfloat16.as_numpy_dtype))
    state = _CallbackState(keras.callbacks.EarlyStopping())
    state.load({"best_weights": [{"array": base64.b64encode(file.getvalue()).decode()}]})
    state.resume()
    assert state.callback.best_weights[0].dtype == stored.dtype
    assert np.array_equal(state.callback.best_weights[0], stored)


@pytest.mark.slow
def test_other_callbacks_begin_anew_and_earlier_checkpoints_have_none(data, tmp_path, caplog):
    trained(data, tmp_path, epochs=1)
    with_callbacks(data, tmp_path / "some", 1, {})
    for folder, callbacks, said in (
        (tmp_path, [], None),
        (tmp_path, [keras.callbacks.EarlyStopping()], "has the state of no callbacks, not of EarlyStopping"),
    ):
        caplog.clear()
        model, _ = made(data, folder)
        spec = order_spec(data, global_batch_size=8, training=True)
        ExactResume(model, folder, spec, every=2, callbacks=callbacks).restore()
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == bool(said)
        assert not said or said in messages[0]


SCRIPT = """
import keras, sys
from parts import width
from pipeline import ExactResume, input_fn, order_spec
data, folder, epochs = sys.argv[1:]
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(width)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
resume = ExactResume(model, folder, order_spec(data, global_batch_size=8, training=True), every=2)
resume.restore()
for step, rest in resume.fits(epochs=int(epochs), steps_per_epoch=5):
    batches = input_fn(data, global_batch_size=8, training=True, start_step=step, weights="mean")
    model.fit(batches, **rest, callbacks=[resume], verbose=0)
"""


@pytest.mark.slow
def test_a_script_or_a_file_of_it_that_was_edited_is_named(data, tmp_path):
    script, parts = tmp_path / "script.py", tmp_path / "parts.py"
    script.write_text(SCRIPT)
    parts.write_text("width = 3")
    command = [sys.executable, script, data, tmp_path / "run"]

    def said(epochs):
        done = subprocess.run([*command, str(epochs)], capture_output=True, text=True, check=True, cwd="/")
        return [line.partition("changed since: ")[2] for line in done.stderr.splitlines() if "changed since" in line]

    assert said(1) == []
    parts.write_text("width = 1 + 2")
    assert said(2) == ["parts.py was edited"]
    script.write_text(SCRIPT + "print('the end')")
    assert said(3) == ["script.py was edited"]


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
