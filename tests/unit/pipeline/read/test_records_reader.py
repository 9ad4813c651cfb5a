"""Records of any kind as byte strings, on real files with real damage."""

import dataclasses
import io
import threading

import crc32c
import numpy as np
import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest import ShardInfo, naming
from pipeline.manifest.splits import select
from pipeline.read.corruption import Corruption
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import all_pieces
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars, shard_offsets
from pipeline.records import framing, tf_example
from tests.helpers.datasets import Kind, images_of, key_of, write_dataset, write_shard
from tests.helpers.raised import at

COUNTS = (5, 0, 4, 3)
SHAPE = (8, 6, 3)
UNEQUAL = Kind(unequal_keys=True)
LAST = "train-00003-of-00004.tfrecord"  # records 9, 10, 11: keys of two lengths


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path, COUNTS, kind=UNEQUAL)
    return tmp_path


def reader_of(folder, split="train"):
    manifest = manifests.load(folder)
    shards = Shards.found(folder, select(manifest, split).segments, Corruption(str(folder)))
    return RecordsReader(shards)


def read_all(folder, split="train"):
    return reader_of(folder, split).read(all_pieces(select(manifests.load(folder), split)))


def check(found, numbers):
    """Checks that records are these of the training split, by their keys."""
    keys = [tf_example.decode(record)["key"] for record in found.as_bytes()]
    assert keys == [[key_of("train", n, UNEQUAL)] for n in numbers]


def test_shards_of_other_key_lengths_features_and_strides_are_joined(tmp_path):
    made = write_dataset(tmp_path, (6, 4, 3))
    old = made.splits["train"].shards
    rows = [
        {"image": x.tobytes(), "label": 200 + i, "key": b"k" * (i + 20), "more": 1}
        for i, x in enumerate(images_of(6, 4, SHAPE))
    ]
    shard = write_shard(tmp_path, old[1].file, [framing.frame(tf_example.encode(row)) for row in rows])
    assert (old[0].stride, shard.stride, old[2].stride) == (222, None, 222)
    split = dataclasses.replace(made.splits["train"], shards=(old[0], shard, old[2]))
    manifest = dataclasses.replace(made, splits={"train": split})
    (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
    decoded = [tf_example.decode(record) for record in read_all(tmp_path, "train[4:11]").as_bytes()]
    keys = [key_of("train", 4), key_of("train", 5), *(b"k" * n for n in range(20, 24)), key_of("train", 10)]
    assert [d["key"][0] for d in decoded] == keys
    assert [int(d["label"][0]) for d in decoded] == [1, 2, 200, 201, 202, 203, 1]


def missing(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)


def other(path):
    path.write_bytes(np.array([0, 100, 200, 650], "<u8").tobytes())


@pytest.mark.parametrize(
    ("change", "facts"),
    [(missing, ["No such file"]), (cut, ["24 bytes", "3 records", "32"]), (flipped, ["CRC32C"]), (other, ["CRC32C"])],
)
def test_offsets_that_are_missing_or_wrong_are_named(folder, change, facts):
    change(folder / naming.offsets_name(LAST))
    reader = reader_of(folder)
    check(reader.read(np.array([[0, 0, 2]])), [0, 1])
    with pytest.raises(DataError, check=at(naming.offsets_name(LAST), *facts)):
        reader.read(np.array([[2, 0, 1]]))


def test_offsets_that_a_manifest_vouches_for_but_that_are_not_the_files_are_corrupt_records(folder):
    made = manifests.load(folder)
    offsets = np.array([0, 5, 200, 650], "<u8").tobytes()  # a frame of 5 bytes is none
    (folder / naming.offsets_name(LAST)).write_bytes(offsets)
    shards = made.splits["train"].shards
    shard = dataclasses.replace(shards[3], offsets_crc32c=f"{crc32c.crc32c(offsets):08x}")
    split = dataclasses.replace(made.splits["train"], shards=(*shards[:3], shard))
    (folder / "manifest.json").write_bytes(dataclasses.replace(made, splits={"train": split}).to_bytes())
    with pytest.raises(DataError, check=at(LAST, "5 bytes", record=0, offset=0)):
        read_all(folder)


def test_offsets_of_a_shard(folder):
    shards = manifests.load(folder).splits["train"].shards
    whole = (folder / LAST).read_bytes()
    offsets = shard_offsets(str(folder), shards[3]).tolist()
    assert offsets == [0, 218, 218 + 219, len(whole)]
    assert [offset for offset, _, _ in framing.records(io.BytesIO(whole).read, LAST)] == offsets[:-1]
    assert shard_offsets(str(folder), shards[0]).tolist() == [0, 218, 436, 654, 872, 1090]
    assert shard_offsets(str(folder), shards[1]).tolist() == [0]
    assert shard_offsets(str(folder), ShardInfo("x", 0, 0, "0" * 8, None)).tolist() == [0]


def test_offsets_are_read_once_and_the_oldest_are_given_up(folder):
    sidecars = Sidecars(reader_of(folder).shards, kept=10)
    first = sidecars.offsets(2)  # 4 of them
    second = sidecars.offsets(0)  # 6: both stay
    assert sidecars.offsets(2) is first
    sidecars.offsets(1)
    assert sidecars.offsets(2) is not first
    assert np.array_equal(sidecars.offsets(0), second)


def test_many_threads_read_while_offsets_are_given_up(tmp_path):
    write_dataset(tmp_path, (2,) * 6, kind=UNEQUAL)
    reader, errors = reader_of(tmp_path), []
    reader.sidecars = Sidecars(reader.shards, kept=8)

    def work(seed):
        draw = np.random.default_rng(seed)
        try:
            for segment in draw.integers(0, 6, 60).tolist():
                check(reader.read(np.array([[segment, 0, 2]])), [2 * segment, 2 * segment + 1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
