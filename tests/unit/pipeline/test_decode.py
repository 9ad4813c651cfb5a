"""Decoding by columns and one by one, against the values that were written."""

import numpy as np
import pytest

from pipeline import example, example_proto, framing
from pipeline.decode import decode_shard
from pipeline.errors import DataError
from pipeline.manifest import ShardInfo

SHAPE = (4, 5, 3)


def images(count):
    return np.random.default_rng(count).integers(0, 256, (count, *SHAPE), np.uint8)


def shard_of(records, stride):
    """Returns (bytes, entry of the manifest) of a shard; `stride` says whether the entry has one."""
    framed = [framing.frame(record) for record in records]
    data = np.frombuffer(b"".join(framed), np.uint8)
    length = (len(framed[0]) if framed else 0) if stride else None
    return data, ShardInfo("train-00000-of-00001.tfrecord", len(framed), len(data), "0" * 8, length)


def records_of(pixels, labels, keys, **more):
    columns = zip(pixels, labels, keys, strict=True)
    return [
        example_proto.encode({"image": x.tobytes(), "label": y, "key": key, **{name: v[i] for name, v in more.items()}})
        for i, (x, y, key) in enumerate(columns)
    ]


def keys_of(count):
    return [b"train.bin#%05d" % i for i in range(count)]


@pytest.mark.parametrize(
    ("labels", "keys", "more", "stride"),
    [
        (range(100), keys_of(100), {}, True),
        (range(100), keys_of(100), {}, False),
        (range(100), keys_of(100), {"coarse_label": range(100)}, True),
        (range(100), keys_of(100), {"box": [np.arange(i, dtype=np.float32) for i in range(100)]}, False),
        (range(78, 178), keys_of(100), {}, False),
        (range(900, 1000), keys_of(100), {}, True),
        ([0, 2**63 - 1] * 50, [b"a" * 15, b"a" * 7] * 50, {}, False),
        ([5, 300] * 50, [b"ab", b"a"] * 50, {}, True),
        (range(100), [b"%d" % i for i in range(100)], {}, False),
        ([3] * 100, [b""] * 100, {}, True),
    ],
    ids=["plain", "plain, no stride", "another feature", "features of many lengths", "labels over 127",
         "labels over 127 only", "a huge label", "one length by chance", "keys of two lengths", "empty keys"],
)  # fmt: skip
def test_what_was_written_is_read(labels, keys, more, stride):
    pixels = images(100)
    data, shard = shard_of(records_of(pixels, labels, keys, **more), stride)
    found = decode_shard(data, shard, SHAPE)
    assert np.array_equal(found.images, pixels)
    assert found.images.dtype == np.uint8
    assert found.labels.tolist() == list(labels)
    assert found.labels.dtype == np.int64
    assert found.keys.tolist() == list(keys)


def test_columns_are_taken_where_there_is_one_layout():
    pixels = images(10)
    data, shard = shard_of([example.encode(x.tobytes(), 7, b"k%d" % i) for i, x in enumerate(pixels)], True)
    assert np.shares_memory(decode_shard(data, shard, SHAPE).images, data)
    data, shard = shard_of(records_of(pixels, [1000] * 10, keys_of(10)), True)
    assert not np.shares_memory(decode_shard(data, shard, SHAPE).images, data)


@pytest.mark.parametrize("stride", [True, False])
def test_an_empty_shard_is_no_example(stride):
    data, shard = shard_of([], stride)
    found = decode_shard(data, shard, SHAPE)
    assert (found.images.shape, found.labels.shape, found.keys.shape) == ((0, *SHAPE), (0,), (0,))


def features(**changes):
    return {"image": bytes(60), "label": 1, "key": b"k"} | changes


def without(name):
    return {feature: value for feature, value in features().items() if feature != name}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\xff" * 20, "these 20 bytes are no serialized tf.train.Example"),
        (features(image=bytes(59)), r"its image has 59 bytes, not the 60 of raw pixels of shape \(4, 5, 3\)"),
        (features(image=[bytes(60), bytes(60)]), "not an Example with one image, one int64 label and one key"),
        (features(image=1), "not an Example with one image"),
        (features(label=np.array([1.0], np.float32)), "one int64 label"),
        (features(label=np.array([1, 2])), "one int64 label"),
        (features(key=np.array([1])), "one int64 label and one key"),
        (without("image"), "not an Example with one image"),
        (without("label"), "one int64 label"),
        (without("key"), "and one key"),
        ({}, "not an Example"),
    ],
)
@pytest.mark.parametrize("stride", [True, False])
def test_a_record_that_is_no_such_example_is_named(record, message, stride):
    bad = record if isinstance(record, bytes) else example_proto.encode(record)
    good = example_proto.encode(features())
    count = 1 if stride else 4
    data, shard = shard_of([good, good, bad, good] if count == 4 else [bad], stride)
    number, offset = (2, 2 * (len(good) + 16)) if count == 4 else (0, 0)
    with pytest.raises(
        DataError, match=rf"^train-00000-of-00001\.tfrecord, record {number}, byte offset {offset}: .*{message}"
    ):
        decode_shard(data, shard, SHAPE)


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20, 85, 90, 99, 100])
def test_records_that_are_fewer_than_the_manifest_says_are_an_error(cut):
    data, shard = shard_of(records_of(images(3), [1, 2, 300], [b"a", b"bb", b"ccc"]), False)
    with pytest.raises(DataError, match=r"record [12], byte offset \d+: the file ends inside the record"):
        decode_shard(data[:-cut], shard, SHAPE)


def test_more_records_than_the_manifest_says_are_an_error():
    data, shard = shard_of(records_of(images(3), [1, 2, 300], [b"a", b"bb", b"ccc"]), False)
    more = np.concatenate([data, data[:10]])
    with pytest.raises(DataError, match=rf"its 3 records end at byte offset {len(data)} of {len(data) + 10}"):
        decode_shard(more, shard, SHAPE)
