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
from pipeline.read import records_reader as read_records
from pipeline.read.corruption import Corruption, skipped_records
from pipeline.read.records_reader import RecordsReader, shard_offsets
from pipeline.read.rows_reader import all_pieces
from pipeline.read.shards import Shards
from pipeline.records import example_proto, framing, walk
from tests.datasets import Kind, image_of, images_of, key_of, to_memory, write_dataset, write_shard

COUNTS = (5, 0, 4, 3)
SHAPE = (8, 6, 3)
UNEQUAL = Kind(unequal_keys=True)
GZIP = Kind(compression="GZIP")
LAST = "train-00003-of-00004.tfrecord"  # records 9, 10, 11: keys of two lengths


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path, COUNTS, kind=UNEQUAL)
    return tmp_path


def reader_of(folder, split="train", policy="raise", most=100, data_dir=None, **options):
    manifest = manifests.load(folder)
    data_dir = data_dir or str(folder)
    shards = Shards.found(data_dir, select(manifest, split).segments, Corruption(data_dir, policy, most))
    return RecordsReader(shards, manifest.compression, **options)


def read_all(folder, split="train", **policy):
    return reader_of(folder, split, **policy).read(all_pieces(select(manifests.load(folder), split)))


def check(found, numbers, kind=UNEQUAL):
    """Checks that records are these of the training split."""
    decoded = [example_proto.decode(record) for record in found.records]
    assert [d["key"] for d in decoded] == [[key_of("train", n, kind)] for n in numbers]
    assert [d["label"].tolist() for d in decoded] == [[n % 3] for n in numbers]
    assert [d["image"] for d in decoded] == [[image_of(n, SHAPE).tobytes()] for n in numbers]


def offsets_in(folder, file):
    return np.frombuffer((folder / naming.offsets_name(file)).read_bytes(), "<u8").tolist()


def damage(folder, file, *records, byte=40):
    offsets, data = offsets_in(folder, file), bytearray((folder / file).read_bytes())
    for record in records:
        data[offsets[record] + byte] ^= 4
    (folder / file).write_bytes(data)


@pytest.mark.parametrize("kind", [Kind(), UNEQUAL, GZIP], ids=["equal", "unequal", "GZIP"])
def test_a_whole_split_is_read_in_its_order(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=kind)
    found = read_all(tmp_path)
    check(found, range(12), kind)
    assert found.good.all()
    assert (found.records.dtype, found.good.dtype) == (object, bool)


@pytest.mark.parametrize("kind", [UNEQUAL, GZIP], ids=["unequal", "GZIP"])
@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        ([[0, 0, 5]], range(5)),
        ([[0, 1, 2]], [1]),
        ([[2, 1, 3], [0, 0, 5], [1, 3, 4], [0, 4, 5]], [10, 11, 0, 1, 2, 3, 4, 8, 4]),
        ([[1, 2, 2], [0, 2, 4], [2, 0, 0]], [2, 3]),
    ],
    ids=["a whole shard", "a record in the middle", "several, in this order", "with empty ones"],
)
def test_pieces_are_read_in_the_order_they_are_given(tmp_path, kind, pieces, numbers):
    write_dataset(tmp_path, COUNTS, kind=kind)
    check(reader_of(tmp_path).read(np.array(pieces)), numbers, kind)


@pytest.mark.parametrize("pieces", [np.zeros((0, 3), np.int64), np.array([[1, 2, 2]])])
def test_no_record_is_one_empty_one(folder, pieces):
    found = reader_of(folder).read(pieces)
    assert (found.records.tolist(), found.good.tolist()) == ([b""], [True])


@pytest.mark.parametrize("kind", [UNEQUAL, GZIP], ids=["unequal", "GZIP"])
def test_slices_join_parts_of_shards_and_splits(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=kind)
    found = read_all(tmp_path, "train[10:]+test[:1]+train[3:6]")
    keys = [example_proto.decode(record)["key"][0] for record in found.records]
    assert keys == [key_of(s, n, kind) for s, n in [("train", 10), ("train", 11), ("test", 0)]] + [
        key_of("train", n, kind) for n in (3, 4, 5)
    ]


