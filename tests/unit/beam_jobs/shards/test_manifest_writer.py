import dataclasses
import io
import json
import random
from collections import Counter

import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from beam_jobs.examples import columns
from beam_jobs.examples.records import make_records
from beam_jobs.plan import Origin
from beam_jobs.shards import manifest_writer, writer
from beam_jobs.sources.base import Block
from pipeline import images, manifest
from pipeline.errors import DataError
from pipeline.manifest import Feature, Manifest, ShardInfo, SourceFile, SplitInfo, naming
from pipeline.manifest.manifest import size_histogram
from tests.helpers.datasets import images_of, write_dataset
from tests.helpers.made_source import Content
from tests.helpers.raised import at


def receipts_of(plan):
    return list(writer.write_shards(plan, plan.elements))


@pytest.fixture
def converted(plan_of, pixels):
    content = {"train": Content(pixels(50)), "test": Content(pixels(20, seed=1))}
    plan = plan_of(content, num_shards="3")
    return plan, receipts_of(plan)


def test_the_manifest_does_not_depend_on_the_order_of_receipts_or_on_doubles(converted):
    plan, receipts = converted
    expected = manifest_writer.write_manifest(plan, receipts).read_bytes()
    for seed in range(5):
        mixed = receipts + receipts[:2]
        random.Random(seed).shuffle(mixed)
        assert manifest_writer.write_manifest(plan, iter(mixed)).read_bytes() == expected


def test_a_missing_receipt_is_an_error(converted, tmp_path):
    plan, receipts = converted
    message = r"train-00001-of-00003.tfrecord: no worker reported it as written \(1 missing\)"
    with pytest.raises(DataError, match=message):
        manifest_writer.write_manifest(plan, receipts[:1] + receipts[2:])
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_two_different_receipts_of_one_shard_are_an_error(converted, tmp_path):
    plan, receipts = converted
    other = dataclasses.replace(receipts[0], info=dataclasses.replace(receipts[0].info, crc32c="00000000"))
    with pytest.raises(DataError, check=at("train-00000-of-00003.tfrecord", "twice")):
        manifest_writer.write_manifest(plan, [*receipts, other])
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_manifest_of_a_second_pass_says_at_once_where_its_rows_came_from(converted, tmp_path):
    plan, receipts = converted
    (tmp_path / "out" / "rejects.jsonl").write_bytes(b"of the first pass")
    origin = Origin((SourceFile("a.parquet", 7, "0" * 64),), {"train": 2})
    made = manifest.load(manifest_writer.write_manifest(dataclasses.replace(plan, origin=origin), receipts).parent)
    assert made.source == origin.files
    assert {name: split.num_rejects for name, split in made.splits.items()} == {"train": 2, "test": 0}
    assert (tmp_path / "out" / "rejects.jsonl").read_bytes() == b"of the first pass"


