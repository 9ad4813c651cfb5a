"""Raw images as one matrix, on real files with real damage."""

import dataclasses

import numpy as np
import pytest

from pipeline import input_fn
from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest.splits import select
from pipeline.read.corruption import Corruption
from pipeline.read.rows_reader import RowsReader
from pipeline.read.shards import Shards
from pipeline.records import framing
from pipeline.records.tf_example import encode
from tests.helpers.datasets import Kind, images_of, write_dataset, write_shard
from tests.helpers.raised import at

pytestmark = pytest.mark.usefixtures("engine")

SHAPE = (8, 6, 3)


def reader_of(folder, policy="raise"):
    manifest = manifests.load(folder)
    shards = Shards.found(folder, select(manifest, "train").segments, Corruption(str(folder), policy, most=100))
    return RowsReader.fit(manifest, shards, with_keys=True)


def encoded(image, label, key):
    return encode({"image": image.tobytes(), "label": label, "key": key})


def replace_shards(folder, made, *shards):
    count = sum(shard.num_examples for shard in shards)
    split = dataclasses.replace(made.splits["train"], shards=shards, label_histogram=(count,), image_sizes={})
    (folder / "manifest.json").write_bytes(dataclasses.replace(made, splits={"train": split}).to_bytes())


def shard_of(tmp_path, records):
    """Returns the reader of a data set whose one training shard holds these records."""
    made = write_dataset(tmp_path, (1,))
    frames = [framing.frame(record) for record in records]
    replace_shards(tmp_path, made, write_shard(tmp_path, made.splits["train"].shards[0].file, frames))
    return reader_of(tmp_path)


def images(rows):
    return rows.images.reshape(-1, *SHAPE)


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        (range(28, 128), [b"%05d" % i for i in range(100)]),
        (range(900, 1000), [b"%05d" % i for i in range(100)]),
        ([2**62] * 100, [b"%05d" % i for i in range(100)]),
        ([5, 300] * 50, [b"ab", b"a"] * 50),
        ([3] * 100, [b""] * 100),
        ([128] * 100, [b""] * 100),
        ([0, 127, 128, 999, 16_383, 16_384, -1, 2**63 - 1, 5, 300] * 10, [b"%05d" % i for i in range(100)]),
        ([5, 300] * 50, [b"%d" % i for i in range(100)]),
        ([3] * 100, [b"a\0"] * 99 + [b"a key of 20 bytes \0\0"]),
    ],
    ids=[
        "plain",
        "labels over 127",
        "huge labels",
        "one length by chance",
        "empty keys",
        "empty keys, label 128",
        "mixed labels",
        "keys and labels of several lengths",
        "keys that end with zeros",
    ],
)
def test_labels_and_keys_of_any_length_are_read(tmp_path, labels, keys):
    pixels = images_of(0, 100, SHAPE)
    rows = zip(pixels, labels, keys, strict=True)
    reader = shard_of(tmp_path, [encoded(*row) for row in rows])
    for pieces in ([[0, 0, 100]], [[0, 0, 37], [0, 37, 37], [0, 37, 38], [0, 38, 100]]):
        found = reader.read(np.array(pieces))
        assert np.array_equal(images(found), pixels)
        assert found.labels.tolist() == list(labels)
        assert found.keys.tolist() == list(keys)


def test_mixed_labels_are_unpacked_and_not_parsed(tmp_path, monkeypatch):
    labels = [0, 127, 128, 999, 16_383, 16_384]
    reader = shard_of(tmp_path, [encoded(images_of(0, 1, SHAPE)[0], label, b"k") for label in labels])
    monkeypatch.setattr(RowsReader, "_settle", None)
    assert reader.read(np.array([[0, 0, 6]])).labels.tolist() == labels


