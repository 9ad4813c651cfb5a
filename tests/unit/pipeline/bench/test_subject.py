"""The measured parts belong to the real input: they give the same rows, and a slow stage shows where it is."""

import time

import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn
from pipeline.batch import AUGMENT, DECODE, GATHER, NUMBERS, WEIGHTS
from pipeline.bench import measure
from pipeline.bench.result import BYTES, ORDER, READER, result_of
from pipeline.bench.subject import Subject
from pipeline.files.reading import OpenFile
from pipeline.operations import is_compiled
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import Kind, write_dataset

SHAPE = (8, 6, 3)
RECORDS = 53
WINDOWS = {"shuffle_bytes": 20 * 8 * 6 * 3, "streams": 4}  # some 20 records each
PAUSE = 0.05  # seconds, against some microseconds


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    kinds = {"raw": Kind(), "png": Kind("png"), "gzip": Kind(compression="GZIP"), "varied": Kind("jpeg", varied=True)}
    folder = tmp_path_factory.mktemp("bench")
    for name, kind in kinds.items():
        write_dataset(folder / name, (20, 0, 33), SHAPE, kind=kind)
    return folder


def opened(folder, strategy=None, **options):
    return Subject.opened(resolve(Request(folder, **{"global_batch_size": 8, "training": True} | options)), strategy)


def measured(subject, steps=2):
    """Returns the result of one short round."""
    samples = measure.measure(subject.parts(), 1, 0.01, steps, "")
    whole = measure.measure([subject.whole_part()], 1, 0.01, 4 * steps, "")["whole"]
    return result_of(subject.stages(), samples, whole, measure.CORES)


@pytest.mark.parametrize(
    ("name", "windows", "augment"),
    [
        ("raw", {}, None),
        pytest.param("raw", {}, "cifar10_tutorial(crop=5)", marks=pytest.mark.slow),
        ("raw", WINDOWS, "cifar10_tutorial(crop=5)"),
        pytest.param("png", {}, "cifar10_tutorial(crop=5)", marks=pytest.mark.slow),
        pytest.param("png", WINDOWS, None, marks=pytest.mark.slow),
        pytest.param("gzip", {}, None, marks=pytest.mark.slow),
        pytest.param("gzip", WINDOWS, "cifar10_tutorial(crop=5)", marks=pytest.mark.slow),
    ],
)
@pytest.mark.quick(1)
def test_batches_of_the_window_in_memory_are_those_of_the_input(folders, name, windows, augment):
    options = {"global_batch_size": 8, "training": True, "seed": 3, "augment": augment} | windows
    subject = opened(folders / name, **options)
    steps = 6 if not windows else 2
    expected = list(input_fn(folders / name, **options).take(steps).as_numpy_iterator())
    for got, real in zip(subject.dataset().as_numpy_iterator(), expected, strict=False):
        for component, same in zip(got, real, strict=True):
            np.testing.assert_allclose(component, same, atol=2e-5)
    assert subject.is_resident == (not windows)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [{}, WINDOWS])
def test_each_prefix_has_an_element_per_step(folders, windows):
    """Else a stage's cost would be that of another number of rows; these are made in groups."""
    subject = opened(folders / "raw", augment="cifar10_tutorial(crop=5)", **windows)
    steps = len(subject.plans().take(1).as_numpy_iterator().next()[0].take)
    for name in [*subject.prefixes(), WEIGHTS, None]:
        elements = list(subject.dataset(name).take(steps).as_numpy_iterator())
        assert all(len(part) == 8 for element in elements for part in element), name
        if name == NUMBERS:
            assert [element[0].tolist() for element in elements] == [[n] * 8 for n in range(steps)]


