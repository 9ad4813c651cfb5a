import dataclasses
import hashlib
import json
import re

import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from tests.datasets import edit_manifest, write_dataset
from tests.raised import at


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path)
    return tmp_path


def test_a_manifest_reads_back_as_it_was_written(folder):
    one = write_dataset(folder)
    assert manifests.load(folder) == one
    assert one.splits["train"].num_examples == 12
    assert one.splits["train"].num_bytes == sum(p.stat().st_size for p in folder.glob("train-*.tfrecord"))
    assert one.image_shape == (8, 6, 3)
    changes = {"stride": None, "offsets_crc32c": "0123abcd", "label_entropy": 1.5}
    shards = [dataclasses.replace(shard, **changes) for shard in one.splits["train"].shards]
    split = dataclasses.replace(one.splits["train"], shards=tuple(shards), num_rejects=3)
    features = {**one.features, "coarse": manifests.Feature("int64", (None,), None, ("a", "b"))}
    other = dataclasses.replace(one, splits={"train": split}, features=features, options={"seed": 1})
    (folder / "manifest.json").write_bytes(other.to_bytes())
    read = manifests.load(folder)
    assert (read, read.digest) == (other, other.digest)
    assert one.digest != other.digest
    assert len(read.shards) == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class 1", "class one"),
        ('"seed": 0', '"seed": 1'),
        ('"made"', '"mode"'),
        ('"num_rejects": 0', '"num_rejects": 9'),
        ('"content_sha256": "', '"content_sha256": "0'),
    ],
)
def test_an_edited_manifest_is_refused_in_one_line(folder, old, new):
    path = folder / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError) as caught:
        manifests.load(folder)
    assert re.fullmatch(
        rf"{path}: was edited: the SHA-256 of its content is [0-9a-f]{{12}}\.\.\., but its content_sha256 is "
        r"[0-9a-f]{12}\.\.\.; restore it, or convert or index the data again; to keep the edit, remove content_sha256",
        str(caught.value),
    )
    path.write_text(text)
    manifests.load(folder)


def test_a_manifest_without_a_seal_may_be_edited_and_an_indented_one_is_the_same(folder):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, indent=4))
    before = manifests.load(folder)
    del content["content_sha256"]
    path.write_text(json.dumps(content))
    assert manifests.load(folder) == before
    assert manifests.load(folder).digest == before.digest
    path.write_text(json.dumps(content | {"class_names": ["a", "b", "c"]}))
    assert manifests.load(folder).class_names == ("a", "b", "c")


def test_the_identity_of_the_data_is_that_of_a_manifest_without_crcs_and_seal(folder):
    content = json.loads((folder / "manifest.json").read_text())
    del content["content_sha256"]
    for split in content["splits"].values():
        for one in split["shards"]:
            one.pop("crcs_crc32c", None)
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    assert manifests.load(folder).digest == hashlib.sha256(text.encode()).hexdigest()


def test_no_manifest_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match=r"python -m beam_jobs.convert", check=at("manifest.json")):
        manifests.load(tmp_path)
    with pytest.raises(DataError, check=at("nowhere/manifest.json")):
        manifests.load(tmp_path / "nowhere")


FIRST = "train-00000-of-00004.tfrecord"


def shard(content):
    return content["splits"]["train"]["shards"][0]


