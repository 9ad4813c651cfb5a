"""Reading: `read`, `decode` and `window`, on real files with real damage."""

import dataclasses

import numpy as np
import pytest

from pipeline import manifest as manifests
from pipeline import read
from pipeline.decode import decode_shard
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


def test_what_decoding_cannot_do_is_said(folder):
    manifest = manifests.load(folder)
    shard = manifest.splits["train"].shards[0]
    data = read.read_shard(folder, shard)
    with pytest.raises(DataError, match="unequal lengths, which this release cannot read"):
        decode_shard(data, dataclasses.replace(shard, stride=None), manifest.image_shape)
    with pytest.raises(DataError, match=r"cannot hold an image of shape \(80, 6, 3\)"):
        decode_shard(data, shard, (80, 6, 3))
    with pytest.raises(DataError, match="record 0, byte offset 0: not an Example of image"):
        decode_shard(data, shard, (8, 6, 2))
