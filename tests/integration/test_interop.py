"""The shards as other readers see them, and other writers' records as the converter sees them."""

import json
import os
import pickle

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from beam_jobs import sources
from beam_jobs.convert import main
from beam_jobs.shards import manifest_writer
from beam_jobs.sources.base import SourceOptions
from pipeline import images, manifest
from pipeline.manifest import naming
from pipeline.read.sidecars import shard_members
from pipeline.records import members
from tests.helpers import forked
from tests.helpers.converting import convert_in_process
from tests.helpers.datasets import Kind, write_dataset

SHAPE = (28, 28, 1)


def convert(dataset, out, *flags, source=""):
    where = [f"--source={source}"] if source else []
    main([f"--dataset={dataset}", f"--data_dir={out}", *where, *flags])
    return out


@pytest.fixture(scope="module")
def truth():
    """{split: {key: (label, pixels)}} of the digits, as their source reads them."""
    source = sources.open_source(SourceOptions("digits"))
    blocks = {split: source.read(split, np.arange(count)) for split, count in source.splits.items()}
    return {
        split: {
            key: (label, image.tobytes())
            for key, label, image in zip(block.keys.tolist(), block.labels.tolist(), block.images, strict=True)
        }
        for split, block in blocks.items()
    }


@pytest.fixture(scope="module", params=["raw", "png", "raw GZIP"])
def converted(request, tmp_path_factory):
    encoding, _, compression = request.param.partition(" ")
    out = tmp_path_factory.mktemp("digits")
    flags = [f"--image_encoding={encoding}", f"--compression={compression}", "--num_shards=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "MEMBER_BYTES", 50_000)  # so that even a small shard has several
        convert_in_process("--dataset=digits", f"--data_dir={out}", *flags)
    if compression:
        assert len(shard_members(str(out), manifest.load(out).split("test").shards[0]).firsts) - 1 == 4
    return out


def pixels(image):
    """Returns the bytes of an image's pixels, of a PNG file or of themselves."""
    return images.pixels(images.open_file(image)).tobytes() if image.startswith(b"\x89PNG") else image


def shard_files(folder, split):
    return [str(folder / shard.file) for shard in manifest.load(folder).split(split).shards]


def parse(records):
    scalar = {"image": tf.string, "label": tf.int64, "key": tf.string}
    parsed = tf.io.parse_example(records, {name: tf.io.FixedLenFeature([], dtype) for name, dtype in scalar.items()})
    rows = zip(*(parsed[name].numpy().tolist() for name in ("key", "label", "image")), strict=True)
    return {key: (label, pixels(image)) for key, label, image in rows}


def examples(folder, split):
    """Returns {key: (label, pixels)} of a split, as plain tf.data reads it."""
    compression = manifest.load(folder).compression
    data = tf.data.TFRecordDataset(shard_files(folder, split), compression_type=compression)
    return parse(data.batch(10_000).get_single_element())


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.quick(3)
@pytest.mark.quick(1)
def test_tf_data_reads_them(converted, truth, split):
    assert examples(converted, split) == truth[split]


def test_beam_reads_them(converted, truth, tmp_path):
    suffix = naming.COMPRESSIONS[manifest.load(converted).compression]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | beam.io.ReadFromTFRecord(str(converted / f"test-*.tfrecord{suffix}"))
            | beam.combiners.ToList()
            | beam.Map(lambda records: (tmp_path / "records").write_bytes(pickle.dumps(records)))
        )
    assert parse(pickle.loads((tmp_path / "records").read_bytes())) == truth["test"]


def test_the_package_tfrecord_reads_them(converted, truth, tmp_path):
    # In a separate process, since it registers TensorFlow's messages a second time.
    code = f"""
import pickle
import tfrecord
found = []
for path in {shard_files(converted, "test")}:
    kinds = {{"image": "byte", "label": "int", "key": "byte"}}
    pack = "gzip" if path.endswith(".gz") else None
    for each in tfrecord.tfrecord_loader(path, None, kinds, compression_type=pack):
        found.append((bytes(each["key"]), int(each["label"][0]), bytes(each["image"])))
open({str(tmp_path / "found")!r}, "wb").write(pickle.dumps(found))
"""
    done = forked.fresh(["-c", code])
    assert done.returncode == 0, done.stderr
    found = pickle.loads((tmp_path / "found").read_bytes())
    assert {key: (label, pixels(image)) for key, label, image in found} == truth["test"]


def test_tensorflow_datasets_reads_them(converted, truth):
    if manifest.load(converted).compression:  # which TFDS does not read
        assert not (converted / manifest_writer.TFDS_FEATURES).exists()
        return
    builder = tfds.builder_from_directory(str(converted))
    for split, expected in truth.items():
        found = tfds.as_numpy(builder.as_dataset(split=split))
        assert {each["key"]: (each["label"], each["image"].tobytes()) for each in found} == expected
    assert builder.info.features["label"].names == list("0123456789")
    assert builder.info.splits["train"].shard_lengths == [714, 715]


