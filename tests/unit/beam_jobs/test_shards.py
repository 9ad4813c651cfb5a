import hashlib

import numpy as np
import pytest

from beam_jobs import shards
from beam_jobs.sources.base import Block
from pipeline import framing
from pipeline.errors import DataError
from pipeline.example import encode

# Two records of a 2x2x1 image, written out by the recipe of test_records_are_as_tensorflow_writes_them:
# tf.train.Example(features=...).SerializeToString(deterministic=True) through tf.io.TFRecordWriter.
GOLDEN = (
    "3a000000000000001295eae20a380a110a05696d61676512080a060a04000102030a130a036b6579120c0a0a0a08612e6269"
    "6e2330300a0e0a056c6162656c12051a030a01055e7c61aa3a000000000000001295eae20a380a110a05696d61676512080a"
    "060a04fcfdfeff0a130a036b6579120c0a0a0a08612e62696e2330310a0e0a056c6162656c12051a030a017f02765ac1"
)


def tiny_block() -> Block:
    images = np.array([[0, 1, 2, 3], [252, 253, 254, 255]], np.uint8).reshape(2, 2, 2, 1)
    return Block(images, np.array([5, 127]), np.array([b"a.bin#00", b"a.bin#01"]))


def random_block(n=200, shape=(28, 28, 1), key=b"train-images-idx3-ubyte#%05d") -> Block:
    draw = np.random.default_rng(1)
    keys = np.array([key % i for i in range(n)])
    return Block(draw.integers(0, 256, (n, *shape), np.uint8), draw.integers(0, 100, n), keys)


def test_golden_bytes():
    assert shards.shard_bytes(tiny_block()).tobytes().hex() == GOLDEN


@pytest.mark.parametrize("block", [tiny_block(), random_block(), random_block(5, (32, 32, 3), b"k%d")])
def test_records_are_as_tensorflow_writes_them(block, tmp_path):
    tf = pytest.importorskip("tensorflow")

    def example(image, label, key):
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[key])),
        }
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)

    path = tmp_path / "by_tensorflow"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label, key in zip(block.images, block.labels.tolist(), block.keys.tolist(), strict=True):
            writer.write(example(image, label, key))
    assert shards.shard_bytes(block).tobytes() == path.read_bytes()


def test_each_row_is_a_framed_example():
    block = random_block(30)
    matrix = shards.shard_bytes(block)
    found = [record for _, record in framing.records(matrix.tobytes(), "x")]
    rows = zip(block.images, block.labels.tolist(), block.keys.tolist(), strict=True)
    assert found == [encode(image.tobytes(), label, key) for image, label, key in rows]
    assert matrix.shape[1] == shards.record_stride(784, block.keys.itemsize)


@pytest.mark.parametrize("label", [-1, 128])
def test_a_label_that_does_not_fit_one_byte_is_refused(label):
    block = Block(np.zeros((1, 2, 2, 1), np.uint8), np.array([label]), np.array([b"k"]))
    with pytest.raises(ValueError, match=r"must be in 0\.\.127"):
        shards.shard_bytes(block)


@pytest.mark.parametrize("label", [-1, 10, 300])
def test_a_label_outside_the_classes_is_an_error_that_names_its_key(label):
    block = Block(np.zeros((2, 2, 2, 1), np.uint8), np.array([9, label]), np.array([b"a#0", b"a#1"]))
    with pytest.raises(DataError, match=rf"^a#1: label {label} is not in 0\.\.9$"):
        shards.check_labels(block, 10)
    shards.check_labels(Block(block.images[:1], block.labels[:1], block.keys[:1]), 10)


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (10, 3), (7, 7), (1000, 1), (1000, 64), (999, 10)])
def test_shards_hold_each_row_once_and_differ_by_one_at_most(rows, count):
    parts = [shards.shard_rows(3, "train", rows, shard, count) for shard in range(count)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1


def test_rows_do_not_depend_on_the_number_of_shards():
    whole = shards.shard_rows(0, "train", 1000, 0, 1)
    assert (np.concatenate([shards.shard_rows(0, "train", 1000, s, 7) for s in range(7)]) == whole).all()


def test_seed_and_split_each_change_the_rows():
    rows = {shards.shard_rows(seed, split, 500, 0, 1).tobytes() for seed in (0, 1) for split in ("train", "test")}
    assert len(rows) == 4


def test_the_permutation_is_pinned():
    rows = shards.shard_rows(0, "train", 60_000, 0, 1)
    assert rows[:5].tolist() == [50716, 9180, 35014, 7303, 12520]
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16] == "216121159b235849"


def test_statistics_are_exact_integers():
    block = random_block(100, (32, 32, 3))
    found = shards.statistics(block, 100)
    pixels = block.images.reshape(-1, 3).astype(object)
    assert found.sums == tuple(pixels.sum(axis=0).tolist())
    assert found.squares == tuple((pixels**2).sum(axis=0).tolist())
    assert found.pixels == 100 * 1024
    assert found.label_histogram == tuple(np.bincount(block.labels, minlength=100).tolist())


def test_statistics_of_the_largest_values_do_not_overflow():
    count = shards._STATISTICS_ROWS + 1
    block = Block(np.full((count, 2, 2, 3), 255, np.uint8), np.zeros(count, np.int64), np.array([b"k"] * count))
    found = shards.statistics(block, 1)
    assert found.squares == (255 * 255 * 4 * count,) * 3


def test_statistics_do_not_depend_on_the_chunk(monkeypatch):
    block = random_block(10)
    whole = shards.statistics(block, 100)
    monkeypatch.setattr(shards, "_STATISTICS_ROWS", 3)
    assert shards.statistics(block, 100) == whole
