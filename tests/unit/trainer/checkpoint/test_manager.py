import json
import re

import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import DataError, UsageError
from tests.helpers.runs import RECORD_KEY
from trainer.checkpoint import NotFiniteError


@pytest.fixture
def make_one(make_strategy, make_state):
    """Returns a function that makes a state on one device."""
    return lambda optimizer="momentum", seed=9: make_state(make_strategy(), optimizer, seed)


@pytest.fixture
def saved(make_strategy, make_state, make_checkpoints, tmp_path):
    """The state of two replicas as it was at step 20, saved at steps 10 and 20."""
    state = make_state(make_strategy(2), "momentum")
    checkpoints = make_checkpoints(state)
    for step in (10, 20):
        state.global_step.assign(step)
        state.model.trainable_variables[1].assign(np.full(500, step, np.float32))
        checkpoints.save()
    return state


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_everything_comes_back_on_other_replicas_too(saved, make_one, make_checkpoints, tmp_path):
    state = make_one()
    checkpoints = make_checkpoints(state)
    restored = checkpoints.restore()
    assert restored.path == checkpoints.newest == str(tmp_path / "ckpt-20")
    assert (restored.name, restored.changes) == ("ckpt-20", ())
    assert state.step == 20
    old_variables = saved.model.variables + saved.optimizer.variables
    new_variables = state.model.variables + state.optimizer.variables
    for old, new in zip(old_variables, new_variables, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_a_step_is_saved_again_with_an_evaluation_that_was_made_up_for(saved, make_checkpoints, make_one):
    checkpoints = make_checkpoints(make_one(), early_stopping=1, eval_every=10)
    checkpoints.restore()
    checkpoints.best.add(20, 0.5, {})
    checkpoints.save()
    again = make_checkpoints(make_one(), early_stopping=1, eval_every=10)
    assert again.restore().name == "ckpt-20"
    assert (again.best.ranking.evaluated, again.best.ranking.top) == (20, 0.5)


def test_poisoned_weights_are_not_saved_and_the_way_back_is_named(saved, make_checkpoints, make_one, tmp_path):
    state = make_one()
    checkpoints = make_checkpoints(state)
    checkpoints.restore()
    before = names(tmp_path)
    state.optimizer.variables[-1].assign(tf.fill(state.optimizer.variables[-1].shape, np.inf))
    state.global_step.assign(30)
    with pytest.raises(NotFiniteError) as caught, checkpoints.naming_the_way_back():
        checkpoints.save()
    assert caught.value.reason.startswith("step 30: ")
    assert caught.value.advice == checkpoints.way_back()
    assert names(tmp_path) == before


def test_after_a_divergence_there_is_a_way_back(make_checkpoints, make_one, tmp_path):
    state = make_one()
    checkpoints = make_checkpoints(state)
    said = []
    for step in (10, 20, 30):
        said.append(re.findall(r"ckpt-\d+", checkpoints.way_back()))
        state.global_step.assign(step)
        checkpoints.save()
    assert said == [[], ["ckpt-10"], ["ckpt-20", "ckpt-10"]]


@pytest.mark.parametrize("damage", ["truncated index", "no data", "flipped data"])
@pytest.mark.quick(1)
def test_a_damaged_checkpoint_is_skipped_with_a_notice(damage, saved, make_checkpoints, make_one, capsys, tmp_path):
    data, index = tmp_path / "ckpt-20.data-00000-of-00001", tmp_path / "ckpt-20.index"
    if damage == "no data":
        data.unlink()
    elif damage == "flipped data":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    else:
        index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
    state = make_one()
    assert make_checkpoints(state).restore().path == str(tmp_path / "ckpt-10")
    assert (state.step, float(state.model.trainable_variables[1].numpy()[0])) == (10, 10.0)
    (notice,) = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "ckpt-20") in notice


def test_if_all_are_damaged_training_does_not_start_anew(saved, make_checkpoints, make_one, tmp_path):
    for path in tmp_path.glob("*.index"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}/ckpt-20")):
        make_checkpoints(make_one()).restore()


def test_another_order_names_the_fields_and_both_values(saved, make_checkpoints, make_one):
    changed = {"seed": 3, "global_batch_size": 16, "manifest_digest": "e" * 64}
    with pytest.raises(UsageError) as caught:
        make_checkpoints(make_one(), order=changed, dataset="mnist", data_dir="elsewhere").restore()
    message = str(caught.value)
    for fact in (
        "seed was 0, is 3",
        "global_batch_size was 8, is 16",
        "digits:train, 9 records (--data_dir=D, digest dddddddddddd...)",
        "mnist:train, 9 records (--data_dir=elsewhere, digest eeeeeeeeeeee...)",
        "--allow_order_change",
    ):
        assert fact in message
    assert "\n" not in message


