"""Records of one layout as one matrix, on real files with real damage."""

import dataclasses

import numpy as np
import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest.splits import select
from pipeline.read import rows_reader as read_rows
from pipeline.read.corruption import Corruption, CorruptRecord, skipped_records
from pipeline.read.rows_reader import RowsReader, all_pieces
from pipeline.read.shards import Shards
from pipeline.records import example_proto, framing
from pipeline.records import layout as example
from tests.datasets import Kind, images_of, key_of, to_memory, write_dataset, write_shard

pytestmark = pytest.mark.usefixtures("engine")

COUNTS = (5, 0, 4, 3)
SHAPE = (8, 6, 3)
STRIDE = 222


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path, COUNTS)
    return tmp_path


def reader_of(folder, split="train", policy="raise", most=100, data_dir=None):
    manifest = manifests.load(folder)
    data_dir = data_dir or str(folder)
    shards = Shards.found(data_dir, select(manifest, split).segments, Corruption(data_dir, policy, most))
    return RowsReader.fit(manifest, shards, with_keys=True)


def read_all(folder, split="train", **policy):
    reader = reader_of(folder, split, **policy)
    return reader, reader.read(all_pieces(select(manifests.load(folder), split)))


def images(reader, rows):
    return rows.images.reshape(-1, *SHAPE)


def check(reader, rows, numbers, split="train"):
    """Checks that rows hold these records of a split."""
    assert np.array_equal(images(reader, rows), [images_of(n, 1, SHAPE)[0] for n in numbers])
    assert rows.labels.tolist() == [n % 3 for n in numbers]
    assert rows.keys.tolist() == [key_of(split, n) for n in numbers]


def test_a_whole_split_is_one_aligned_matrix_in_its_order(folder):
    reader, rows = read_all(folder)
    check(reader, rows, range(12))
    assert rows.good.all()
    assert rows.images.shape == (12, 144)
    assert rows.images.ctypes.data % 64 == 0
    assert (rows.images.dtype, rows.labels.dtype, rows.good.dtype) == (np.uint8, np.int64, bool)


def test_slices_join_parts_of_shards(folder):
    reader, rows = read_all(folder, "train[10:]+train[3:6]+train[:1]")
    check(reader, rows, [10, 11, 3, 4, 5, 0])


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
def test_pieces_are_read_in_the_order_they_are_given(folder, pieces, numbers):
    reader = reader_of(folder)
    check(reader, reader.read(np.array(pieces)), numbers)


@pytest.mark.parametrize("pieces", [np.zeros((0, 3), np.int64), np.array([[1, 2, 2]])])
def test_no_record_is_one_row_of_zeros(folder, pieces):
    rows = reader_of(folder).read(pieces)
    assert rows.images.shape == (1, 144)
    assert not rows.images.any()
    assert (rows.labels.tolist(), rows.keys.tolist(), rows.good.tolist()) == ([0], [b""], [True])


@pytest.mark.parametrize("task", [1, 2 * STRIDE, 1 << 20])
def test_threads_share_a_piece(tmp_path, monkeypatch, task):
    monkeypatch.setattr(read_rows, "_TASK", task)
    monkeypatch.setattr(read_rows, "_CHUNK", 3 * STRIDE)
    write_dataset(tmp_path, (40, 7))
    reader = reader_of(tmp_path)
    check(reader, reader.read(np.array([[0, 1, 40], [1, 0, 7], [0, 0, 40]])), [*range(1, 47), *range(40)])


def test_damage_outside_the_pieces_is_not_read(folder):
    damage(folder, "train-00002-of-00004.tfrecord", 3)
    reader = reader_of(folder)
    check(reader, reader.read(np.array([[1, 0, 3]])), [5, 6, 7])


def test_a_shard_of_whole_records_but_other_bytes_is_refused(folder):
    one = folder / "train-00002-of-00004.tfrecord"
    size = one.stat().st_size
    write_dataset(folder / "more", (4,))
    one.write_bytes((folder / "more" / "train-00000-of-00001.tfrecord").read_bytes())
    assert one.stat().st_size == size
    for policy in ("raise", "skip"):
        with pytest.raises(DataError, match="every record is whole, but the file's CRC32C is .*another data set's"):
            read_all(folder, policy=policy)


