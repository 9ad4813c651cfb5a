"""Elements split between replicas: each gets the rows, and the bits, that the whole element has there."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.batch import dataset
from pipeline.batch.compose import make_dataset
from pipeline.batch.dataset import slices, split
from pipeline.request import Request
from tests.helpers.datasets import Kind, write_dataset

SHAPE = (8, 6, 3)
ROWS = 12
WINDOWS = {"shuffle_bytes": 4000, "streams": 1}


@pytest.fixture(scope="module")
def with_features(tmp_path_factory):
    path = tmp_path_factory.mktemp("with_features")
    write_dataset(path, (11, 0, 12, 8), SHAPE, kind=Kind(extra=True))
    return path


def varied(records):
    return {"record": records, "codes": tf.strings.unicode_decode(records, "US-ASCII", errors="replace")}


@pytest.mark.parametrize(
    ("options", "together"),
    [
        ({"augment": "cifar10_tutorial(crop=6)"}, 1024),
        pytest.param({}, 1024, marks=pytest.mark.slow),
        pytest.param({"weights": "mean"}, 1024, marks=pytest.mark.slow),
        ({"weights": "mean", "on_corrupt": "skip"}, 1024),
        pytest.param({"augment": "shift | mixup", "augment_on": "host"}, 24, marks=pytest.mark.slow),
        pytest.param({"augment": "shift", "augment_on": "device"}, 1024, marks=pytest.mark.slow),
        pytest.param({"augment": "shift"}, 1, marks=pytest.mark.slow),
        (WINDOWS, 1024),
        pytest.param(WINDOWS | {"augment": "shift"}, 1024, marks=pytest.mark.slow),
        pytest.param(WINDOWS | {"augment": "shift"}, 1, marks=pytest.mark.slow),
        ({"parse": varied}, 1024),
        pytest.param({"features": ("key",)}, 1024, marks=pytest.mark.slow),
    ],
    ids=[
        "augmented in memory",
        "in memory",
        "weights of all rows",
        "weights of all rows that are not skipped",
        "mixed",
        "for the device",
        "one by one",
        "windows",
        "augmented in windows",
        "windows, one by one",
        "parsed",
        "keys",
    ],
)
@pytest.mark.quick(2)
def test_replicas_get_the_rows_of_the_whole_element(folder, monkeypatch, options, together):
    monkeypatch.setattr(dataset, "_MOST_GROUP_ROWS", together)
    monkeypatch.setattr(dataset, "_COPIED", 1)  # else these windows have no elements besides their last ones
    request = Request(folder, global_batch_size=ROWS, training=True, epochs=3, start_step=1, record_ids=True, **options)
    check(make_dataset(request), make_dataset(request, 3), 3, steps=8)


def test_features_of_several_shapes_are_split(with_features):
    wanted = {"features": ("key", "box", "scores", "tags")}
    request = Request(with_features, global_batch_size=ROWS, training=True, epochs=2, record_ids=True, **wanted)
    check(make_dataset(request), make_dataset(request, 3), 3, steps=6)


def test_rows_of_every_source_are_split(folder, tmp_path):
    write_dataset(tmp_path, (9, 9), SHAPE)
    sources = [(str(folder), 0.5), (str(tmp_path), 0.5)]
    request = Request(sources, global_batch_size=ROWS, training=True, epochs=2, record_ids=True, augment="shift")
    check(make_dataset(request), make_dataset(request, 3), 3, steps=12)


def check(whole, parts, replicas, steps):
    assert len(whole) == len(parts) == steps
    for element, given in zip(whole, parts, strict=True):
        assert len(given) == replicas
        for replica, mine in enumerate(given):
            rows = slice(replica * ROWS // replicas, (replica + 1) * ROWS // replicas)
            tf.nest.map_structure(lambda all_rows, own, rows=rows: same(all_rows[rows], own), element, mine)


def same(one, other):
    if isinstance(one, tf.RaggedTensor):
        assert one.to_list() == other.to_list()
    else:
        np.testing.assert_array_equal(one, other)


def test_a_run_may_begin_in_the_middle_of_elements_that_lie_together():
    together = (tf.reshape(tf.range(24), [4, 6]),)
    for first in range(5):
        got = [[run[0].numpy().tolist() for run in parts] for parts in slices(together, 2).skip(first)]
        assert got == [[[6 * i, 6 * i + 1, 6 * i + 2], [6 * i + 3, 6 * i + 4, 6 * i + 5]] for i in range(first, 4)]


def test_no_replicas_is_the_element_itself():
    element = (tf.range(4), tf.range(4))
    assert split(element, None) is element
