import gzip
import io

import numpy as np
import pytest

from beam_jobs.examples.records import compressed, make_records
from beam_jobs.sources.base import Block
from pipeline.records import framing, tf_example
from pipeline.records.tf_example import Layout

# Two records of a 2x2x1 image, written out by the recipe of `by_tensorflow`.
GOLDEN = (
    "3a000000000000001295eae20a380a110a05696d61676512080a060a04000102030a130a036b6579120c0a0a0a08612e6269"
    "6e2330300a0e0a056c6162656c12051a030a01055e7c61aa3a000000000000001295eae20a380a110a05696d61676512080a"
    "060a04fcfdfeff0a130a036b6579120c0a0a0a08612e62696e2330310a0e0a056c6162656c12051a030a017f02765ac1"
)


def rows(images, labels=None, keys=None, extra=None):
    count = len(images)
    keys = np.array([b"a.bin#%03d" % i for i in range(count)]) if keys is None else keys
    labels = np.arange(count) % 128 if labels is None else np.asarray(labels, np.int64)
    return Block(images, labels, keys, extra or {})


def as_lists(given):
    """Returns the same examples in a form that has no common layout."""
    images = [image.tobytes() for image in given.images]
    return Block(images, given.labels, [bytes(key) for key in given.keys], given.extra)


def by_tensorflow(given, path):
    """Returns the bytes that TensorFlow's writer makes of deterministically serialized examples."""
    tf = pytest.importorskip("tensorflow")

    def feature(value):
        values = np.atleast_1d(value) if not isinstance(value, list | bytes) else value
        if isinstance(values, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values]))
        if isinstance(values, list):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if values.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values.tolist()))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.tolist()))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row, image in enumerate(given.images):
            features = {name: feature(values[row]) for name, values in given.extra.items()}
            features["image"] = feature(image if isinstance(image, bytes) else image.tobytes())
            features["label"] = feature(given.labels[row])
            features["key"] = feature(bytes(given.keys[row]))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString(deterministic=True))
    return path.read_bytes()


def test_golden_bytes():
    images = np.array([[0, 1, 2, 3], [252, 253, 254, 255]], np.uint8).reshape(2, 2, 2, 1)
    made = make_records(rows(images, [5, 127], np.array([b"a.bin#00", b"a.bin#01"])))
    assert bytes(made.data).hex() == GOLDEN
    assert (made.count, made.stride, made.offsets) == (2, 74, None)


CASES = {
    "one layout": {},
    "one row": {"count": 1},
    "labels over 127": {"labels": [0, 127, 128, 300, 2**31, 2**40]},
    "all labels over 127": {"labels": [128, 129, 130, 131, 132, 16_383]},
    "keys of unequal length": {"keys": np.array([b"k", b"kk", b"kkk", b"kkkk", b"kkkkk", b"kkkkkk"])},
    "keys with NULs inside": {"keys": np.array([b"a\0%d" % i for i in range(6)])},
    "keys with NULs at the end": {"keys": [b"a" + b"\0" * i for i in range(6)]},
    "an empty key": {"keys": [b"", b"a", b"b", b"c", b"d", b"e"]},
    "keys of any bytes": {"keys": [bytes([255 - i, 0, i, 128]) for i in range(6)]},
    "long keys": {"keys": np.array([b"k" * 200 + b"%d" % i for i in range(6)])},
    "other features": {
        "extra": {
            "weight": [np.float32(0.1) * i for i in range(6)],
            "a_first": [np.int64(-i) for i in range(6)],
            "zz": [b"text %d" % i for i in range(6)],
            "box": [np.arange(4, dtype=np.float32) / (i + 1) for i in range(6)],
            "ids": [np.arange(i, dtype=np.int64) * -(2**40) for i in range(1, 7)],
            "words": [[b"a"] * (i + 1) for i in range(6)],
        }
    },
    "columns of other features": {
        "extra": {
            "weight": np.linspace(0, 1, 6, dtype=np.float32),
            "number": np.arange(6) - 3,
            "box": np.arange(24, dtype=np.float32).reshape(6, 4),
        }
    },
}