def test_another_order_can_be_allowed_and_is_then_stored(saved, make_checkpoints, make_one, tmp_path):
    state = make_one()
    checkpoints = make_checkpoints(state, order={"seed": 3}, allow_order_change=True)
    assert checkpoints.restore().changes == ("seed was 0, is 3",)
    state.global_step.assign(30)
    checkpoints.save()
    assert record_of(tmp_path / "ckpt-30")["order"]["seed"] == 3
    assert make_checkpoints(make_one(), order={"seed": 3}).restore().changes == ()


def test_classes_that_would_mean_others_are_another_order(make_strategy, make_state, make_checkpoints, tmp_path):
    one, names = make_strategy(1), [f"class {number}" for number in range(5)]
    state = make_state(one, names=names)
    state.global_step.assign(10)
    make_checkpoints(state).save()
    assert record_of(tmp_path / "ckpt-10")["class_names"] == names
    swapped = make_state(one, names=[*names[:3], names[4], names[3]])
    with pytest.raises(UsageError, match="class 3 was 'class 3', is 'class 4'; .* --allow_order_change"):
        make_checkpoints(swapped).restore()
    assert make_checkpoints(make_state(one)).restore().changes == ()  # numbers alone are no names


def record_of(path):
    return json.loads(tf.train.load_checkpoint(str(path)).get_tensor(RECORD_KEY))


def test_all_flags_are_stored_and_those_that_shape_the_training_compared(saved, make_checkpoints, make_one, tmp_path):
    flags = record_of(tmp_path / "ckpt-20")["config"]
    groups = {"data", "run", "model", "optimizer", "order", "steps", "output", "cluster", "aggregation"}
    assert set(flags) == groups
    assert (flags["optimizer"]["learning_rate"], flags["steps"]["log_every"]) == (0.05, 100)
    checkpoints = make_checkpoints(make_one(), learning_rate=0.01, augment="shift(pixels=2)", log_every=7)
    assert checkpoints.restore().changes == (
        "--augment was none, is shift(pixels=2)",
        "--learning_rate was 0.05, is 0.01",
    )


@pytest.mark.parametrize("flags", [{"model": "lenet"}, {"optimizer": "adam"}])
def test_another_model_or_optimizer_is_one_line(flags, saved, make_checkpoints, make_one):
    with pytest.raises(UsageError, match="(mlp.*lenet|momentum.*adam)") as caught:
        make_checkpoints(make_one("adam"), **flags).restore()
    assert "\n" not in str(caught.value)


def net(*units):
    """Returns a function that builds a model with such layers."""

    def build():
        import keras

        layers = [keras.layers.Dense(number) for number in (*units, 5)]
        return keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Flatten(), *layers])

    return build


@pytest.mark.parametrize(
    ("build", "optimizer", "facts"),
    [
        (
            net(8, 8),
            "adam",
            r"ckpt-10 .*: sequential\w*/dense_\d+/kernel was \(8, 5\), is \(8, 8\); layer dense_1 .* is new; go back",
        ),
        (
            net(9),
            "adam",
            r"ckpt-10 .*/dense\w*/kernel was \(12, 8\), is \(12, 9\); layer dense: units was 8, is 9; .*; go back",
        ),
        (
            net(8),
            "adam(amsgrad=True)",
            r"it lacks (\S+_velocity_hat, ){3}\.\.\.; --optimizer was adam, is adam\(amsgrad=True\); go back",
        ),
    ],
    ids=["a layer more", "another width", "an argument of the optimizer"],
)
@pytest.mark.quick(1)
def test_another_form_of_the_model_or_optimizer_is_one_line(
    build, optimizer, facts, make_strategy, make_state, make_checkpoints
):
    state = make_state(make_strategy(2), "adam", build=net(8))
    state.global_step.assign(10)
    make_checkpoints(state, optimizer="adam").save()
    other = make_state(make_strategy(), optimizer, build=build)
    with pytest.raises(UsageError, match=facts) as caught:
        make_checkpoints(other, optimizer=optimizer, allow_model_change=True).restore()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("or use another --model_dir")