def feature(**fields):
    return {"dtype": "int64", "shape": [], "encoding": None, "class_names": []} | fields


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format_version=4), "format_version 4 .* 3"),
        (lambda c: c.update(format_version=1), "format_version 1 "),
        (lambda c: c.update(format_version="1"), "format_version is '1'"),
        (lambda c: c.update(format_version=True), "format_version is True"),
        (lambda c: c.pop("format_version"), "format_version is None"),
        (lambda c: c.pop("splits"), "'splits'"),
        (lambda c: c.update(splits=[1]), r"not a valid manifest .*: splits is \[1\], not of type dict"),
        (lambda c: shard(c).update(file="../../etc/passwd"), r"'train': .*'\.\./\.\./etc/passwd'"),
        (lambda c: shard(c).update(file="/etc/passwd"), "'/etc/passwd'"),
        (lambda c: shard(c).update(file=7), r"splits\['train'\]\.shards\[0\]\.file is 7, not of type str"),
        (lambda c: shard(c).update(num_examples=-1), f"{FIRST}: num_examples is -1"),
        (lambda c: shard(c).update(num_bytes="9"), r"'train'\]\.shards\[0\]\.num_bytes is '9', not of type int"),
        (lambda c: shard(c).update(num_examples=4), f"{FIRST}: 4 records of"),
        (lambda c: shard(c).update(crc32c="zz"), f"{FIRST}: crc32c is 'zz'"),
        (lambda c: shard(c).update(colour="red"), "'colour'"),
        (lambda c: c["splits"]["train"].update(label_histogram=[13, -1]), r"'train': .*\[13, -1\].* 12 examples"),
        (lambda c: c["splits"]["train"].update(label_histogram=[1, 2]), r"'train': .*\[1, 2\].* 12 examples"),
        (lambda c: c["features"]["image"].update(shape=[8, 6]), r"'image' .*\(8, 6\)"),
        (lambda c: c["features"]["image"].update(shape=[8, 0, 3]), r"'image' .*\(8, 0, 3\)"),
        (lambda c: c["features"].pop("image"), "'image' of dtype uint8"),
        (lambda c: c["features"].pop("label"), "'label' of dtype int64"),
        (lambda c: c["features"]["image"].update(dtype="float32"), "'image' of dtype uint8"),
        (lambda c: c["features"]["image"].update(encoding="bmp"), "'bmp'; known: raw, png, jpeg, any"),
        (lambda c: c["features"]["image"].update(encoding=None), "None; known: raw, png, jpeg, any"),
        (lambda c: c["features"]["image"].update(shape=[8, None, 3]), r"raw .*\(8, None"),
        (lambda c: c["features"]["image"].update(shape=[8, -6, 3]), r"'image' .*\(8, -6, 3\)"),
        (lambda c: c["features"]["image"].update(shape=["8", 6, 3]), r"'image'\]\.shape\[0\] is '8', not of type int"),
        (lambda c: c["features"]["image"].update(encoding="png", shape=[None, None, 1]), "image_mean must be 1 "),
        (lambda c: c["features"].update(box=feature(dtype="int32")), "'box' .*'int32'; known: uint8, "),
        (lambda c: c["features"].update(box=feature(shape=[2.5])), r"'box'\]\.shape\[0\] is 2.5"),
        (
            lambda c: c["features"].update(box=feature(class_names=[1])),
            r"'box'\]\.class_names\[0\] is 1, not of type str",
        ),
        (lambda c: c["features"]["label"].pop("encoding"), "'encoding'"),
        (lambda c: c.update(compression="ZLIB"), "'ZLIB'; known: GZIP"),
        (lambda c: c.update(compression="GZIP"), "tfrecord: .*stride"),
        (
            lambda c: c.update(compression="GZIP", format_version=3),
            "tfrecord: has a stride, but no table of its members",
        ),
        (lambda c: c.pop("compression"), "'compression'"),
        (lambda c: c.update(splits={}), "no split"),
        (lambda c: c["splits"].update(more=c["splits"]["test"]), "test-00000-of-00001.tfrecord twice"),
        (lambda c: shard(c).update(offsets_crc32c="12"), f"{FIRST}: offsets_crc32c is '12'"),
        (lambda c: shard(c).update(offsets_crc32c="0" * 8), f"{FIRST}: .*stride and offsets"),
        (lambda c: shard(c).update(label_entropy=-1), f"{FIRST}: label_entropy is -1"),
        (lambda c: shard(c).update(label_entropy="1"), r"shards\[0\]\.label_entropy is '1', not of type float"),
        (lambda c: c["splits"]["train"].update(num_rejects=-1), "'train': num_rejects is -1"),
        (lambda c: c["splits"]["train"].update(num_rejects=True), r"'train'\]\.num_rejects is True, not of type int"),
        (lambda c: c["splits"]["train"].pop("num_rejects"), "'num_rejects'"),
        (
            lambda c: c["splits"]["train"].update(image_sizes={"8x6": "12"}),
            r"'train'\]\.image_sizes\['8x6'\] is '12'",
        ),
        (lambda c: c["splits"]["train"].update(image_sizes={"8": 12}), "'train': image_sizes .*'8'"),
        (lambda c: c["splits"]["train"].update(image_sizes={"8x6": 11}), "'train': image_sizes .*11 .*12"),
        (lambda c: c["splits"]["train"].update(label_histogram=["a"]), r"'train'\]\.label_histogram\[0\] is 'a'"),
        (lambda c: c["splits"]["train"].update(label_histogram=[None]), r"'train'\]\.label_histogram\[0\] is None"),
        (lambda c: c["splits"]["train"].update(shards=[], label_histogram=[]), "'train' .*no shard"),
        (lambda c: c["splits"].update({"a/b": c["splits"]["train"]}), "'a/b'"),
        (lambda c: shard(c).update(stride=2.5), r"shards\[0\]\.stride is 2.5, not of type int"),
        (lambda c: c.update(class_names=[1, 2]), r"class_names\[0\] is 1"),
        (lambda c: c.update(image_mean=[1.0]), "image_mean must be 3 "),
        (lambda c: c.update(image_std=[]), "image_std must be 3 "),
        (lambda c: c.update(image_std=[1.0, 2.0, float("nan")]), "image_std must be 3 .*nan"),
        (lambda c: c.update(image_std=[1.0, 2.0, 0.0]), r"image_std is 0 where image_mean is \d+\.\d+"),
        (lambda c: c.update(image_std=[1.0, 2.0, -1.0]), "standard deviation -1.0"),
        (lambda c: c.update(image_mean=[1.0, 2.0, 300.0]), "mean of 300.0"),
        (lambda c: c.update(class_names=["a", "b"]), "'test': its label histogram has 3 labels, .* 2 class_names"),
        (lambda c: c["splits"]["train"].update(image_sizes={"9x6": 12}), r"'train': image_sizes has 9x6, .*\(8, 6\)"),
    ],
)
def test_what_cannot_be_is_named(folder, change, message):
    edit_manifest(folder, change)
    with pytest.raises(DataError, match=message):
        manifests.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "null", '"a"', "{}", "\x00", bytes(range(256))])
