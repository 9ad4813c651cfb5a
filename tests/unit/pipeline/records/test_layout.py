import numpy as np
import pytest

from pipeline.records.tf_example import Layout, encode


def record(image, label, key):
    return np.frombuffer(encode({"image": image, "label": label, "key": key}), np.uint8)


@pytest.mark.parametrize("image_size", [1, 100, 127, 128, 784, 3072, 70_000])
@pytest.mark.parametrize("key_size", [0, 1, 20, 127, 128, 300])
def test_the_layout_of_a_record_finds_its_features(image_size, key_size):
    image, key = np.random.default_rng(image_size).bytes(image_size), b"k" * key_size
    found = record(image, 9, key)
    layout = Layout.fit(len(found), image_size)
    assert found[layout.image].tobytes() == image
    assert found[layout.key].tobytes() == key
    assert found[layout.label].tolist() == [9]
    assert not layout.mismatch(found[None]).any()


def test_a_record_of_another_structure_is_a_mismatch():
    layout = Layout.build(100, 8)
    rows = np.stack([record(bytes(100), 9, bytes(8))] * 4)
    rows[1, 3] ^= 1  # a length in the prefix
    rows[2, layout.label.start] = 200  # a label of two bytes
    rows[3, layout.image.start] = 200  # a pixel: fine
    assert layout.mismatch(rows).tolist() == [False, True, True, False]


def test_no_layout_fits_a_record_smaller_than_its_image():
    assert Layout.fit(50, 100) is None