def test_the_manifest_is_true_of_the_rows(converted, pixels):
    plan, receipts = converted
    made = manifest.load(manifest_writer.write_manifest(plan, receipts).parent)
    assert made.dataset == "made"
    assert made.features["image"] == Feature("uint8", (6, 5, 3), "raw")
    assert {name: split.num_examples for name, split in made.splits.items()} == {"train": 50, "test": 20}
    assert made.splits["test"].label_histogram == (2,) * 10
    assert made.splits["test"].image_sizes == {"6x5": 20}
    values = pixels(50).reshape(-1, 3).astype(np.float64)  # of the training images alone
    np.testing.assert_allclose(made.image_mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(made.image_std, values.std(axis=0), rtol=1e-12)
    assert made.source == plan.source.files
    assert made.options == {"num_shards": {"train": 3, "test": 3}, "seed": 0}


def test_without_a_training_split_statistics_are_of_all(plan_of, pixels):
    content = {"a": Content(pixels(5)), "b": Content(pixels(8, seed=1))}
    plan = plan_of(content)
    made = manifest_writer.make_manifest(plan, receipts_of(plan))
    values = np.concatenate([pixels(5), pixels(8, seed=1)]).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(made.image_mean, values.mean(axis=0), rtol=1e-12)


def encoded(pixels, *sizes_and_kinds):
    return [images.encoded(pixels(1, size, seed=i)[0], kind) for i, (size, kind) in enumerate(sizes_and_kinds)]


@pytest.mark.parametrize(
    ("stored", "feature"),
    [
        ([((8, 6, 3), "png")] * 2, Feature("uint8", (8, 6, 3), "png")),
        ([((8, 6, 3), "png"), ((8, 6, 3), "jpeg")], Feature("uint8", (8, 6, 3), "any")),
        ([((8, 6, 3), "jpeg"), ((8, 7, 3), "jpeg")], Feature("uint8", (8, None, 3), "jpeg")),
        ([((8, 6, 3), "png"), ((9, 7, 1), "png")], Feature("uint8", (None, None, None), "png")),
    ],
)
def test_the_images_are_described_as_they_are(stored, feature, plan_of, pixels):
    plan = plan_of({"train": Content(encoded(pixels, *stored))})
    made = manifest_writer.make_manifest(plan, receipts_of(plan))
    assert made.features["image"] == feature
    written = manifest.load(manifest_writer.write_manifest(plan, receipts_of(plan)).parent)
    assert dataclasses.replace(written, columns={}) == made
    sizes = {"height", "width"} if None in feature.shape[:2] else set()
    assert written.columns.keys() == {"bytes", "label", *sizes}


def test_each_column_is_written_before_the_next_is_made(converted, monkeypatch):
    plan, receipts = converted
    seen, joined = [], columns.joined

    def watched(*arguments):
        for found in joined(*arguments):
            seen.append(sorted(path.name.split(".")[1] for path in (plan.data_dir / naming.COLUMNS).glob("*.npy")))
            yield found

    monkeypatch.setattr(columns, "joined", watched)
    manifest_writer.write_manifest(plan, receipts)
    assert seen == [[], ["bytes", "bytes"]]  # and then the labels


def test_image_sizes_are_counted_and_of_very_many_rounded_up():
    exact = Counter({(i, 10): i for i in range(1, 101)})
    assert size_histogram(exact) == {f"{i}x10": i for i in range(1, 101)}
    many = Counter({(i, 65): 2 for i in range(1, 129)})
    assert size_histogram(many) == {"64x128": 128, "128x128": 128}


def test_a_split_of_rejects_only_is_an_error(converted, tmp_path):
    plan, receipts = converted
    emptied = [
        dataclasses.replace(each, info=dataclasses.replace(each.info, num_examples=0)) if each.split == "test" else each
        for each in receipts
    ]
    with pytest.raises(DataError, match=r"'test': .*rejects.jsonl"):
        manifest_writer.write_manifest(plan, emptied)
    assert not (tmp_path / "out" / "manifest.json").exists()


def write_metadata(folder, manifest):
    for name, data in manifest_writer.tfds_files(manifest).items():
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
    assert "label.labels.txt" not in manifest_writer.tfds_files(manifest)
    assert [each["label"] for each in examples(tmp_path, "train")] == [0, 1, 2]


def test_compressed_shards_have_no_such_files(tmp_path):
    manifest = dataclasses.replace(write_dataset(tmp_path), compression="GZIP")
    assert manifest_writer.tfds_files(manifest) == {}


@pytest.mark.parametrize(
    ("dataset", "name"), [("tfds:mnist:3.0.1", "mnist_3_0_1"), ("2 cats", "dataset_2_cats"), ("中", "dataset")]
)
def test_names_are_as_tfds_allows_them(tmp_path, dataset, name):
    manifest = dataclasses.replace(write_dataset(tmp_path), dataset=dataset)
    assert json.loads(manifest_writer.tfds_dataset_info(manifest))["name"] == name