def test_each_prefix_hands_on_what_its_stage_makes(folders):
    options = {"augment": "cifar10_tutorial(crop=5)", **WINDOWS}
    subject = opened(folders / "png", **options)
    assert subject.prefixes() == [NUMBERS, GATHER, DECODE, AUGMENT]
    images, labels, weights = next(subject.dataset().as_numpy_iterator())
    first = {name: next(subject.dataset(name).as_numpy_iterator()) for name in [*subject.prefixes(), WEIGHTS]}
    assert first[NUMBERS][0].tolist() == [0] * 8
    np.testing.assert_array_equal(first[WEIGHTS][0], weights)
    records = [values for values in first[GATHER] if values.dtype == object]
    assert records[0].shape == (8,)
    assert b"PNG" in records[0][0]
    assert first[DECODE][0].shape == (8, *SHAPE)
    assert first[DECODE][0].dtype == np.uint8
    np.testing.assert_allclose(first[AUGMENT][0], images, atol=2e-5)
    np.testing.assert_array_equal(first[AUGMENT][1], labels)


def test_a_window_is_planned_once_and_comes_again_and_again(folders):
    subject = opened(folders / "raw", **WINDOWS, record_ids=True)
    per_window = 53 // 8 // subject.resolved.order.windows
    seen = [records.tolist() for *_, records in subject.dataset().take(3 * per_window).as_numpy_iterator()]
    assert seen[:per_window] == seen[per_window : 2 * per_window] == seen[2 * per_window :]


@pytest.mark.parametrize(
    ("name", "options", "once", "absent"),
    [
        pytest.param("raw", {}, {"read", "check"}, {"decode", "augment", "copy to device"}, marks=pytest.mark.slow),
        ("raw", WINDOWS, set(), {"decode", "gather", "augment", "copy to device"}),
        pytest.param(
            "raw", {"augment": "shift", **WINDOWS}, set(), {"decode", "copy to device"}, marks=pytest.mark.slow
        ),
        ("png", {}, {"read", "check", "decode"}, {"augment", "copy to device"}),
        pytest.param("png", {"augment": "shift", **WINDOWS}, set(), {"copy to device"}, marks=pytest.mark.slow),
        pytest.param("gzip", WINDOWS, set(), {"augment", "copy to device"}, marks=pytest.mark.slow),
        pytest.param(
            "varied", {"augment": "random_crop(size=6)"}, {"read", "check"}, {"copy to device"}, marks=pytest.mark.slow
        ),
        ("varied", {"resize": "9x9", "training": False}, {"read", "check", "decode"}, {"augment", "copy to device"}),
    ],
)
@pytest.mark.quick(1)
def test_stages_that_do_not_occur_are_absent_and_not_zero(folders, name, options, once, absent):
    subject = opened(folders / name, **options)
    stages = {stage.name: stage for stage in subject.stages()}
    assert {name for name, stage in stages.items() if not stage.occurs} == absent
    assert {name for name, stage in stages.items() if stage.once} == once
    assert all(stage.note for stage in stages.values() if not stage.occurs)
    terms = {part for stage in stages.values() for part in stage.terms}
    assert terms <= {part.name for part in subject.parts()}


@pytest.mark.slow
def test_replicas_get_their_rows_and_the_copy_is_a_stage(folders):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    subject = opened(folders / "raw", strategy, augment="shift")
    for batches in (subject.on_devices(), subject.whole()):
        images, *_ = next(iter(batches))
        assert [value.shape for value in strategy.experimental_local_results(images)] == [(4, *SHAPE)] * 2
    assert measured(subject).costs["copy to device"].stage.note == "split between 2 replicas on CPUs"


def test_what_devices_keep_is_not_copied(folders, monkeypatch):
    monkeypatch.setattr(Subject, "is_on_cpus", False)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for augment, copied in ((None, tf.int64), ("flip", tf.uint8)):
        batches = opened(folders / "raw", strategy, augment=augment).on_devices()
        assert batches.element_spec[0] == tf.TensorSpec([4, *SHAPE], tf.uint8)
        assert tf.nest.flatten(batches._groups.element_spec, expand_composites=True)[0].dtype == copied


def test_what_stages_hand_on_per_row(folders):
    stages = {s.name: s.row_bytes for s in opened(folders / "raw", augment="cifar10_tutorial(crop=5)").stages()}
    stored = sum(path.stat().st_size for path in (folders / "raw").glob("train*.tfrecord")) / RECORDS
    crop, floats = 5 * 5 * 3, 5 * 5 * 3 * 4
    assert stages["read"] == stages["check"] == stored
    assert stages["gather"] == (crop if is_compiled() else 8 * 6 * 3) + 8 + 8  # and label, record id
    assert stages["augment"] == floats + 8 + 8
    assert stages["batch"] == floats + 8 + 4  # and label, weight