@pytest.mark.parametrize("task", [1, 500, 1 << 20])
def test_threads_share_a_piece(tmp_path, monkeypatch, task):
    monkeypatch.setattr(read_records, "_TASK", task)
    write_dataset(tmp_path, (40, 7), kind=UNEQUAL)
    reader = reader_of(tmp_path)
    found = reader.read(np.array([[0, 1, 40], [1, 0, 7], [0, 0, 40]]))
    check(found, [*range(1, 47), *range(40)])


def test_shards_of_other_key_lengths_features_and_strides_are_joined(tmp_path):
    made = write_dataset(tmp_path, (6, 4, 3))
    old = made.splits["train"].shards
    rows = [
        {"image": x.tobytes(), "label": 200 + i, "key": b"k" * (i + 20), "more": 1}
        for i, x in enumerate(images_of(6, 4, SHAPE))
    ]
    shard = write_shard(tmp_path, old[1].file, [framing.frame(example_proto.encode(row)) for row in rows])
    assert (old[0].stride, shard.stride, old[2].stride) == (222, None, 222)
    split = dataclasses.replace(made.splits["train"], shards=(old[0], shard, old[2]))
    manifest = dataclasses.replace(made, splits={"train": split})
    (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
    decoded = [example_proto.decode(record) for record in read_all(tmp_path, "train[4:11]").records]
    keys = [key_of("train", 4), key_of("train", 5), *(b"k" * n for n in range(20, 24)), key_of("train", 10)]
    assert [d["key"][0] for d in decoded] == keys
    assert [int(d["label"][0]) for d in decoded] == [1, 2, 200, 201, 202, 203, 1]


def test_a_shard_of_whole_records_but_other_bytes_is_refused(folder, tmp_path):
    size = (folder / LAST).stat().st_size
    rows = [{"image": bytes(144), "label": 0, "key": key_of("train", n, UNEQUAL)} for n in (9, 10, 11)]
    (folder / LAST).write_bytes(b"".join(framing.frame(example_proto.encode(row)) for row in rows))
    assert (folder / LAST).stat().st_size == size
    for policy in ("raise", "skip"):
        with pytest.raises(DataError, match=f"{LAST}: every record is whole, but the file's CRC32C is "):
            read_all(folder, policy=policy)


def test_skipped_records_are_marked_and_another_good_one_stands_there(folder):
    damage_equal(folder, 0, 1, 4)
    damage(folder, LAST, 2)
    damage(folder, LAST, 1, byte=3)
    found = read_all(folder, policy="skip")
    assert np.flatnonzero(~found.good).tolist() == [0, 1, 4, 10, 11]
    check(found, [2, 2, 2, 3, 5, 5, 6, 7, 8, 9, 9, 9])
    assert [(r.file[-29:], r.record, r.offset) for r in skipped_records(folder)] == [
        ("train-00000-of-00004.tfrecord", 0, 0),
        ("train-00000-of-00004.tfrecord", 1, 218),
        ("train-00000-of-00004.tfrecord", 4, 872),
        (LAST, 1, offsets_in(folder, LAST)[1]),
        (LAST, 2, offsets_in(folder, LAST)[2]),
    ]


def damage_equal(folder, *records):
    """Damages records of the first shard, which has a stride."""
    path = folder / "train-00000-of-00004.tfrecord"
    data = bytearray(path.read_bytes())
    for record in records:
        data[record * (len(data) // 5) + 40] ^= 4
    path.write_bytes(data)


def test_a_window_without_a_good_record_is_an_error(folder):
    damage(folder, LAST, 0, 1, 2)
    with pytest.raises(DataError, match=f"{LAST}: all 3 records .* corrupt"):
        reader_of(folder, policy="skip").read(np.array([[2, 0, 3]]))


@pytest.mark.parametrize("kind", [UNEQUAL, GZIP], ids=["unequal", "GZIP"])
def test_a_file_that_is_cut_or_gone_between_two_reads_is_named(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=kind)
    file = LAST + (".gz" if kind.compression else "")
    reader = reader_of(tmp_path)
    reader.read(np.array([[2, 0, 3]]))
    path = tmp_path / file
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{file}: has {size - 1} bytes instead of {size} since the input began"):
        reader.read(np.array([[2, 0, 3]]))
    path.unlink()
    with pytest.raises(DataError, match=f"{file}: cannot be read: No such file"):
        reader.read(np.array([[2, 1, 2]]))


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
    ("change", "message"),
    [
        (missing, r"\.offsets: cannot be read: No such file or directory"),
        (cut, rf"\.offsets: .*24 bytes.*3 records.*32.*{LAST}"),
        (flipped, rf"\.offsets: .*CRC32C.*[0-9a-f]{{8}}.*[0-9a-f]{{8}}.*{LAST}"),
        (other, r"\.offsets: .*CRC32C.*[0-9a-f]{8}"),
    ],
)
def test_offsets_that_are_missing_or_wrong_are_named(folder, change, message):
    change(folder / naming.offsets_name(LAST))
    reader = reader_of(folder)
    check(reader.read(np.array([[0, 0, 2]])), [0, 1])
    with pytest.raises(DataError, match=LAST + message):
        reader.read(np.array([[2, 0, 1]]))


def test_offsets_that_a_manifest_vouches_for_but_that_are_not_the_files_are_corrupt_records(folder):
    made = manifests.load(folder)
    offsets = np.array([0, 5, 200, 650], "<u8").tobytes()  # a frame of 5 bytes is none
    (folder / naming.offsets_name(LAST)).write_bytes(offsets)
    shards = made.splits["train"].shards
    shard = dataclasses.replace(shards[3], offsets_crc32c=f"{crc32c.crc32c(offsets):08x}")
    split = dataclasses.replace(made.splits["train"], shards=(*shards[:3], shard))
    (folder / "manifest.json").write_bytes(dataclasses.replace(made, splits={"train": split}).to_bytes())
    with pytest.raises(DataError, match=f"{LAST}, record 0, byte offset 0: .* 5 bytes"):
        read_all(folder)


def test_offsets_of_a_shard(folder):
    shards = manifests.load(folder).splits["train"].shards
    whole = (folder / LAST).read_bytes()
    offsets = shard_offsets(str(folder), shards[3]).tolist()
    assert offsets == [0, 218, 218 + 219, len(whole)]
    assert [offset for offset, _, _ in walk.records(io.BytesIO(whole).read, LAST)] == offsets[:-1]
    assert shard_offsets(str(folder), shards[0]).tolist() == [0, 218, 436, 654, 872, 1090]
    assert shard_offsets(str(folder), shards[1]).tolist() == [0]
    assert shard_offsets(str(folder), ShardInfo("x", 0, 0, "0" * 8, None)).tolist() == [0]


def test_offsets_are_read_once_and_the_oldest_are_given_up(folder):
    reader = reader_of(folder, kept_offsets=10)
    first = reader.offsets(2)  # 4 of them
    second = reader.offsets(0)  # 6: both stay
    assert reader.offsets(2) is first
    reader.offsets(1)
    assert reader.offsets(2) is not first
    assert np.array_equal(reader.offsets(0), second)


def test_many_threads_read_while_offsets_are_given_up(tmp_path):
    write_dataset(tmp_path, (2,) * 6, kind=UNEQUAL)
    reader, errors = reader_of(tmp_path, kept_offsets=8), []

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


@pytest.mark.parametrize("kind", [UNEQUAL, GZIP], ids=["unequal", "GZIP"])
def test_a_remote_folder_is_read_alike(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=kind)
    url = to_memory(tmp_path, "read_records")
    reader = reader_of(tmp_path, data_dir=url)
    check(reader.read(np.array([[0, 0, 5], [2, 1, 3], [1, 0, 2]])), [0, 1, 2, 3, 4, 10, 11, 5, 6], kind)
    if kind is UNEQUAL:
        damage(tmp_path, LAST, 1)
        to_memory(tmp_path, "read_records")
        with pytest.raises(DataError, match=f"{url}/{LAST}, record 1, byte offset 218: the record's CRC is wrong"):
            reader.read(np.array([[2, 0, 3]]))
