"""The input as NumPy arrays with a state, against `input_fn`."""

import gc
import json
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import pipeline
from pipeline import Shard, StepIterator, input_fn
from pipeline.batch.compose import make_dataset
from pipeline.errors import DataError, UsageError
from pipeline.request import Request
from tests.helpers.datasets import Kind, extra_of, write_dataset
from tests.helpers.raised import at

TRAIN = {"global_batch_size": 4, "training": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (5, 0, 4, 2), kind=Kind(unequal_keys=True, extra=True))
    return path


def test_elements_are_those_of_the_input_as_arrays(folder):
    arguments = TRAIN | {"epochs": 2, "augment": "shift", "features": ("id", "tags", "scores"), "record_ids": True}
    batches = StepIterator(folder, **arguments)
    assert iter(batches) is batches
    steps = []
    for expected in input_fn(folder, **arguments):
        steps.append(batches.step)
        (x, labels, weights, ids), (features, *others) = next(batches), expected
        assert set(x) == {"image", "id", "tags", "scores"}
        for name in ("image", "id", "tags"):
            assert np.array_equal(x[name], features[name].numpy())
        for array, tensor in zip((labels, weights, ids), others, strict=True):
            assert np.array_equal(array, tensor.numpy())
            assert array.dtype == tensor.dtype.as_numpy_dtype
        for row, number in enumerate(ids.tolist()):
            assert np.array_equal(x["scores"][row], extra_of(number)["scores"])
            assert x["tags"][row].tolist() == extra_of(number)["tags"].tolist()
    assert steps == [0, 1, 2, 3, 4, 5]
    assert batches.step == 6
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    assert batches.get_state()["step"] == 6


def test_numbers_lie_in_the_tensors_own_memory_and_stay_there(folder):
    batches = StepIterator(folder, **TRAIN, features=("key",))
    x, labels, weights = next(batches)
    for array in (x["image"], labels, weights):
        assert not array.flags.owndata
        assert not array.flags.writeable
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base, memoryview)
        assert np.shares_memory(array, np.asarray(base))
    assert x["key"].dtype == object
    assert all(type(key) is bytes for key in x["key"])
    before = x["image"].copy()
    for _ in range(20):
        next(batches)
    del batches
    gc.collect()
    assert np.array_equal(x["image"], before)


@pytest.mark.slow
def test_small_batches_are_cut_from_what_is_made_together(folder):
    arguments = TRAIN | {"epochs": 3, "augment": "shift", "features": ("key",), "record_ids": True}
    made = {
        stacked: make_dataset(Request(folder, **arguments), stacked=stacked).element_spec[-1].shape.as_list()
        for stacked in (False, True)
    }
    assert made == {False: [4], True: [None, 4]}
    found = list(StepIterator(folder, **arguments))
    assert np.lib.array_utils.byte_bounds(found[0][3])[1] == np.lib.array_utils.byte_bounds(found[1][3])[0]
    expected = list(input_fn(folder, **arguments))
    assert len(found) == len(expected) == 9
    for (x, *others), (features, *tensors) in zip(found, expected, strict=True):
        for name in features:
            assert np.array_equal(x[name], features[name].numpy())
        for array, tensor in zip(others, tensors, strict=True):
            assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("step", range(5))
@pytest.mark.quick(2)
def test_a_run_that_begins_in_the_midst_of_a_group_has_the_same_elements(folder, step):
    found = list(StepIterator(folder, **TRAIN, epochs=2, start_step=step))
    expected = list(input_fn(folder, **TRAIN, epochs=2))[step:]
    assert len(found) == len(expected) == 6 - step
    for arrays, tensors in zip(found, expected, strict=True):
        assert all(np.array_equal(one, other.numpy()) for one, other in zip(arrays, tensors, strict=True))


def test_the_state_is_json_and_is_where_the_user_is_not_what_was_read_ahead(folder):
    batches = StepIterator(folder, **TRAIN, seed=7)
    state = batches.get_state()
    assert state["step"] == 0
    assert state["spec"] == json.loads(pipeline.order_spec(folder, **TRAIN, seed=7).to_json())
    assert state["spec_digest"] == pipeline.order_spec(folder, **TRAIN, seed=7).digest
    next(batches)
    next(batches)
    assert json.loads(json.dumps(batches.get_state())) == state | {"step": 2}
    assert StepIterator(folder, **TRAIN, seed=7, start_step=10**12).get_state() == state | {"step": 10**12}


def test_a_pickled_iterator_continues_at_the_next_element(folder):
    options = {"global_batch_size": 4, "training": True, "augment": "shift", "epochs": 3, "seed": 5}
    batches = StepIterator(folder, **options)
    for _ in range(4):
        next(batches)
    stored = pickle.dumps(batches)
    expected = list(batches)
    found = list(pickle.loads(stored))
    assert len(found) == len(expected) == 5
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    split_up = StepIterator(folder, shard=Shard(0, 1, 2), **options)
    next(split_up)
    with pytest.raises(UsageError, match="get_state .* step 0: "):
        pickle.dumps(split_up)