def test_a_data_set_of_ours_is_resharded_and_encoded_again(converted, truth, tmp_path):
    flags = ("--image_encoding=raw", "--num_shards=3", "--seed=7")
    out = convert("tfrecord", tmp_path / "again", *flags, source=converted)
    assert {split: examples(out, split) for split in truth} == truth
    made, first = manifest.load(out), manifest.load(converted)
    assert (made.dataset, made.class_names, made.image_mean) == ("digits", first.class_names, first.image_mean)
    assert [len(split.shards) for split in made.splits.values()] == [3, 3]
    assert [(file.file, file.sha256) for file in made.source] == [("manifest.json", first.digest)]


def write_book(folder, count):
    """Writes MNIST-like records as `convert_to_records` of the TensorFlow book's examples does."""
    images_of = {}
    for split, rows in (("train", range(count)), ("validation", range(count, count + 10))):
        with tf.io.TFRecordWriter(str(folder / f"{split}.tfrecords")) as writer:
            for row in rows:
                image = np.random.default_rng(row).integers(0, 256, SHAPE, np.uint8)
                images_of[f"{split}.tfrecords#{row if split == 'train' else row - count:04d}".encode()] = image
                values = {"height": 28, "width": 28, "depth": 1, "label": row % 10, "image_raw": image.tobytes()}
                features = {
                    name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                    if isinstance(value, bytes)
                    else tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                    for name, value in values.items()
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return images_of


@pytest.mark.parametrize(
    "flags", [(), ("--passes=2",), ("--feature_map=image:image_raw,label:label", "--num_shards=2")]
)
def test_records_of_the_tensorflow_book_are_converted(tmp_path, flags):
    book = tmp_path / "book"
    book.mkdir()
    images_of = write_book(book, 1500)
    out = convert("tfrecord", tmp_path / "out", *flags, source=book)
    train = examples(out, "train")
    assert len(train) == 1500
    for key, (label, image) in train.items():
        assert image == images_of[key].tobytes()
        assert label == int(key.split(b"#")[1]) % 10
    assert {name: split.num_examples for name, split in manifest.load(out).splits.items()} == {
        "train": 1500,
        "validation": 10,
    }


def test_records_that_are_no_examples_are_listed(tmp_path):
    write_book(tmp_path, 30)
    with tf.io.TFRecordWriter(str(tmp_path / "train-more.tfrecords")) as writer:
        writer.write(tf.train.Example().SerializeToString())
    out = convert("tfrecord", tmp_path / "out", "--max_rejects=1", source=tmp_path)
    rejects = [json.loads(line) for line in (out / naming.REJECTS).read_text().splitlines()]
    assert [(each["file"], each["row"], each["reason"]) for each in rejects] == [
        ("train-more.tfrecords", 0, "there is no feature 'image_raw'")
    ]
    assert manifest.load(out).split("train").num_examples == 30


@pytest.mark.parametrize("pattern", ["train-*", "*.tfrecord*", "**/train-*", "**/*.tfrecord*"])
@pytest.mark.parametrize(
    "kind",
    [
        Kind(),
        Kind("jpeg", unequal_keys=True),
        Kind(compression="GZIP", members=4),
        Kind("jpeg", compression="GZIP", members=4),
    ],
    ids=["raw", "JPEG", "raw GZIP", "JPEG GZIP"],
)
def test_patterns_that_everybody_uses_match_the_shards_alone(tmp_path, kind, pattern):
    made = write_dataset(tmp_path, (5, 0, 4, 3), kind=kind)
    assert len(list((tmp_path / "sidecars").iterdir())) >= 4
    found = tf.io.gfile.glob(f"{tmp_path}/{pattern}") if "**" not in pattern else map(str, tmp_path.glob(pattern))
    shards = made.splits["train"].shards if "train" in pattern else made.shards
    records = list(tf.data.TFRecordDataset(sorted(found), kind.compression))
    assert len(records) == sum(shard.num_examples for shard in shards)


@pytest.mark.parametrize("flags", [[], ["--compression=GZIP"], ["--image_encoding=png"]])
def test_what_the_converter_writes_is_opened_by_patterns(tmp_path, flags):
    made = manifest.load(convert_in_process("--dataset=digits", f"--data_dir={tmp_path / 'made'}", *flags))
    for pattern, shards in (("train-*", made.splits["train"].shards), ("*.tfrecord*", made.shards)):
        found = sorted(map(str, (tmp_path / "made").glob(pattern)))
        assert [os.path.basename(path) for path in found] == sorted(shard.file for shard in shards)
        records = list(tf.data.TFRecordDataset(found, made.compression))
        assert len(records) == sum(shard.num_examples for shard in shards)