def test_a_damaged_file_is_one_error(folder, text):
    (folder / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, check=at("manifest.json")):
        manifests.load(folder)


def test_an_unknown_split_suggests_the_nearest(folder):
    with pytest.raises(UsageError, match="'tarin'.*'train'"):
        manifests.load(folder).split("tarin")


def test_images_that_differ_in_size_have_no_shape(folder):
    edit_manifest(folder, lambda c: c["features"]["image"].update(encoding="any", shape=[None, None, None]))
    edit_manifest(folder, lambda c: c["splits"]["train"].update(image_sizes={"8x6": 7, "16x6": 5}, num_rejects=2))
    made = manifests.load(folder)
    assert made.features["image"].shape == (None, None, None)
    assert (made.splits["train"].image_sizes, made.splits["train"].num_rejects) == ({"8x6": 7, "16x6": 5}, 2)
    with pytest.raises(UsageError, match="^made: .*--resize=HxW"):
        _ = made.image_shape


def test_very_many_sizes_are_rounded_up_also_along_the_side_that_all_images_share(folder):
    edit_manifest(folder, lambda c: c["features"]["image"].update(encoding="png", shape=[None, 6, 3]))
    edit_manifest(folder, lambda c: c["splits"]["train"].update(image_sizes={"64x64": 7, "128x64": 5}))
    assert manifests.load(folder).splits["train"].image_sizes == {"64x64": 7, "128x64": 5}
    edit_manifest(folder, lambda c: c["splits"]["train"].update(image_sizes={"64x128": 12}))
    with pytest.raises(DataError, match=r"image_sizes has 64x128, but .*\(None, 6\)"):
        manifests.load(folder)
