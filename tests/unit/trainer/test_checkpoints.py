import json

import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import DataError, UsageError
from trainer.cluster import Cluster


def one():
    """No global: it starts TensorFlow's runtime."""
    return tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture
def saved(make_state, make_checkpoints, tmp_path):
    """A folder with checkpoints of steps 10 and 20, and the state as it was at 20."""
    state = make_state(one(), "momentum")
    checkpoints = make_checkpoints(state)
    for step in (10, 20):
        state.global_step.assign(step)
        state.model.trainable_variables[1].assign(np.full(500, step, np.float32))
        checkpoints.save()
    return state


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def bias(state):
    return float(state.model.trainable_variables[1].numpy()[0])


def test_nothing_to_restore(make_state, make_checkpoints, said):
    checkpoints = make_checkpoints(make_state(one()))
    assert checkpoints.newest is None
    assert checkpoints.restore() is None
    assert said == []


def test_everything_comes_back(saved, make_state, make_checkpoints, tmp_path):
    state = make_state(one(), "momentum", seed=9)
    checkpoints = make_checkpoints(state)
    assert checkpoints.restore() == str(tmp_path / "ckpt-20")
    assert state.step == 20
    old_variables = saved.model.variables + saved.optimizer.variables
    new_variables = state.model.variables + state.optimizer.variables
    for old, new in zip(old_variables, new_variables, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_a_mirrored_state_comes_back_on_one_device(make_state, make_checkpoints):
    mirrored = make_state(
        tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], tf.distribute.ReductionToOneDevice()), "momentum"
    )
    mirrored.global_step.assign(5)
    make_checkpoints(mirrored).save()
    state = make_state(one(), "momentum", seed=9)
    make_checkpoints(state).restore()
    assert state.step == 5
    np.testing.assert_array_equal(mirrored.model.get_weights()[0], state.model.get_weights()[0])


def test_the_oldest_are_removed(make_state, make_checkpoints, tmp_path):
    state = make_state(one())
    for start in (0, 30):  # a resumed run knows those of the run before
        checkpoints = make_checkpoints(state, max_to_keep=2)
        checkpoints.restore()
        for step in (10, 20, 30):
            state.global_step.assign(start + step)
            checkpoints.save()
    assert [name for name in names(tmp_path) if name.endswith(".index")] == ["ckpt-50.index", "ckpt-60.index"]


def test_a_step_is_saved_once(saved, make_checkpoints, make_state, tmp_path):
    state = make_state(one(), "momentum")
    checkpoints = make_checkpoints(state)
    checkpoints.restore()
    before = (tmp_path / "ckpt-20.index").stat().st_mtime_ns
    checkpoints.save()
    assert (tmp_path / "ckpt-20.index").stat().st_mtime_ns == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_poisoned_weights_are_not_saved(saved, make_checkpoints, make_state, value, tmp_path):
    state = make_state(one(), "momentum")
    checkpoints = make_checkpoints(state)
    checkpoints.restore()
    before = names(tmp_path)
    state.optimizer.variables[-1].assign(tf.fill(state.optimizer.variables[-1].shape, value))
    state.global_step.assign(30)
    with pytest.raises(DataError, match=r"step 30: a weight is NaN or infinite.*last good checkpoint is .*ckpt-20"):
        checkpoints.save()
    assert names(tmp_path) == before


@pytest.mark.parametrize("damage", ["cut data", "cut index", "no data", "flipped data"])
def test_a_damaged_checkpoint_is_passed_over_with_a_notice(damage, saved, make_checkpoints, make_state, said, tmp_path):
    data, index = tmp_path / "ckpt-20.data-00000-of-00001", tmp_path / "ckpt-20.index"
    if damage == "no data":
        data.unlink()
    elif damage == "flipped data":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    else:
        path = data if damage == "cut data" else index
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    state = make_state(one(), "momentum", seed=9)
    assert make_checkpoints(state).restore() == str(tmp_path / "ckpt-10")
    assert (state.step, bias(state)) == (10, 10.0)
    assert len(said) == 1
    assert f"{tmp_path / 'ckpt-20'} is damaged and passed over" in said[0]


def test_where_all_are_damaged_training_does_not_start_again(saved, make_checkpoints, make_state, tmp_path):
    for path in tmp_path.glob("*.index"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"none of its 2 checkpoints can be read, the newest is .*ckpt-20"):
        make_checkpoints(make_state(one(), "momentum")).restore()


@pytest.mark.parametrize("content", [None, b"", b"rubbish {"])
def test_tensorflows_own_list_is_not_needed(content, saved, make_checkpoints, make_state, tmp_path):
    listing = tmp_path / "checkpoint"
    listing.unlink() if content is None else listing.write_bytes(content)
    state = make_state(one(), "momentum")
    make_checkpoints(state).restore()
    assert state.step == 20


def test_another_order_names_the_fields_and_both_values(saved, make_checkpoints, make_state):
    changed = {"seed": 3, "global_batch_size": 16, "manifest_digest": "e" * 64}
    with pytest.raises(UsageError) as caught:
        make_checkpoints(make_state(one(), "momentum"), order=changed).restore()
    message = str(caught.value)
    assert "seed was 0, is 3" in message
    assert "global_batch_size was 8, is 16" in message
    assert "manifest_digest was dddddddddddd..., is eeeeeeeeeeee..." in message
    assert "--allow_order_change" in message
    assert "\n" not in message


def test_another_order_can_be_allowed_and_is_then_stored(saved, make_checkpoints, make_state, tmp_path):
    state = make_state(one(), "momentum")
    checkpoints = make_checkpoints(state, order={"seed": 3}, allow_order_change=True)
    checkpoints.restore()
    state.global_step.assign(30)
    checkpoints.save()
    key = "record/.ATTRIBUTES/py_state"
    stored = json.loads(tf.train.load_checkpoint(str(tmp_path / "ckpt-30")).get_tensor(key))
    assert stored["order"]["seed"] == 3
    make_checkpoints(make_state(one(), "momentum"), order={"seed": 3}).restore()


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"model": "lenet"}, "has model mlp, this run has lenet"), ({"optimizer": "adam"}, "has optimizer momentum")],
)
def test_another_model_or_optimizer_is_one_line(changes, words, saved, make_checkpoints, make_state):
    with pytest.raises(UsageError, match=words) as caught:
        make_checkpoints(make_state(one(), "adam"), **changes).restore()
    assert "\n" not in str(caught.value)


def test_somebody_elses_checkpoint_is_refused(make_checkpoints, make_state, tmp_path):
    tf.train.Checkpoint(x=tf.Variable(1.0)).write(str(tmp_path / "ckpt-7"))
    with pytest.raises(UsageError, match=r"ckpt-7 was not written by trainer.run"):
        make_checkpoints(make_state(one())).restore()


def test_what_a_killed_save_left_is_removed(make_checkpoints, make_state, tmp_path):
    (tmp_path / "ckpt-40_temp").mkdir()
    (tmp_path / "ckpt-40_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"x")
    make_checkpoints(make_state(one()))
    assert names(tmp_path) == []


def test_a_worker_other_than_the_chief_leaves_nothing(make_checkpoints, make_state, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    state = make_state(one())
    state.global_step.assign(10)
    make_checkpoints(state, cluster=Cluster(("a:1", "b:2"), rank=1)).save()
    assert names(tmp_path) == ["scratch"]
    assert not list(scratch.glob("trainer-worker-*"))  # TensorFlow keeps generated code there