def damage(folder, file, *records, byte=40):
    data = bytearray((folder / file).read_bytes())
    for record in records:
        data[record * STRIDE + byte] ^= 4
    (folder / file).write_bytes(data)


def test_skipped_records_are_marked_and_another_good_one_stands_there(folder):
    damage(folder, "train-00000-of-00004.tfrecord", 0, 1, 4)
    damage(folder, "train-00002-of-00004.tfrecord", 1)
    damage(folder, "train-00003-of-00004.tfrecord", 2)
    reader, rows = read_all(folder, policy="skip")
    assert np.flatnonzero(~rows.good).tolist() == [0, 1, 4, 6, 11]
    check(reader, rows, [2, 2, 2, 3, 5, 5, 7, 7, 8, 9, 10, 10])
    assert skipped_records(folder) == tuple(
        CorruptRecord(str(folder / f"train-0000{shard}-of-00004.tfrecord"), n, n * STRIDE, "the record's CRC is wrong")
        for shard, n in ((0, 0), (0, 1), (0, 4), (2, 1), (3, 2))
    )
    again = reader.read(np.array([[1, 1, 2], [2, 0, 3]]))  # the pieces cut shards: the records' own CRCs
    assert again.good.tolist() == [False, True, True, False]
    check(reader, again, [9, 9, 10, 10])
    assert len(skipped_records(folder)) == 5


def test_a_window_without_a_good_record_is_an_error(folder):
    damage(folder, "train-00003-of-00004.tfrecord", 0, 1, 2)
    reader = reader_of(folder, policy="skip")
    with pytest.raises(DataError, match=r"train-00003-of-00004\.tfrecord: all 3 records .* corrupt"):
        reader.read(np.array([[2, 0, 3]]))
    check(reader, reader.read(np.array([[2, 0, 3], [0, 0, 1]])), [0, 0, 0, 0])


def test_a_file_that_is_cut_between_two_reads_is_named(folder):
    reader, _ = read_all(folder)
    path = folder / "train-00002-of-00004.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    for piece in ([1, 0, 4], [1, 1, 2]):
        with pytest.raises(DataError, match="train-00002-of-00004.tfrecord: has 887 bytes instead of 888 since"):
            reader.read(np.array([piece]))


def test_a_remote_folder_is_read_alike(folder):
    url = to_memory(folder, "read_rows")
    reader = reader_of(folder, data_dir=url)
    check(reader, reader.read(np.array([[0, 0, 5], [1, 1, 3]])), [0, 1, 2, 3, 4, 6, 7])
    damage(folder, "train-00000-of-00004.tfrecord", 1)
    to_memory(folder, "read_rows")
    with pytest.raises(DataError, match=f"{url}/train-00000-of-00004.tfrecord, record 1, byte offset 222: "):
        reader.read(np.array([[0, 0, 5]]))


def shard_of(tmp_path, records):
    """Returns the reader of a data set whose one training shard holds these records."""
    made = write_dataset(tmp_path, (1,))
    shard = write_shard(tmp_path, "train-00000-of-00001.tfrecord", [framing.frame(r) for r in records])
    split = dataclasses.replace(
        made.splits["train"], shards=(shard,), label_histogram=(len(records),), image_sizes={"8x6": len(records)}
    )
    manifest = dataclasses.replace(made, splits={"train": split})
    (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
    return reader_of(tmp_path)


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        (range(28, 128), [b"%05d" % i for i in range(100)]),
        (range(900, 1000), [b"%05d" % i for i in range(100)]),
        ([2**62] * 100, [b"%05d" % i for i in range(100)]),
        ([5, 300] * 50, [b"ab", b"a"] * 50),
        ([3] * 100, [b""] * 100),
        ([128] * 100, [b""] * 100),
    ],
    ids=["plain", "labels over 127", "huge labels", "one length by chance", "empty keys", "empty keys, label 128"],
)
def test_labels_and_keys_of_any_length_are_read_where_the_records_have_one(tmp_path, labels, keys):
    pixels = images_of(0, 100, SHAPE)
    rows = zip(pixels, labels, keys, strict=True)
    reader = shard_of(
        tmp_path, [example_proto.encode({"image": x.tobytes(), "label": y, "key": k}) for x, y, k in rows]
    )
    found = reader.read(np.array([[0, 0, 100]]))
    assert np.array_equal(images(reader, found), pixels)
    assert found.labels.tolist() == list(labels)
    assert found.keys.tolist() == list(keys)


