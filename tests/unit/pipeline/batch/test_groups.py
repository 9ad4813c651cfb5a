"""Elements that one call makes together: the same rows and bits as one by one, wherever a run begins."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, input_fn
from pipeline.batch import dataset
from pipeline.batch.compose import choose
from pipeline.batch.dataset import group_size
from pipeline.batch.resident import load
from pipeline.order.feed import make_feed
from pipeline.order.sharding import as_shard
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import Kind, write_dataset

SHAPE = (8, 6, 3)
TRAIN = {"global_batch_size": 4, "training": True, "epochs": 2, "record_ids": True, "seed": 7}


def taken(folder, **options):
    return [[part.tobytes() for part in e] for e in input_fn(folder, **TRAIN, **options).as_numpy_iterator()]


def size_of(folder, shard=None, **options):
    request = Request(folder, **{"global_batch_size": 4, "training": True, **options})
    resolved = resolve(request)
    rows, batches = load(*choose(resolved))
    return group_size(make_feed(resolved.order, as_shard(shard)), batches, rows.columns)


@pytest.mark.parametrize(
    ("augment", "shuffle_bytes"),
    [
        ("cifar10_tutorial(crop=6)", 1 << 30),
        pytest.param(None, 1 << 30, marks=pytest.mark.slow),
        pytest.param("shift | mixup(until_epoch=1)", 2400, marks=pytest.mark.slow),
        pytest.param("color_jitter", 1 << 30, marks=pytest.mark.slow),
    ],
    ids=["augmented in memory", "in memory", "mixed in windows", "rowwise"],
)
def test_groups_change_no_bit_and_may_begin_anywhere(folder, monkeypatch, augment, shuffle_bytes):
    options = {"augment": augment, "shuffle_bytes": shuffle_bytes, "streams": 1}
    monkeypatch.setattr(dataset, "_MOST_GROUP_ROWS", 4)
    alone = taken(folder, **options)
    monkeypatch.setattr(dataset, "_MOST_GROUP_ROWS", 12)
    assert len(alone) == 16
    for start in (5, 13):  # inside and after groups of the first epoch
        assert taken(folder, **options, start_step=start) == alone[start:]


def test_local_replicas_and_evaluation_are_grouped_alike(folder, monkeypatch):
    options = {"augment": "shift", "shard": Shard(1, 2, 2)}
    monkeypatch.setattr(dataset, "_MOST_GROUP_ROWS", 1)
    alone, evaluated = taken(folder, **options), taken(folder, **{**options, "shard": None}, split="test")
    monkeypatch.undo()
    assert size_of(folder, shard=Shard(1, 2, 2)) == 16
    assert taken(folder, **options) == alone
    assert taken(folder, **{**options, "shard": None}, split="test") == evaluated


def test_groups_are_bounded_by_rows_and_bytes_and_are_about_equal(folder, monkeypatch):
    assert size_of(folder) == 8  # the 8 steps of an epoch
    assert size_of(folder, global_batch_size=1) == 31
    monkeypatch.setattr(dataset, "_MOST_GROUP_ROWS", 23)
    assert size_of(folder) == 4  # not 5 and 3
    assert size_of(folder, global_batch_size=24) == 1
    monkeypatch.setattr(dataset, "_MOST_GROUP_BYTES", 12 * 144)
    assert size_of(folder) == 3
    assert size_of(folder, augment="normalize") == 1  # four times the bytes
    assert size_of(folder, augment="normalize", augment_on="device") == 3
    assert size_of(folder, augment="flip") == size_of(folder, augment="randaugment | flip") == 3


def test_what_is_decoded_or_the_users_own_is_called_once_per_batch(folder, tmp_path):
    assert size_of(folder, augment=lambda images, keys: images) == 1
    write_dataset(tmp_path, (9,), SHAPE, kind=Kind("png", extra=True))
    assert size_of(tmp_path) == 3
    assert size_of(tmp_path, augment="random_crop(size=4)") == 1
    assert size_of(tmp_path, features=("scores",)) == 1  # which vary in length
    sizes = [batch.shape[0] for batch, _ in input_fn(folder, parse=tf.strings.length, **{**TRAIN, "record_ids": False})]
    assert sizes == [4] * 16


@pytest.mark.parametrize("shuffle_bytes", [1 << 30, 3000], ids=["in memory", "windows"])
def test_a_batch_is_a_slice_of_its_group(folder, shuffle_bytes):
    batches = list(input_fn(folder, streams=1, augment="normalize", shuffle_bytes=shuffle_bytes, **TRAIN))
    where = [images.__array__().__array_interface__["data"][0] for images, *_ in batches]
    assert 4 * 8 * 6 * 3 * 4 in np.diff(where)


@pytest.mark.slow
def test_elements_that_lie_in_a_window_follow_those_that_need_the_window_before(folder, monkeypatch):
    """Windows of 10 records, 4 to a batch: 2 of one window and 2 of the next, then 8 in place, whatever is copied."""
    options = {"shuffle_bytes": 2300, "streams": 1}
    gathered = taken(folder, portable=True, **options)
    assert len(gathered) == 16
    for copied, start in ((0, 0), (1, 0), (1, 4), (16, 0)):
        monkeypatch.setattr(dataset, "_COPIED", copied)
        assert taken(folder, start_step=start, **options) == gathered[start:]