def equal(*activations):
    """Returns a function that builds a model whose weights have the same shapes for any activations."""

    def build():
        import keras

        layers = [keras.layers.Dense(12, name) for name in activations]
        return keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Flatten(), *layers, keras.layers.Dense(5)])

    return build


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (equal("relu", "gelu"), "layer dense_1: activation was relu, is gelu"),
        (equal("relu", "relu", "relu"), "layer dense_2 (Dense) is new"),
    ],
)
def test_another_model_of_fitting_weights_is_refused(
    now, said, make_strategy, make_state, make_checkpoints, capsys, tmp_path
):
    state = make_state(make_strategy(), build=equal("relu", "relu"))
    state.global_step.assign(10)
    make_checkpoints(state).save()
    with pytest.raises(UsageError) as caught:
        make_checkpoints(make_state(make_strategy(), build=now)).restore()
    assert str(caught.value).startswith(f"{tmp_path}/ckpt-10 has a different model: {said}; go back to the old one, or")
    assert str(caught.value).endswith("or accept the new one with --allow_model_change")


def test_another_model_can_be_allowed_and_is_then_stored(make_strategy, make_state, make_checkpoints):
    state = make_state(make_strategy(), build=equal("relu"))
    state.global_step.assign(10)
    make_checkpoints(state).save()
    other = make_state(make_strategy(), build=equal("gelu"))
    checkpoints = make_checkpoints(other, allow_model_change=True)
    assert checkpoints.restore().changes == ("layer dense: activation was relu, is gelu",)
    other.global_step.assign(20)
    checkpoints.save()
    assert make_checkpoints(make_state(make_strategy(), build=equal("gelu"))).restore().changes == ()


def test_another_precision_makes_no_other_model(make_strategy, make_state, make_checkpoints):
    state = make_state(make_strategy(), build=equal("relu"))
    state.global_step.assign(10)
    make_checkpoints(state).save()
    other = make_state(make_strategy(), build=equal("relu"), precision="bfloat16")
    make_state(make_strategy())  # of float32: the policy is the process's
    changes = make_checkpoints(other, precision="bfloat16").restore().changes
    assert changes == ("--precision was float32, is bfloat16",)


def test_a_checkpoint_without_structure_and_words_for_its_data_is_resumed(
    make_strategy, make_state, make_checkpoints, tmp_path, monkeypatch
):
    """As trainer.run wrote them until November 2026."""
    state = make_state(make_strategy(), build=equal("relu"))
    state.global_step.assign(10)
    checkpoints = make_checkpoints(state)
    content = {name: value for name, value in checkpoints._spec.content().items() if name not in ("structure", "data")}
    monkeypatch.setattr(type(checkpoints._spec), "content", lambda self: content)
    checkpoints.save()
    monkeypatch.undo()
    assert "structure" not in record_of(tmp_path / "ckpt-10")
    other = make_state(make_strategy(), build=equal("gelu"))
    assert make_checkpoints(other).restore().changes == ()
    with pytest.raises(
        UsageError, match=r"the data was --data_dir=D \(digest dddddddddddd\.\.\.\), is digits:train, 9"
    ):
        make_checkpoints(other, order={"manifest_digest": "e" * 64}).restore()


def compiled(rate):
    def build():
        import keras

        model = equal("relu")()
        model.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return build


def test_the_rate_of_a_compiled_model_is_that_of_its_code_once_that_has_changed(
    make_strategy, make_state, make_checkpoints
):
    def resumed(rate):
        state = make_state(make_strategy(), None, build=compiled(rate), model="m:f")
        return state, make_checkpoints(state, model="m:f").restore().changes

    state = make_state(make_strategy(), None, build=compiled(0.1), model="m:f")
    checkpoints = make_checkpoints(state, model="m:f")
    state.optimizer.learning_rate.assign(0.05)  # as a callback does
    state.global_step.assign(10)
    checkpoints.save()
    state, changes = resumed(0.3)
    assert changes == ("the model's optimizer: learning_rate was 0.1, is 0.3",)
    assert float(state.optimizer.learning_rate.numpy()) == pytest.approx(0.3)
    state, changes = resumed(0.1)
    assert (changes, float(state.optimizer.learning_rate.numpy())) == ((), pytest.approx(0.05))


def test_somebody_elses_checkpoint_is_refused(make_checkpoints, make_one, tmp_path):
    tf.train.Checkpoint(x=tf.Variable(1.0)).write(str(tmp_path / "ckpt-7"))
    with pytest.raises(UsageError, match="ckpt-7.*--model_dir"):
        make_checkpoints(make_one()).restore()


def test_a_worker_other_than_the_chief_leaves_nothing(make_checkpoints, make_one, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    state = make_one()
    state.global_step.assign(10)
    make_checkpoints(state, is_chief=False).save()
    assert names(tmp_path) == ["scratch"]
    assert not list(scratch.glob("trainer-worker-*"))  # TensorFlow keeps generated code there