@pytest.mark.parametrize(
    "options", [{"streams": 1}, {"streams": 2, "shuffle_bytes": 14 * 144}], ids=["memory", "windows"]
)
@pytest.mark.quick(2)
def test_mixed_labels_are_fed_with_their_images(tmp_path, options):
    labels = [0, 127, 128, 999, 16_383, 16_384] * 8
    pixels = images_of(0, len(labels), SHAPE)
    shard_of(tmp_path, [encoded(*row, b"%d" % i) for i, row in enumerate(zip(pixels, labels, strict=True))])
    batches = input_fn(tmp_path, global_batch_size=4, training=True, epochs=1, features=("key",), **options)
    seen = []
    for rows, found, _ in batches.as_numpy_iterator():
        numbers = [int(key) for key in rows["key"]]
        assert found.tolist() == [labels[number] for number in numbers]
        assert np.array_equal(rows["image"], pixels[numbers])
        seen += numbers
    assert sorted(seen) == [*range(len(labels))]


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_damage_to_a_label_or_a_length_is_named_in_records_of_any_length(tmp_path, policy):
    labels = [3, 300, 70_000] * 3
    records = [encoded(images_of(i, 1, SHAPE)[0], label, b"key") for i, label in enumerate(labels)]
    shard_of(tmp_path, records)
    path = tmp_path / "train-00000-of-00001.tfrecord"
    whole, ends = path.read_bytes(), np.cumsum([len(record) + framing.OVERHEAD for record in records]).tolist()
    for number, label_size in ((3, 1), (4, 2), (5, 3)):
        begin, stop = ends[number - 1], ends[number] - framing.FOOTER
        for place in (begin, begin + 9, begin + framing.HEADER + 1, stop - label_size - 1, stop - label_size, stop - 1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :])
            reader = reader_of(tmp_path, policy)
            if policy == "raise":
                where = at(path.name, "CRC" if place > begin + 12 else "length", record=number, offset=begin)
                with pytest.raises(DataError, check=where):
                    reader.read(np.array([[0, 0, 9]]))
                continue
            found = reader.read(np.array([[0, 0, 9]]))
            assert np.flatnonzero(~found.good).tolist() == [number]
            assert found.labels.tolist() == [*labels[:number], labels[number + 1], *labels[number + 1 :]]


def test_the_features_may_be_in_any_order(tmp_path):
    pixels = images_of(0, 2, SHAPE)
    one, other = (encoded(x, 7, b"k%d" % i) for i, x in enumerate(pixels))
    reader = shard_of(tmp_path, [one, in_another_order(other)])
    found = reader.read(np.array([[0, 0, 2]]))
    assert np.array_equal(images(found), pixels)
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
        (b"\xff" * 158, "158 bytes"),
        (features(image=bytes(143), key=b"kk"), "143 bytes"),
        (features(image=bytes(145), key=b""), "145 bytes"),
        (features(label=np.array([1, 2]), key=b""), "'label' has 2 values"),
        ({"image": bytes(144), "label": 1, "kez": b"k"}, "'key' has 0 values"),
        ({"imagf": bytes(144), "label": 1, "key": b"k"}, "'image' has 0 values"),
    ],
)
def test_a_record_that_is_no_such_example_is_named(tmp_path, record, message):
    good = encode(features())
    bad = record if isinstance(record, bytes) else encode(record)
    if isinstance(record, bytes):
        bad = bad[: len(good)].ljust(len(good), b"\xff")
        message = message.replace("158", str(len(good)))
    assert len(bad) == len(good)
    reader = shard_of(tmp_path, [good, good, bad, good])
    where = at("train-00000-of-00001.tfrecord", message, record=2, offset=2 * (len(good) + 16))
    with pytest.raises(DataError, check=where):
        reader.read(np.array([[0, 0, 4]]))
    assert reader.read(np.array([[0, 3, 4]])).keys.tolist() == [b"k"]


@pytest.mark.parametrize(
    "kind",
    [Kind(extra=True), Kind("png"), Kind(compression="GZIP")],
    ids=["more features", "PNG", "GZIP"],
)
def test_what_has_no_raw_images_and_places_alone_is_not_for_this_reader(tmp_path, kind):
    write_dataset(tmp_path, (12,), kind=kind)
    assert reader_of(tmp_path) is None


def test_shards_of_different_strides_are_one_matrix(tmp_path):
    made = write_dataset(tmp_path, (5, 3))
    pixels = images_of(20, 3, SHAPE)
    first, second = made.splits["train"].shards
    records = [framing.frame(encoded(pixels[i], i, b"a longer key %d" % i)) for i in range(3)]
    replace_shards(tmp_path, made, first, write_shard(tmp_path, second.file, records))
    rows = reader_of(tmp_path).read(np.array([[1, 1, 3], [0, 0, 2], [1, 0, 1]]))
    expected = [*pixels[1:], *images_of(0, 2, SHAPE), pixels[0]]
    assert np.array_equal(images(rows), expected)
    assert rows.keys.tolist() == [
        b"a longer key 1",
        b"a longer key 2",
        b"train#00000",
        b"train#00001",
        b"a longer key 0",
    ]
    assert rows.labels.tolist() == [1, 2, 0, 1, 0]
