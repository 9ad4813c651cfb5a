import numpy as np
import pytest
import tensorflow as tf

from pipeline.records import layout as example
from pipeline.records.layout import Layout


def tensorflow_bytes(image: bytes, label: int, key: bytes) -> bytes:
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[key])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)


@pytest.mark.parametrize("image_size", [0, 1, 100, 127, 128, 784, 3072, 70_000])
@pytest.mark.parametrize("key_size", [0, 1, 20, 127, 128, 300])
def test_bytes_are_tensorflows_and_the_layout_finds_the_features(image_size, key_size):
    image, key = np.random.default_rng(image_size).bytes(image_size), b"k" * key_size
    for label in (0, 9, 127, 128, 300, 1 << 40):
        assert example.encode(image, label, key) == tensorflow_bytes(image, label, key)
    record = np.frombuffer(example.encode(image, 9, key), np.uint8)
    layout = Layout.fit(len(record), image_size)
    assert record[layout.image].tobytes() == image
    assert record[layout.key].tobytes() == key
    assert record[layout.label].tolist() == [9]
    assert not layout.mismatch(record[None]).any()


def test_a_record_of_another_structure_is_a_mismatch():
    layout = Layout.build(100, 8)
    good = np.frombuffer(example.encode(bytes(100), 9, bytes(8)), np.uint8)
    rows = np.stack([good] * 4)
    rows[1, 3] ^= 1  # a length in the prefix
    rows[2, layout.label.start] = 200  # a label of two bytes
    rows[3, layout.image.start] = 200  # a pixel: fine
    assert layout.mismatch(rows).tolist() == [False, True, True, False]


def test_no_layout_fits_a_record_smaller_than_its_image():
    assert Layout.fit(50, 100) is None
