import dataclasses
import io
import json

import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from beam_jobs.examples.records import make_records
from beam_jobs.shards import tfds_info
from beam_jobs.sources.base import Block
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo, naming
from tests.datasets import images_of, write_dataset


def write_metadata(folder, manifest):
    for name, data in tfds_info.metadata_files(manifest).items():
        (folder / name).write_bytes(data)


def examples(folder, split, **options):
    return list(tfds.as_numpy(tfds.builder_from_directory(str(folder)).as_dataset(split=split, **options)))


def png(array):
    stream = io.BytesIO()
    PIL.Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(stream, "PNG")
    return stream.getvalue()


def write(folder, rows, features, class_names=("a", "b", "c")):
    """Writes one split of one shard as the converter does."""
    name = naming.shard_name("train", 0, 1)
    records = make_records(rows)
    (folder / name).write_bytes(bytes(records.data))
    manifest = Manifest(
        dataset="Made of: 7 things",
        class_names=class_names,
        features={"label": Feature("int64"), "key": Feature("string"), **features},
        splits={"train": SplitInfo((ShardInfo(name, records.count, len(records.data), "0" * 8, records.stride),), ())},
        image_mean=(0.0,),
        image_std=(1.0,),
        source=(),
        options={},
    )
    write_metadata(folder, manifest)
    return manifest


def test_tfds_reads_raw_images_of_many_shards_with_empty_ones(tmp_path):
    manifest = write_dataset(tmp_path, counts=(5, 0, 4, 3), test_counts=(0, 4))
    write_metadata(tmp_path, manifest)
    for split, count in (("train", 12), ("test", 4)):
        found = examples(tmp_path, split)
        assert [each["key"] for each in found] == [f"{split}#{row:05d}".encode() for row in range(count)]
        assert [each["label"] for each in found] == [row % 3 for row in range(count)]
        assert np.array_equal(np.stack([each["image"] for each in found]), images_of(0, count, (8, 6, 3)))
    image, label = examples(tmp_path, "test", as_supervised=True)[3]
    assert (image.shape, label) == ((8, 6, 3), 0)
    info = tfds.builder_from_directory(str(tmp_path)).info
    assert info.features["label"].names == ["class 0", "class 1", "class 2"]
    assert info.splits["train"].shard_lengths == [5, 0, 4, 3]
    assert info.splits["train"].num_bytes == manifest.splits["train"].num_bytes
    assert info.name == "made"


@pytest.mark.parametrize(
    ("encoding", "shape", "channels"),
    [("png", (None, 5, 3), 3), ("any", (None, None, 1), 1), ("png", (None, None, None), 3), ("png", (4, 5, 3), 3)],
)
def test_tfds_reads_encoded_images(tmp_path, encoding, shape, channels):
    heights = [shape[0] or 2 + row for row in range(4)]
    pixels = [images_of(row, 1, (heights[row], 5, channels))[0] for row in range(4)]
    rows = Block([png(image) for image in pixels], np.array([0, 2, 1, 0]), [b"k%d" % row for row in range(4)], {})
    write(tmp_path, rows, {"image": Feature("uint8", shape, encoding)})
    found = examples(tmp_path, "train")
    for each, image in zip(found, pixels, strict=True):
        assert np.array_equal(each["image"], image)
    assert [each["label"] for each in found] == [0, 2, 1, 0]
    assert [each["key"] for each in found] == [b"k0", b"k1", b"k2", b"k3"]


def test_tfds_reads_the_other_features(tmp_path):
    extra = {
        "ids": [np.arange(row) for row in range(3)],
        "box": np.array([[row, 0.5] for row in range(3)], np.float32),
        "weight": np.array([0.25, 1, 2], np.float32),
        "coarse": np.array([1, 0, 1]),
        "image/class/text": [b"one", b"two", b"three"],
    }
    features = {
        "image": Feature("uint8", (2, 2, 1), "raw"),
        "ids": Feature("int64", (None,)),
        "box": Feature("float32", (2,)),
        "weight": Feature("float32"),
        "coarse": Feature("int64", class_names=("x", "y")),
        "image/class/text": Feature("string"),
    }
    rows = Block(images_of(0, 3, (2, 2, 1)), np.array([0, 1, 2]), [b"a", b"b", b"c"], extra)
    write(tmp_path, rows, features)
    found = examples(tmp_path, "train")
    assert [each["ids"].tolist() for each in found] == [[], [0], [0, 1]]
    assert [each["box"].tolist() for each in found] == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert [each["weight"] for each in found] == [0.25, 1, 2]
    assert [each["coarse"] for each in found] == [1, 0, 1]
    assert [each["image/class/text"] for each in found] == [b"one", b"two", b"three"]
    info = tfds.builder_from_directory(str(tmp_path)).info
    assert info.features["coarse"].num_classes == 2
    assert info.name == "made_of_7_things"


@pytest.mark.parametrize("names", [("a", " a", "b"), ("a", "", "b"), ("a", "b\nc", "d")])
def test_names_that_tfds_cannot_hold_are_numbers(tmp_path, names):
    rows = Block(images_of(0, 3, (2, 2, 1)), np.array([0, 1, 2]), [b"a", b"b", b"c"], {})
    manifest = write(tmp_path, rows, {"image": Feature("uint8", (2, 2, 1), "raw")}, names)
    assert "label.labels.txt" not in tfds_info.metadata_files(manifest)
    assert [each["label"] for each in examples(tmp_path, "train")] == [0, 1, 2]


def test_compressed_shards_have_no_such_files(tmp_path):
    manifest = dataclasses.replace(write_dataset(tmp_path), compression="GZIP")
    assert tfds_info.metadata_files(manifest) == {}


@pytest.mark.parametrize(
    ("dataset", "name"), [("tfds:mnist:3.0.1", "mnist_3_0_1"), ("2 cats", "dataset_2_cats"), ("中", "dataset")]
)
def test_names_are_as_tfds_allows_them(tmp_path, dataset, name):
    manifest = dataclasses.replace(write_dataset(tmp_path), dataset=dataset)
    assert json.loads(tfds_info.dataset_info(manifest))["name"] == name
