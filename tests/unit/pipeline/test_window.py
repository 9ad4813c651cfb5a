"""Reading: `read` and `window`, on real files with real damage."""

import dataclasses

import google_crc32c
import numpy as np
import pytest

from pipeline import example_proto, framing, read
from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.splits import select
from pipeline.window import load_window
from tests.datasets import images_of, write_dataset

COUNTS = (5, 0, 4, 3)


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path, COUNTS)
    return tmp_path


def load(folder, split="train"):
    manifest = manifests.load(folder)
    return load_window(folder, select(manifest, split), manifest.image_shape)


def test_a_window_holds_the_selected_examples_in_order(folder):
    examples = load(folder)
    assert np.array_equal(examples.images, images_of(0, 12, (8, 6, 3)))
    assert examples.labels.tolist() == [i % 3 for i in range(12)]
    assert examples.keys.tolist() == [f"train#{i:05d}".encode() for i in range(12)]
    part = load(folder, "train[10:]+test[:1]+train[3:6]")
    assert part.keys.tolist() == [
        b"train#00010",
        b"train#00011",
        b"test#00000",
        b"train#00003",
        b"train#00004",
        b"train#00005",
    ]
    assert np.array_equal(part.images[3:], images_of(3, 3, (8, 6, 3)))


def test_every_flipped_bit_of_a_shard_is_refused_and_its_record_named(folder):
    path = folder / "train-00002-of-00004.tfrecord"
    whole = path.read_bytes()
    stride = len(whole) // 4
    for bit in np.random.default_rng(0).integers(0, len(whole) * 8, 200):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        record = bit // 8 // stride
        with pytest.raises(
            DataError, match=rf"train-00002-of-00004\.tfrecord, record {record}, byte offset {record * stride}: "
        ):
            load(folder)


def test_a_shard_of_whole_records_but_other_bytes_is_refused(folder):
    one, other = folder / "train-00002-of-00004.tfrecord", folder / "test-00000-of-00001.tfrecord"
    manifest = manifests.load(folder)
    write_dataset(folder / "more", (4,))
    one.write_bytes((folder / "more" / "train-00000-of-00001.tfrecord").read_bytes())
    assert one.stat().st_size == manifest.splits["train"].shards[2].num_bytes
    assert other.exists()
    with pytest.raises(DataError, match="every record is whole, but the file's CRC32C is"):
        load(folder)


def test_missing_and_cut_shards_are_named_before_anything_is_read(folder):
    path = folder / "train-00003-of-00004.tfrecord"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    shards = manifests.load(folder).splits["train"].shards
    with pytest.raises(
        DataError, match=f"train-00003-of-00004.tfrecord: {size - 1} bytes, but the manifest says {size}"
    ):
        read.check_present(folder, shards)
    path.unlink()
    with pytest.raises(
        DataError, match=r"train-00003-of-00004.tfrecord: the manifest lists this shard, but: No such file"
    ):
        read.check_present(folder, shards)
    path.mkdir()
    with pytest.raises(DataError, match="bytes, but the manifest says"):
        read.read_shard(folder, shards[3])


def test_a_window_joins_shards_of_other_key_lengths_and_features(tmp_path):
    write_dataset(tmp_path, (6, 4))
    made = manifests.load(tmp_path)
    shard = made.splits["train"].shards[1]
    images = images_of(6, 4, (8, 6, 3))
    rows = [{"image": x.tobytes(), "label": 2, "key": b"k" * (i + 20), "more": 1} for i, x in enumerate(images)]
    data = b"".join(framing.frame(example_proto.encode(row)) for row in rows)
    (tmp_path / shard.file).write_bytes(data)
    crc = f"{google_crc32c.value(data):08x}"
    shards = made.splits["train"].shards[0], manifests.ShardInfo(shard.file, 4, len(data), crc, None)
    split = dataclasses.replace(made.splits["train"], shards=shards)
    examples = load_window(tmp_path, select(dataclasses.replace(made, splits={"train": split}), "train[4:]"), (8, 6, 3))
    assert np.array_equal(examples.images, images_of(4, 6, (8, 6, 3)))
    assert examples.labels.tolist() == [1, 2, 2, 2, 2, 2]
    assert examples.keys.tolist() == [b"train#00004", b"train#00005", *(b"k" * n for n in range(20, 24))]