def test_the_features_may_be_in_any_order(tmp_path):
    pixels = images_of(0, 2, SHAPE)
    encoded = [example.encode(x.tobytes(), 7, b"k%d" % i) for i, x in enumerate(pixels)]
    reader = shard_of(tmp_path, [encoded[0], in_another_order(encoded[1])])
    found = reader.read(np.array([[0, 0, 2]]))
    assert np.array_equal(images(reader, found), pixels)
    assert (found.labels.tolist(), found.keys.tolist()) == ([7, 7], [b"k0", b"k1"])


def in_another_order(record):
    """Returns an Example with its three entries in reverse order: as long, and as good."""
    entries, at, features = [], 0, record[3:]
    assert len(record) - 3 in (record[1] | record[2] << 7, (record[1] & 127) | record[2] << 7)
    while at < len(features):
        length, begin = features[at + 1], at + 2
        if length > 127:
            length, begin = (length & 127) | features[at + 2] << 7, at + 3
        entries.append(features[at : begin + length])
        at = begin + length
    assert len(entries) == 3
    return record[:3] + b"".join(reversed(entries))


def features(**changes):
    return {"image": bytes(144), "label": 1, "key": b"k"} | changes


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\xff" * 158, "these 158 bytes are no serialized tf.train.Example; convert the data again"),
        (features(image=bytes(143), key=b"kk"), "an image of 143 bytes, not of 144"),
        (features(image=bytes(145), key=b""), "an image of 145 bytes, not of 144"),
        (features(label=np.array([1, 2]), key=b""), "not an Example with one image, one int64 label and one key"),
        ({"image": bytes(144), "label": 1, "kez": b"k"}, "one int64 label and one key"),
        ({"imagf": bytes(144), "label": 1, "key": b"k"}, "not an Example with one image"),
    ],
)
def test_a_record_that_is_no_such_example_is_named(tmp_path, record, message):
    good = example_proto.encode(features())
    bad = record if isinstance(record, bytes) else example_proto.encode(record)
    if isinstance(record, bytes):
        bad = bad[: len(good)].ljust(len(good), b"\xff")
        message = message.replace("158", str(len(good)))
    assert len(bad) == len(good)
    reader = shard_of(tmp_path, [good, good, bad, good])
    offset = 2 * (len(good) + 16)
    where = rf"train-00000-of-00001\.tfrecord, record 2, byte offset {offset}: .*{message}"
    with pytest.raises(DataError, match=where):
        reader.read(np.array([[0, 0, 4]]))
    assert reader.read(np.array([[0, 3, 4]])).keys.tolist() == [b"k"]


@pytest.mark.parametrize(
    "kind",
    [Kind(unequal_keys=True), Kind(extra=True), Kind("png"), Kind(compression="GZIP")],
    ids=["keys of two lengths", "more features", "PNG", "GZIP"],
)
def test_what_has_not_one_layout_is_not_for_this_reader(tmp_path, kind):
    write_dataset(tmp_path, (12,), kind=kind)
    assert reader_of(tmp_path) is None


def test_shards_of_different_strides_are_one_matrix(tmp_path):
    made = write_dataset(tmp_path, (5, 3))
    pixels = images_of(20, 3, SHAPE)
    records = [framing.frame(example.encode(pixels[i].tobytes(), i, b"a longer key %d" % i)) for i in range(3)]
    shard = write_shard(tmp_path, made.splits["train"].shards[1].file, records)
    split = dataclasses.replace(made.splits["train"], shards=(made.splits["train"].shards[0], shard))
    manifest = dataclasses.replace(made, splits={"train": split})
    (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
    rows = reader_of(tmp_path).read(np.array([[1, 1, 3], [0, 0, 2], [1, 0, 1]]))
    expected = [*pixels[1:], *images_of(0, 2, SHAPE), pixels[0]]
    assert np.array_equal(rows.images.reshape(-1, *SHAPE), expected)
    assert rows.keys.tolist() == [
        b"a longer key 1",
        b"a longer key 2",
        b"train#00000",
        b"train#00001",
        b"a longer key 0",
    ]
    assert rows.labels.tolist() == [1, 2, 0, 1, 0]
