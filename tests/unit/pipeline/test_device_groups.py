"""Batches copied to devices in groups and cut there have the rows, bytes and steps of batches copied one by one.

So do batches of images that the devices keep.
"""

import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels  # public nowhere

from pipeline import distribution
from pipeline.batch.compose import make_dataset, make_numbered
from pipeline.distribution import MOST_KEPT, DeviceGroups, in_groups, in_host_memory, numbered_of_worker, of_worker
from pipeline.index.__main__ import main as index
from pipeline.order.sharding import Shard
from pipeline.request import Request
from tests.helpers.datasets import Kind, write_dataset

STEPS = 15  # from step 3 to the end; an epoch has 2
OPTIONS = {"global_batch_size": 8, "training": True, "seed": 5, "record_ids": True, "epochs": 9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (5, 0, 4, 4), (8, 6, 3))
    index([str(path), "--add_columns=records"])
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


every_strategy = pytest.mark.parametrize(
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


@pytest.mark.parametrize("virtual", [None, 4])
@every_strategy
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


def kept(strategy, request, virtual=None, most=MOST_KEPT):
    """Returns batches whose images the devices keep."""
    made = numbered_of_worker(strategy, request, virtual, most)
    assert made.images is not None
    return in_groups(strategy, made.dataset, 2, made.images)


@pytest.mark.parametrize("virtual", [None, 4])
@every_strategy
@pytest.mark.quick(1)
def test_batches_of_images_that_devices_keep_are_those_of_the_host(name, virtual, folder, monkeypatch):
    """With padding, and with resumes at each place of a group; rows of a view are not numbered as its records are."""
    if virtual and name == "central_storage x2":
        pytest.skip("central storage has no virtual replicas")
    monkeypatch.setattr(distribution, "_MOST_TOGETHER", 3)
    strategy = STRATEGIES[name]()
    options = OPTIONS | {"where": "label != 1", "class_weight": {0: 2.0}}
    for start, size in ((3, 3), (4, 2), (5, 1)):  # 15, 14 and 13 steps
        request = Request(folder, **options, augment="flip | shift", augment_on="device", start_step=start)
        batches = kept(strategy, request, virtual)
        assert batches.size == size
        found = list(iter(batches))
        check_same(strategy, found, in_host_memory(strategy, request, virtual))
        assert batches.element_spec[0]["image"].dtype == tf.uint8
        for part, spec in zip(tf.nest.flatten(found[0]), tf.nest.flatten(batches.element_spec), strict=True):
            local = strategy.experimental_local_results(part)
            assert all(one.shape == spec.shape and one.dtype == spec.dtype for one in local)
            if "mirrored" in name:
                assert [one.device[-5:] for one in local] == [f"CPU:{i}" for i in range(len(local))]


FED_UNCHANGED = {
    "nothing is augmented": {},
    "copies": {"augment": "flip", "augment_on": "device", "copies": 2},
    "decoded and resized once": {"resize": "5x4"},
    "repeated records": {"balance": "label"},
    "skipped records": {"on_corrupt": "skip"},
    "floats from the first step on": {"augment": "normalize | flip", "augment_on": "both"},
}


@pytest.mark.parametrize("options", FED_UNCHANGED.values(), ids=FED_UNCHANGED)
def test_images_that_are_fed_unchanged_are_kept(options, tmp_path):
    write_dataset(tmp_path, (5, 0, 4, 4), (8, 6, 3), kind=Kind("png"))
    index([str(tmp_path), "--add_columns=records"])
    strategy, request = mirrored(2), Request(tmp_path, **OPTIONS, **options)
    check_same(strategy, list(iter(kept(strategy, request))), in_host_memory(strategy, request))


@pytest.mark.parametrize("worker", [0, 1])
def test_each_worker_keeps_all_images_and_takes_its_rows(worker, folder):
    request = Request(folder, **OPTIONS, augment="flip", augment_on="device", shard=Shard(worker, 2, 2))
    made = make_numbered(request, most=MOST_KEPT)
    assert made.images.shape[0] == 13
    for (x, *others), (wanted, *other_parts) in zip(made.dataset, make_dataset(request), strict=True):
        np.testing.assert_array_equal(tf.gather(made.images, x["image"]), wanted["image"])
        np.testing.assert_array_equal(x["distort_key"], wanted["distort_key"])
        for one, other in zip(others, other_parts, strict=True):
            np.testing.assert_array_equal(one, other)


COPIED = {
    "images that the input augments": {"augment": "flip"},
    "crops of them": {"augment": "cifar10_tutorial(crop=4)", "augment_on": "both"},
    "images beside strings": {"features": ("key",)},
    "windows of a split": {"shuffle_bytes": 300, "streams": 1},
    "a mixture": {"mixed": True},
}


@pytest.mark.parametrize("options", COPIED.values(), ids=COPIED)
def test_other_images_are_copied(options, folder):
    strategy = mirrored(2)
    sources = [(folder, 1), (f"{folder}:test", 1)] if options.get("mixed") else folder
    request = Request(sources, **OPTIONS, **{name: value for name, value in options.items() if name != "mixed"})
    made = numbered_of_worker(strategy, request, None, MOST_KEPT)
    assert made.images is None
    check_same(strategy, iter(in_groups(strategy, made.dataset, 2)), in_host_memory(strategy, request))


def test_images_are_freed_with_their_iterator(folder):
    """Although a function that was traced with it keeps its variables."""
    strategy, request = tf.distribute.OneDeviceStrategy("CPU:0"), Request(folder, **OPTIONS | {"epochs": 1})
    iterator = iter(kept(strategy, request))

    @tf.function(autograph=False)
    def take(iterator):
        return next(iterator)[0]

    images = [take(iterator).numpy() for _ in range(2)]
    np.testing.assert_array_equal(images, [images for images, *_ in in_host_memory(strategy, request)])
    [variable] = iterator._images
    del iterator
    gc.collect()
    assert variable.read_value().shape == (0, 8, 6, 3)


def test_so_many_bytes_are_kept_and_no_more(folder):
    strategy, request, of_images = mirrored(2), Request(folder, **OPTIONS), 13 * 8 * 6 * 3
    kept(strategy, request, most=of_images)
    made = numbered_of_worker(strategy, request, None, of_images - 1)
    assert made.images is None
    check_same(strategy, iter(in_groups(strategy, made.dataset, 2)), in_host_memory(strategy, request))


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

    def kinds_of(op, name):
        return {
            kind
            for kernel in kernels.get_registered_kernels_for_op(op).kernel
            if kernel.device_type == "GPU" and not {"input", "indices"} & set(kernel.host_memory_arg)
            for constraint in kernel.constraint
            if constraint.name == name
            for kind in constraint.allowed_values.list.type
        }

    for op, name in (("AssignVariableOp", "dtype"), ("StridedSlice", "T")):
        fed = {tf.uint8, tf.uint64, tf.int64, tf.float32}
        assert {kind.as_datatype_enum for kind in fed} <= kinds_of(op, name)
        assert tf.int32.as_datatype_enum not in kinds_of(op, name)
    assert tf.uint8.as_datatype_enum in kinds_of("ResourceGather", "dtype")
    assert tf.int64.as_datatype_enum in kinds_of("ResourceGather", "Tindices")
    assert tf.uint8.as_datatype_enum not in kinds_of("GatherV2", "Tparams")  # and so images are in variables