def test_rows_and_bytes_of_reading_are_exact(folders):
    reads = opened(folders / "raw").reads
    size = sum(path.stat().st_size for path in (folders / "raw").glob("train*.tfrecord"))
    assert reads.bytes_only(2) == 2 * RECORDS
    assert reads.traffic.asked == 2 * size


def test_reading_is_limited_and_rows_stay_within_the_part(folders, monkeypatch):
    subject = opened(folders / "raw", **WINDOWS)
    monkeypatch.setattr(measure, "MOST_BYTES", 1000)
    pieces, row_of = np.array([[0, 2, 9], [1, 0, 20]]), np.arange(27)[::-1]
    reads = measure.limited(subject.reads.shards, pieces, row_of)
    record = (folders / "raw" / "train-00000-of-00003.tfrecord").stat().st_size // 20  # bytes
    assert reads.rows == 1000 // record
    assert sorted(reads.row_of) == list(range(reads.rows))
    assert reads.checked(subject.reader, 1) == reads.rows


def slow(images, keys):
    def wait(given):
        time.sleep(PAUSE)
        return given

    found = tf.numpy_function(wait, [images], tf.uint8)
    found.set_shape(images.shape)
    return found


@pytest.mark.slow
def test_a_slow_augmentation_bounds_the_input(folders):
    found = measured(opened(folders / "raw", augment=slow), steps=20)  # many more than are ready
    assert (found.bound, found.is_processor_bound) == ("augment", False)
    assert found.costs["augment"].clock.median > 10 * found.costs["gather"].clock.median
    assert found.costs["augment"].clock.median * 8 * 2 * measure.CORES >= PAUSE * 1e6


def busy(images, keys):
    square = tf.random.stateless_uniform([1000, 1000], tf.bitcast(keys[0], tf.int32))  # which is no constant
    return images + tf.cast(tf.reduce_sum(square @ square) * 0, tf.uint8)


@pytest.mark.slow
def test_a_costly_augmentation_takes_the_processor_time(folders):
    # The rounds are short: what another process takes in one of them counts as the other stages'.
    rounds = (measured(opened(folders / "raw", augment=busy)).costs["augment"].share for _ in range(3))
    assert any(share > 0.5 for share in rounds)


@pytest.mark.slow
def test_a_slow_source_bounds_the_input(folders, monkeypatch):
    real = OpenFile.read_into

    def read_into(self, view, offset):
        time.sleep(4 * PAUSE)  # more than the checks take on a busy machine
        real(self, view, offset)

    monkeypatch.setattr(OpenFile, "read_into", read_into)
    found = measured(opened(folders / "raw", **WINDOWS))
    assert (found.bound, found.is_processor_bound) == ("read", False)
    assert found.costs["read"].clock.median > 10 * found.costs["order"].clock.median


def test_slow_checks_are_not_reading(folders, monkeypatch):
    subject = opened(folders / "raw", **WINDOWS)
    real = type(subject.reader).arrays

    def arrays(self, *arguments):
        time.sleep(PAUSE)
        return real(self, *arguments)

    monkeypatch.setattr(type(subject.reader), "arrays", arrays)
    found = {part.name: part for part in subject.parts()}
    for name in (BYTES, READER, ORDER):
        found[name].calibrate(0.01, None)
    took = {name: found[name].sample().seconds / found[name].count for name in (BYTES, READER, ORDER)}
    assert took[READER] >= PAUSE > 5 * took[BYTES]


@pytest.mark.parametrize(
    ("delivered", "source"),
    [
        (0, "the page cache"),
        (40, "the page cache"),
        (500, "disk (50%) and the page cache"),
        (990, "disk"),
        (None, "a disk or the page cache, this system does not say which"),
    ],
)
def test_where_bytes_come_from(delivered, source):
    traffic = measure.Traffic()
    traffic.add(1000, 7, None if delivered is None else 7 + delivered)
    assert traffic.source == source