@pytest.mark.parametrize("shape", [(2, 2, 1), (28, 28, 1), (32, 32, 3)])
@pytest.mark.parametrize("case", CASES)
def test_records_are_as_tensorflow_writes_them_on_both_paths(case, shape, tmp_path, pixels):
    options = dict(CASES[case])
    given = rows(pixels(options.pop("count", 6), shape), **options)
    expected = by_tensorflow(given, tmp_path / "records")
    made, general = make_records(given), make_records(as_lists(given))
    assert bytes(made.data) == bytes(general.data) == expected
    assert made.count == general.count == len(given.labels)
    assert made.stride == general.stride
    assert (made.offsets is None) == (made.stride is not None)
    places = [offset for offset, _, _ in framing.records(io.BytesIO(expected).read, "x")]
    if made.stride is None:
        assert made.offsets.dtype == np.dtype("<u8")
        assert made.offsets.tolist() == general.offsets.tolist() == [*places, len(expected)]
    else:
        assert places == [made.stride * i for i in range(made.count)]


@pytest.mark.parametrize("labels", [np.arange(3000) * 7 % 1000, np.arange(3000) // 1500 * 200], ids=["mixed", "sorted"])
def test_labels_of_one_and_two_bytes_are_no_reason_to_encode_each_record(labels, pixels, monkeypatch):
    given = rows(pixels(3000, (28, 28, 1)), labels, np.array([b"k%04d" % i for i in range(3000)]))
    general = make_records(as_lists(given))
    for size in (1, 2):
        Layout.build(784, 5, size)  # encodes a record for its template, and is kept
    monkeypatch.setattr(tf_example, "encode", None)
    made = make_records(given)
    assert made.data == general.data
    assert made.crcs.tolist() == general.crcs.tolist()
    assert made.stride is None
    assert made.offsets.tolist() == general.offsets.tolist()


def test_images_and_keys_that_are_views_of_something_else(pixels):
    columns = np.zeros(6, np.dtype([("key", "S4"), ("other", "<i8")]))
    columns["key"] = [b"k%03d" % i for i in range(6)]
    turned = pixels(6, (3, 7, 5)).transpose(0, 2, 3, 1)  # channel by channel, as CIFAR has them
    copied = rows(np.ascontiguousarray(turned), keys=columns["key"].copy())
    assert make_records(rows(turned, keys=columns["key"])).data == make_records(copied).data


def test_no_records():
    made = make_records(rows(np.zeros((0, 2, 2, 1), np.uint8), keys=np.zeros(0, "S1")))
    assert (bytes(made.data), made.count) == (b"", 0)


@pytest.mark.parametrize("shape", [(28, 28, 1), (600, 800, 3)])
@pytest.mark.quick(1)
def test_pieces_of_a_large_shard_are_those_of_the_whole(shape, pixels):
    count = 3_000_000 // int(np.prod(shape))
    given = rows(pixels(count, shape), keys=np.array([b"k%05d" % i for i in range(count)]))
    made, general = make_records(given), make_records(as_lists(given))
    for records_ in (made, general, compressed(made), compressed(general)):
        pieces = list(records_.blocks())
        assert b"".join(bytes(piece) for piece in pieces) == records_.data
        assert records_.num_bytes == made.stride * count
        assert list(map(bytes, records_.blocks())) == list(map(bytes, pieces))  # made anew, not used up
    assert made.data == general.data
    assert compressed(made).data == compressed(general).data
    assert max(len(piece) for piece in made.blocks()) <= max(2 << 20, made.stride)


def test_a_compressed_shard_has_no_time_in_it_and_can_be_read(tmp_path, pixels):
    tf = pytest.importorskip("tensorflow")
    plain = make_records(rows(pixels(50, (28, 28, 1)) // 64))
    packed = compressed(plain)
    assert (packed.count, packed.stride, packed.offsets) == (50, plain.stride, None)
    # The header: gzip, deflate, no name, no comment; no time.
    assert packed.data[:8] == b"\x1f\x8b\x08\x00" + bytes(4)
    assert gzip.decompress(packed.data) == bytes(plain.data)
    assert len(packed.data) < 0.6 * len(plain.data)
    path = tmp_path / "x.tfrecord.gz"
    path.write_bytes(packed.data)
    found = [record.numpy() for record in tf.data.TFRecordDataset(str(path), compression_type="GZIP")]
    assert found == [record for _, _, record in framing.records(io.BytesIO(bytes(plain.data)).read, "x")]
