"""Batches copied to devices in groups and cut there have the rows, bytes and steps of batches copied one by one."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels  # public nowhere

from pipeline import distribution
from pipeline.distribution import DeviceGroups, in_groups, in_host_memory, of_worker
from pipeline.request import Request
from tests.helpers.datasets import write_dataset

STEPS = 15  # from step 3 to the end; an epoch has 2
OPTIONS = {"global_batch_size": 8, "training": True, "seed": 5, "record_ids": True, "epochs": 9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (5, 0, 4, 4), (8, 6, 3))
    return path


def mirrored(count):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


STRATEGIES = {
    "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:1"),
    "mirrored x2": lambda: mirrored(2),
    "mirrored x4": lambda: mirrored(4),
    "multiworker x1": tf.distribute.MultiWorkerMirroredStrategy,
    "central_storage x2": lambda: tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]),
}


def values_of(strategy, element):
    return [[one.numpy() for one in strategy.experimental_local_results(part)] for part in tf.nest.flatten(element)]


def check_same(strategy, found, expected):
    for one, other in itertools.zip_longest(found, expected):
        tf.nest.assert_same_structure(one, other)
        for values, wanted in zip(values_of(strategy, one), values_of(strategy, other), strict=True):
            np.testing.assert_array_equal(values, wanted)


@pytest.mark.parametrize("virtual", [None, 4])
@pytest.mark.parametrize(
    "name",
    [
        "one_device",
        "mirrored x2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mirrored x4", "multiworker x1", "central_storage x2")
        ),
    ],
)
@pytest.mark.quick(1)
def test_batches_are_those_of_the_host(name, virtual, folder, monkeypatch):
    """13 records in steps of 8: groups of 5 steps have the end of epochs, with its padding, at each of their places."""
    if virtual and name == "central_storage x2":
        pytest.skip("central storage has no virtual replicas")
    monkeypatch.setattr(distribution, "_MOST_TOGETHER", 6)
    strategy = STRATEGIES[name]()
    request = Request(folder, **OPTIONS, augment="flip | mixup", augment_on="device", start_step=3)
    groups = in_groups(strategy, of_worker(strategy, request, virtual), 2)
    assert isinstance(groups, DeviceGroups)
    assert (groups.size, groups.cardinality) == (5, STEPS)  # of 15 steps
    with strategy.scope():  # where a variable of the iterator must not become one of the strategy's
        iterator = iter(groups)
    found = list(iterator)
    check_same(strategy, found, in_host_memory(strategy, request, virtual))
    for part, spec in zip(tf.nest.flatten(found[0]), tf.nest.flatten(groups.element_spec), strict=True):
        local = strategy.experimental_local_results(part)
        assert all(one.shape == spec.shape and one.dtype == spec.dtype for one in local)
        if "mirrored" in name:
            assert [one.device[-5:] for one in local] == [f"CPU:{i}" for i in range(len(local))]


@pytest.mark.parametrize(("replicas", "carries"), [(1, False), (1, True), (2, True)])
@pytest.mark.quick(1)
def test_a_loop_in_a_graph_takes_each_batch_once(replicas, carries, folder, monkeypatch):
    """Whether the iterator is read in variables, or the loop carries its state."""
    monkeypatch.setattr(distribution, "_MOST_TOGETHER", 3)
    strategy = mirrored(replicas) if replicas > 1 else tf.distribute.OneDeviceStrategy("CPU:0")
    request = Request(folder, **OPTIONS, start_step=3)
    iterator, traces = iter(in_groups(strategy, of_worker(strategy, request), 2)), []

    @tf.function(autograph=False)
    def run(iterator, steps):
        traces.append(steps)

        def one(done, ids, state):
            batch, state = iterator.following(state) if carries else (next(iterator), state)
            local = strategy.experimental_local_results(batch[3])
            return done + 1, ids.write(done, tf.concat(local, axis=0)), state

        found = tf.TensorArray(tf.int64, steps, element_shape=[8])
        begin = (0, found, iterator.begin() if carries else ())
        _, ids, state = tf.while_loop(lambda done, *_: done < steps, one, begin, parallel_iterations=1)
        if carries:
            iterator.end(state)
        return ids.stack()

    in_loops = tf.concat([run(iterator, tf.constant(steps)) for steps in (1, 6, 8)], axis=0)
    assert len(traces) == 1
    assert not list(iterator)
    whole = distribution.make_dataset(request)
    np.testing.assert_array_equal(in_loops, np.stack([element[3] for element in whole]))


def test_what_is_not_copied_in_groups(folder, monkeypatch):
    """Batches of more than half of a group, and values that a GPU does not cut."""
    strategy = mirrored(2)

    def spec(**options):
        return distribution._group_size(of_worker(strategy, Request(folder, **OPTIONS, **options)).element_spec[0])

    assert spec() == 64
    assert spec(features=("key",)) == 1
    num_bytes = 4 * (8 * 6 * 3 + 8 + 4 + 8)  # of four rows: pixels, label, weight, record id
    monkeypatch.setattr(distribution, "_MOST_COPIED", 2 * num_bytes - 1)
    assert spec() == 1
    monkeypatch.setattr(distribution, "_MOST_COPIED", 2 * num_bytes)
    assert spec() == 2
    assert not isinstance(  # and no iterator is made: TensorFlow can crash if one that is not at its end is deleted
        in_groups(strategy, of_worker(strategy, Request(folder, **OPTIONS, features=("key",))), 2), DeviceGroups
    )


def test_a_gpu_has_what_cuts_groups():
    """Kernels by the wheel's own list, since a variable without one would go to the CPU unsaid."""
    for op, name in (("AssignVariableOp", "dtype"), ("StridedSlice", "T")):
        kinds = {
            kind
            for kernel in kernels.get_registered_kernels_for_op(op).kernel
            if kernel.device_type == "GPU" and "input" not in kernel.host_memory_arg
            for constraint in kernel.constraint
            if constraint.name == name
            for kind in constraint.allowed_values.list.type
        }
        fed = {tf.uint8, tf.uint64, tf.int64, tf.float32}
        assert {kind.as_datatype_enum for kind in fed} <= kinds
        assert tf.int32.as_datatype_enum not in kinds
