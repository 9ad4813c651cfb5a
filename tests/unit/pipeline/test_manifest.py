import dataclasses
import json

import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from tests.datasets import write_dataset


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path)
    return tmp_path


def edit(folder, change):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_manifest_reads_back_as_it_was_written(folder):
    written = write_dataset(folder)
    read = manifests.load(folder)
    assert read == written
    assert read.digest == written.digest
    assert read.splits["train"].num_examples == 12
    assert read.splits["train"].num_bytes == sum(p.stat().st_size for p in folder.glob("train-*"))
    assert read.image_shape == (8, 6, 3)


def test_the_digest_changes_with_every_field(folder):
    one = manifests.load(folder)
    assert dataclasses.replace(one, dataset="other").digest != one.digest
    assert dataclasses.replace(one, options={"seed": 1}).digest != one.digest


def test_no_manifest_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match=r"no manifest.*python -m beam_jobs.convert"):
        manifests.load(tmp_path)
    with pytest.raises(DataError, match="no manifest"):
        manifests.load(tmp_path / "nowhere")


def shard(content):
    return content["splits"]["train"]["shards"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format_version=2), "format_version 2 is newer than 1"),
        (lambda c: c.update(format_version="1"), "format_version is '1'"),
        (lambda c: c.update(format_version=True), "format_version is True"),
        (lambda c: c.pop("format_version"), "format_version is None"),
        (lambda c: c.pop("splits"), "not a valid manifest: KeyError: 'splits'"),
        (lambda c: c.update(splits=[1]), "not a valid manifest"),
        (lambda c: shard(c).update(file="../../etc/passwd"), r"'\.\./\.\./etc/passwd' is not a plain name"),
        (lambda c: shard(c).update(file="/etc/passwd"), "is not a plain name"),
        (lambda c: shard(c).update(file=7), "is not a plain name"),
        (lambda c: shard(c).update(num_examples=-1), "num_examples is -1"),
        (lambda c: shard(c).update(num_bytes="9"), "num_bytes is '9'"),
        (lambda c: shard(c).update(num_examples=4), "4 records of"),
        (lambda c: shard(c).update(crc32c="zz"), "crc32c is 'zz'"),
        (lambda c: shard(c).update(colour="red"), "not a valid manifest"),
        (
            lambda c: c["splits"]["train"].update(label_histogram=[1, 2]),
            "the label histogram .1, 2. is not of its 12 examples",
        ),
        (lambda c: c["features"]["image"].update(shape=[8, 6]), "must have a shape of three sizes"),
        (lambda c: c["features"]["image"].update(shape=[8, 0, 3]), "must have a shape of three sizes"),
        (lambda c: c["features"].pop("image"), "feature 'image' of dtype uint8 is needed; there is None"),
        (lambda c: c["features"].pop("label"), "feature 'label' of dtype int64 is needed; there is None"),
        (lambda c: c["features"]["image"].update(dtype="float32"), "feature 'image' of dtype uint8 is needed"),
        (lambda c: c["features"]["image"].update(encoding="png"), "encoded as 'png'; this release reads 'raw' only"),
        (lambda c: c["splits"]["train"].update(label_histogram=["a"]), "the label histogram"),
        (lambda c: c["splits"]["train"].update(label_histogram=[None]), "the label histogram"),
        (lambda c: c["splits"]["train"].update(shards=[], label_histogram=[]), "split 'train' lists no shard"),
        (lambda c: c["splits"].update({"a/b": c["splits"]["train"]}), "'a/b' cannot name a split"),
        (lambda c: shard(c).update(stride=2.5), "stride is 2.5"),
        (lambda c: c.update(class_names=[1, 2]), "class_names must be strings"),
        (lambda c: c.update(image_mean=[1.0]), "image_mean must be 3 finite numbers"),
        (lambda c: c.update(image_std=[]), "image_std must be 3 finite numbers"),
        (lambda c: c.update(image_std=[1.0, 2.0, float("nan")]), "image_std must be 3 finite numbers"),
    ],
)
def test_what_cannot_be_is_named(folder, change, message):
    edit(folder, change)
    with pytest.raises(DataError, match=message):
        manifests.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "null", '"a"', "{}", "\x00"])
def test_damaged_json_is_one_error(folder, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json: "):
        manifests.load(folder)


def test_binary_rubbish_is_one_error(folder):
    (folder / "manifest.json").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="cannot be read"):
        manifests.load(folder)


def test_an_unknown_split_suggests_the_nearest(folder):
    with pytest.raises(UsageError, match="unknown 'tarin'; did you mean 'train'"):
        manifests.load(folder).split("tarin")