def test_a_state_of_another_order_is_refused_with_the_fields_that_differ(folder):
    state = StepIterator(folder, **TRAIN, seed=7, start_step=5).get_state()
    batches = StepIterator(folder, **(TRAIN | {"global_batch_size": 2}))
    with pytest.raises(UsageError, match="global_batch_size .* 4, .* 2; seed .* 7, .* 0.*allow_order_change"):
        batches.set_state(state)
    assert batches.step == 0
    batches.set_state(state, allow_order_change=True)
    assert batches.step == 5
    for split in ("train[:8]", "test"):
        with pytest.raises(UsageError, match="split .* train, "):
            StepIterator(folder, split, **TRAIN, seed=7).set_state(state)
    StepIterator(folder, **TRAIN, seed=7, augment="shift", weights="mean").set_state(state)  # no part of the order


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "step=-1"),
        ({"step": 1.5}, "step=1.5"),
        ({"spec": None}, "get_state"),
        ({"spec_digest": "0"}, "spec_digest .*'0'.* '[0-9a-f]{64}'"),
        ({"spec_digest": None}, "spec_digest .*None"),
        ({"spec": {}}, "global_batch_size .*None, .* 4"),
    ],
)
def test_what_is_no_state_is_refused(folder, change, message):
    batches = StepIterator(folder, **TRAIN)
    with pytest.raises(UsageError, match=message):
        batches.set_state(batches.get_state() | change)
    for state in (None, 3, "step", {}, {"step": 3}):
        with pytest.raises(UsageError, match="get_state"):
            batches.set_state(state)


@pytest.mark.slow
def test_several_local_replicas_have_a_state_between_steps_only(folder):
    shard = Shard(1, 2, local_replicas=2)
    batches = StepIterator(folder, **TRAIN, shard=shard, record_ids=True, epochs=2)
    expected = [ids.numpy() for *_, ids in input_fn(folder, **TRAIN, shard=shard, record_ids=True, epochs=2)]
    assert len(expected) == 12
    for number in range(5):
        assert batches.step == number // 2
        assert np.array_equal(next(batches)[3], expected[number])
    assert batches.step == 2
    with pytest.raises(UsageError, match="step 2: 1 of .* 2 "):
        batches.get_state()
    next(batches)
    state = batches.get_state()
    assert state["step"] == 3
    for other, first in ((batches, 6), (StepIterator(folder, **TRAIN, shard=shard, record_ids=True, epochs=2), 6)):
        next(other)  # in the middle of a step
        other.set_state(state)
        assert other.step == 3
        for number in range(first, 12):
            assert np.array_equal(next(other)[3], expected[number])


def test_going_to_the_current_step_reads_nothing_again(tmp_path):
    write_dataset(tmp_path, (5, 4, 3))
    batches = StepIterator(tmp_path, **TRAIN, record_ids=True)
    whole = [next(batches)[3].tolist() for _ in range(4)]
    batches.set_state(batches.get_state() | {"step": 2})
    assert next(batches)[3].tolist() == whole[2]
    (tmp_path / "train-00001-of-00003.tfrecord").unlink()
    batches.set_state(batches.get_state())
    assert next(batches)[3].tolist() == whole[3]
    batches.set_state(batches.get_state() | {"step": 2})
    with pytest.raises(DataError, check=at("train-00001-of-00003.tfrecord", "No such file")):
        next(batches)


def test_a_record_that_is_found_corrupt_on_the_way_is_a_data_error(tmp_path):
    write_dataset(tmp_path, (5, 4, 3), (8, 6, 3))
    batches = StepIterator(tmp_path, global_batch_size=1, training=False, shuffle_bytes=144)
    assert len(next(batches)) == 3
    path = tmp_path / "train-00002-of-00003.tfrecord"
    path.write_bytes(path.read_bytes())
    with pytest.raises(DataError, check=at(path, "written again")):
        list(batches)


@pytest.mark.slow
def test_what_lies_before_a_state_is_not_read(tmp_path):
    folder = tmp_path / "größer als 'zuvor'"
    write_dataset(folder, (5, 4, 3))
    path = folder / "train-00000-of-00003.tfrecord"
    data = bytearray(path.read_bytes())
    data[60] ^= 1  # of record 0
    path.write_bytes(data)
    batches = StepIterator(folder, global_batch_size=4, training=False, shuffle_bytes=144 * 2, record_ids=True)
    batches.set_state(batches.get_state() | {"step": 1})
    assert [ids.tolist() for *_, ids in batches] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    batches.set_state(batches.get_state() | {"step": 0})
    with pytest.raises(DataError, check=at(path, "CRC", record=0, offset=0)):
        next(batches)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 9, 17])
def test_a_script_may_end_while_a_window_is_read(tmp_path, steps):
    write_dataset(tmp_path, (3000, 3000), (32, 32, 3))
    code = (
        f"from pipeline import StepIterator; batches = StepIterator({str(tmp_path)!r}, global_batch_size=64, "
        f"training=True, shuffle_bytes=3072 * 1000, streams=4)\nfor _ in range({steps}): next(batches)"
    )
    root = pathlib.Path(__file__).resolve().parents[3]
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=300, capture_output=True)


def test_errors_of_the_users_own_function_are_not_hidden(folder):
    def refuse(images, keys):
        with tf.control_dependencies([tf.debugging.check_numerics(tf.math.log(-1.0) * pipeline.uniform(keys, 0), "x")]):
            return tf.identity(images)

    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
        next(StepIterator(folder, **TRAIN, augment=refuse))


def test_what_a_parser_gives_keeps_its_structure(folder):
    def parse(records):
        return {"bytes": tf.strings.length(records), "pair": (records, tf.zeros([4, 0]))}

    parsed, weights = next(StepIterator(folder, **TRAIN, parse=parse))
    assert parsed["bytes"].dtype == np.int32
    assert [len(record) for record in parsed["pair"][0]] == parsed["bytes"].tolist()
    assert parsed["pair"][1].shape == (4, 0)
    assert weights.tolist() == [1.0] * 4
