"""`input_fn` with recipes that mix rows: the same on any number of replicas, labels, padding, errors."""

import numpy as np
import pytest

from pipeline import Shard, input_fn
from pipeline.errors import UsageError
from tests.helpers.datasets import write_dataset

TEXT = "pad_crop_flip(pad=2) | cutout(size=3) | mixup_or_cutmix(mixup_alpha=1.0, until_epoch=1)"
OPTIONS = {"global_batch_size": 8, "training": True, "seed": 5, "epochs": 2, "augment": TEXT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (20, 0, 9, 8), (12, 10, 3))
    return path


def taken(folder, **options):
    return list(input_fn(folder, **{**OPTIONS, **options}).as_numpy_iterator())


@pytest.mark.parametrize(
    ("shuffle_bytes", "shards"), [(1 << 30, [(1, 2), (2, 4)]), (4000, [(3, 4)])], ids=["in memory", "windows"]
)
@pytest.mark.quick(1)
def test_rows_are_the_same_on_1_2_and_4_replicas(folder, shuffle_bytes, shards):
    whole = taken(folder, shuffle_bytes=shuffle_bytes)
    assert len(whole) == 10
    for replica, replicas in shards:
        part = taken(folder, shuffle_bytes=shuffle_bytes, shard=Shard(replica, replicas))
        mine = slice(replica * 8 // replicas, (replica + 1) * 8 // replicas)
        for got, expected in zip(part, whole, strict=True):
            np.testing.assert_allclose(got[0], expected[0][mine], atol=2e-5)
            np.testing.assert_array_equal(got[1], expected[1][mine])
            np.testing.assert_array_equal(got[2], expected[2][mine])


def test_labels_are_probabilities_until_an_epoch_and_padding_is_not_mixed(folder):
    whole = taken(folder)
    for step, (images, labels, weights) in enumerate(whole):
        assert (images.dtype, labels.dtype, labels.shape) == (np.float32, np.float32, (8, 3))
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
        alone = (weights == 0) | (weights.reshape(4, 2)[:, ::-1].reshape(8) == 0)
        assert (labels.max(axis=1)[alone | (step >= 5)] == 1).all()
    assert sum((labels.max(axis=1) < 1).sum() for _, labels, _ in whole[:5]) > 10
    again = taken(folder, start_step=3)
    np.testing.assert_array_equal(again[0][1], whole[3][1])


def test_an_evaluation_mixes_nothing_and_has_labels_of_the_same_shape(folder):
    images, labels, _ = taken(folder, training=False, epochs=1)[0]
    plain, classes, _ = taken(folder, training=False, epochs=1, augment="normalize")[0]
    np.testing.assert_allclose(images, plain, atol=1e-6)
    np.testing.assert_array_equal(labels, np.eye(3, dtype=np.float32)[classes])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"global_batch_size": 7},
            "=7 .* 1 replicas 7, .*: 6 and 8",
        ),
        ({"shard": Shard(0, 8)}, "=8 .* 8 replicas 1, .*: 16"),
        ({"streams": 8}, "streams=8 .* 1 .*=8, .*: 2 and 4"),
    ],
)
def test_an_odd_number_of_rows_is_refused(folder, options, message):
    with pytest.raises(UsageError, match=message):
        input_fn(folder, **{**OPTIONS, "augment": "mixup", **options})
    if "global_batch_size" not in options:
        input_fn(folder, **{**OPTIONS, "augment": "mixup", **options, "training": False, "epochs": 1})
