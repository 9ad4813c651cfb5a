import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.manifest import Feature
from pipeline.records import tf_example
from pipeline.records.tf_example import Layout
from tests.helpers.datasets import encoded, image_of


def test_arrays_are_laid_out_row_by_row_and_only_wanted_features_decoded():
    boxes = np.array([[0.5, 1.25], [2, 3]], np.float32)
    record = tf_example.encode({"label": -3, "boxes": boxes, "ids": np.array([[1, 2], [3, -(2**63)]])})
    found = tf_example.decode(record, ("ids", "nothing", "boxes"))
    assert found.keys() == {"ids", "boxes"}
    assert (found["ids"].dtype, found["ids"].tolist()) == (np.int64, [1, 2, 3, -(2**63)])
    assert (found["boxes"].dtype, found["boxes"].tolist()) == (np.float32, [0.5, 1.25, 2, 3])
    record = tf_example.encode({"weight": np.float32(0.1)})
    assert tf_example.decode(record)["weight"].tolist() == [np.float32(0.1)]


_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_values = st.one_of(
    st.binary(max_size=200),
    st.lists(st.binary(max_size=9), min_size=1, max_size=4),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200).map(lambda v: np.array(v, np.int64)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=200).map(lambda v: np.array(v, np.float32)),
)


@given(st.dictionaries(_names, _values, max_size=6))
def test_serializes_as_tensorflow_does(features):
    theirs = tf.train.Example()
    for name, value in features.items():
        if isinstance(value, bytes | list):
            values = [value] if isinstance(value, bytes) else value
            theirs.features.feature[name].bytes_list.value.extend(values)
        elif isinstance(value, int) or value.dtype == np.int64:
            theirs.features.feature[name].int64_list.value.extend(np.atleast_1d(value).tolist())
        else:
            theirs.features.feature[name].float_list.value.extend(value.tolist())
    assert tf_example.encode(features) == theirs.SerializeToString(deterministic=True)
    found = tf_example.decode(theirs.SerializeToString())
    assert found.keys() == features.keys()
    for name, value in features.items():
        expected = [value] if isinstance(value, bytes | int) else list(value)
        assert list(found[name]) == expected


def test_unpacked_lists_and_features_without_a_value_decode():
    value = b"\x0a\x04\x1a\x02" + b"\x08\x05"  # a map entry's Feature: int64_list with value 5, not packed
    entry = b"\x0a\x01a\x12" + bytes([len(value[2:])]) + value[2:]
    record = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    assert tf_example.decode(record)["a"].tolist() == [5]
    assert tf_example.decode(b"\x0a\x07\x0a\x05\x0a\x01a\x12\x00") == {"a": []}


@pytest.mark.parametrize("record", [b"\xff", b"\x0a\x05ab", b"no example at all", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_example_is_refused_with_its_size(record):
    with pytest.raises(ValueError, match=f" {len(record)} bytes .*Example"):
        tf_example.decode(record)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.zeros(2, np.uint8), "'a': .*uint8"),
        (np.float64(1.5).astype(np.float16), "'a': .*float16"),
        ("text", "'a': str"),
        (None, "'a': NoneType"),
    ],
)
def test_values_that_no_example_holds_are_refused(value, reason):
    with pytest.raises(TypeError, match=reason):
        tf_example.encode({"a": value})


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    ["import tensorflow as tf; ours()", "ours(); import tensorflow as tf"],
)
def test_lives_beside_tensorflows_classes(order):
    code = f"""
from pipeline.records import tf_example
from pipeline.records.tf_example import Layout
ours = lambda: tf_example.decode(tf_example.encode({{"a": 7}}))
{order}
record = tf.train.Example.FromString(tf_example.encode({{"a": 7}})).SerializeToString()
assert tf_example.decode(record)["a"].tolist() == [7] and ours()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def row_of(image, label, key):
    return np.frombuffer(tf_example.encode({"image": image, "label": label, "key": key}), np.uint8)


@given(
    st.one_of(st.integers(1, 4000), st.integers(16_000, 70_000)),
    st.integers(0, 400),
    st.one_of(st.integers(0, 200), st.integers(0, 63).map(lambda bits: (1 << bits) - 1)),
)
@example(128, 127, 9)  # their lengths take two bytes, and one
@example(112, 112, 2**63 - 1)
def test_the_layout_of_a_record_finds_its_features(image_size, key_size, label):
    image, key = np.random.default_rng(image_size).bytes(image_size), b"k" * key_size
    found = row_of(image, label, key)
    layout = Layout.fit(len(found), image_size, -(-max(1, label.bit_length()) // 7))
    assert (found[layout.image].tobytes(), found[layout.key].tobytes()) == (image, key)
    assert layout.labels(found[None]).tolist() == [label]
    assert not layout.mismatch(found[None]).any()


def test_a_record_of_another_structure_is_a_mismatch():
    layout = Layout.build(100, 8)
    rows = np.stack([row_of(bytes(100), 9, bytes(8))] * 4)
    rows[1, 3] ^= 1  # a length in the prefix
    rows[2, layout.label.start] = 200  # a label of two bytes
    rows[3, layout.image.start] = 200  # a pixel: fine
    assert layout.mismatch(rows).tolist() == [False, True, True, False]
    layout = Layout.build(100, 8, 2)
    rows = np.stack([row_of(bytes(100), 200, bytes(8))] * 3)
    rows[1, layout.label.start] = 72  # two labels of one byte
    rows[2, layout.label.stop - 1] = 129  # a label that continues
    assert layout.mismatch(rows).tolist() == [False, True, True]
    assert Layout.fit(50, 100) is None  # smaller than its image


@pytest.mark.parametrize(
    ("name", "feature", "value", "reason"),
    [
        ("box", Feature("float32", (2,)), np.array([1, 2]), "feature 'box' holds int64, the manifest says float32"),
        ("box", Feature("int64", (2,)), b"ab", "feature 'box' holds bytes, the manifest says int64"),
        ("box", Feature("string"), 7, "feature 'box' holds int64, the manifest says string"),
        ("box", Feature("float32", (2,)), np.float32([1]), "feature 'box' has 1 value, the manifest says 2"),
        ("box", Feature("float32", (None, 2)), np.float32([1, 2]), r"has the shape \(None, 2\), and only vectors may"),
        (
            "image",
            Feature("uint8", (1, 1, 3), "png"),
            b"GIF89a",
            "its image is not a PNG or JPEG; it begins with 0x47494638$",
        ),
        (
            "image",
            Feature("uint8", (1, 1, 3), "png"),
            encoded(image_of(0, (9, 9, 3)), "png")[:99],
            "its image cannot be decoded: ",
        ),
        (
            "image",
            Feature("uint8", (1, 1, 3), "raw"),
            b"ab",
            "its image has 2 bytes, not the 3 of 1x1x3",
        ),
    ],
)
def test_a_feature_that_is_not_as_the_manifest_says_is_named(name, feature, value, reason):
    record = tf_example.encode({"label": 0, "image": b"abc", name: value})
    features = {"image": Feature("uint8", (1, 1, 3), "raw"), "label": Feature("int64"), name: feature}
    with pytest.raises(tf_example.BadExampleError, match=f"^.*{reason}"):
        tf_example.example(record, features)
