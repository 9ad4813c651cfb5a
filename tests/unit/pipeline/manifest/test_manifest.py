import dataclasses
import hashlib
import json
import re

import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from tests.helpers.datasets import edit_manifest, write_dataset
from tests.helpers.raised import at


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
    with pytest.raises(DataError, check=at("nowhere")):
        manifests.load(tmp_path / "nowhere")


FIRST = "train-00000-of-00004.tfrecord"


def shard(content):
    return content["splits"]["train"]["shards"][0]


def as_members(content):
    """Makes it that of compressed shards, of which the first has a table of its members, but no CRCs."""
    content.update(compression="GZIP", format_version=3)
    for split in content["splits"].values():
        for each in split["shards"]:
            each.update(stride=None, offsets_crc32c=None, crcs_crc32c=None)
    shard(content).update(offsets_crc32c="0" * 8)


def feature(**fields):
    return {"dtype": "int64", "shape": [], "encoding": None, "class_names": []} | fields


# Of each type, values of JSON that are not of it.
WRONG = {
    int: ["9", True, 2.5, [1]],
    float: ["9", True, [1.0]],
    str: [7, True, ["a"]],
    list: ["a", 3, {}, None],
    dict: ["a", 3, [], None],
    type(None): [[], {}],  # a size, a CRC or an encoding that is not known
}


def places(value, at=""):
    """Yields the object or list, the name or index in it, and the path in words of everything in a manifest."""
    names = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    is_free = re.search(r"(features|splits|image_sizes|options)$", at) or isinstance(value, list)
    for name in names:
        path = f"{at}[{name!r}]" if is_free else f"{at}.{name}".lstrip(".")
        yield value, name, path
        if path != "options":
            yield from places(value[name], path)


def test_whatever_is_of_another_type_missing_or_unknown_is_named(folder):
    """Each value of a manifest in turn."""
    edit_manifest(folder, lambda c: c["features"].update(box=feature(shape=[None, 2], class_names=["a"])))
    edit_manifest(folder, lambda c: c["splits"]["train"].update(image_sizes={"8x6": 12}))
    edit_manifest(folder, lambda c: shard(c).update(label_entropy=1))  # an integer may stand for a float
    content = json.loads((folder / "manifest.json").read_text())
    assert manifests.load(folder).splits["train"].shards[0].label_entropy == 1.0
    shard(content)["label_entropy"] = 1.0
    del content["content_sha256"]
    seen = set()

    def check(*facts):
        with pytest.raises(DataError, check=at("manifest.json", *facts)):
            manifests.parse(json.dumps(content), "manifest.json")

    for parent, name, path in [*places(content)]:
        if path.startswith("options."):
            continue
        kept = parent[name]
        for wrong in WRONG[type(kept)]:
            parent[name] = wrong
            check(f"{path} is {wrong!r}")
        is_field = isinstance(parent, dict) and path.endswith(str(name))  # not the name of a split or a feature
        if is_field and name != "crcs_crc32c":  # which earlier releases did not write
            del parent[name]
            check("format_version" if name == "format_version" else repr(name))
        parent[name] = kept
        if isinstance(kept, dict) and not path.endswith(("features", "splits", "image_sizes", "options")):
            kept["colour"] = "red"
            check(f"{path} ", "'colour'")
            del kept["colour"]
        seen.add(re.sub(r"\[.*?\]", "[]", path))
    assert len(seen) == 36
    manifests.parse(json.dumps(content), "manifest.json")


def edited(content, format_version, **edit):
    content.update(
        parent="ab" * 32,
        version=2,
        format_version=format_version,
        edit={"sha256": "cd", "labels": 0, "deleted": 0, "removed": [], **edit},
    )


# Values of the right type that cannot be, and what the error names.
CANNOT_BE = [
    (lambda c: c.update(format_version=9), "format_version 9", "8"),
    (lambda c: c.update(version=2), "version is 2", "parent ''"),
    (lambda c: c.update(parent="ab" * 32), "version is 1"),
    (lambda c: c.update(parent="ab" * 32, version=2), "format_version 2 does not know"),
    (lambda c: edited(c, 7, labels=1), "an edit, which format_version 7 does not know"),
    (lambda c: edited(c, 8), "edit sets 0 labels and deletes 0 records of 0 shards"),
    (lambda c: edited(c, 8, deleted=2), "deletes 2 records of 0 shards"),
    (lambda c: edited(c, 8, deleted=2, removed=[FIRST]), f"edit has removed ['{FIRST}']"),
    (lambda c: edited(c, 8, deleted=2, removed=["../../etc/passwd"]), "edit has removed ['../../etc/passwd']"),
    (lambda c: c.update(format_version=1), "format_version 1"),
    (lambda c: shard(c).update(file="../../etc/passwd"), "'train'", "'../../etc/passwd'"),
    (lambda c: shard(c).update(file="/etc/passwd"), "'/etc/passwd'"),
    *((lambda c, f=f: shard(c).update({f: -1}), FIRST, f"{f} is -1") for f in ("num_examples", "label_entropy")),
    (lambda c: shard(c).update(num_examples=4), FIRST, "4 records"),
    *((lambda c, f=f: shard(c).update({f: "zz"}), FIRST, f"{f} is 'zz'") for f in ("crc32c", "offsets_crc32c")),
    (lambda c: shard(c).update(offsets_crc32c="0" * 8), FIRST, "stride", "offsets"),
    (lambda c: c["splits"]["train"].update(label_histogram=[13, -1]), "'train'", "[13, -1]", "12"),
    (lambda c: c["splits"]["train"].update(label_histogram=[1, 2]), "'train'", "[1, 2]", "12"),
    (lambda c: c["features"]["image"].update(shape=[8, 6]), "'image'", "(8, 6)"),
    (lambda c: c["features"]["image"].update(shape=[8, 0, 3]), "'image'", "(8, 0, 3)"),
    (lambda c: c["features"]["image"].update(shape=[8, -6, 3]), "'image'", "(8, -6, 3)"),
    (lambda c: c["features"]["image"].update(shape=[8, None, 3]), "raw", "(8, None, 3)"),
    (lambda c: c["features"].pop("image"), "'image'", "uint8"),
    (lambda c: c["features"].pop("label"), "'label'", "int64"),
    (lambda c: c["features"]["image"].update(dtype="float32"), "'image'", "uint8"),
    (lambda c: c["features"]["image"].update(encoding="bmp"), "'bmp'", "raw, png, jpeg, any"),
    (lambda c: c["features"]["image"].update(encoding=None), "None", "raw, png, jpeg, any"),
    (lambda c: c["features"]["image"].update(encoding="png", shape=[None, None, 1]), "image_mean", "1 "),
    (lambda c: c["features"].update(box=feature(dtype="int32")), "'box'", "'int32'", "uint8, "),
    (lambda c: c.update(compression="ZIP"), "'ZIP'", "GZIP, ZLIB"),
    (lambda c: c.update(compression="ZLIB"), "test-00000", "ZLIB", "version 2"),
    (lambda c: c.update(compression="GZIP"), "test-00000", "stride", "version 2"),
    (lambda c: c.update(compression="GZIP", format_version=3), "test-00000", "stride", "members"),
    (as_members, FIRST, "members", "CRCs"),
    (lambda c: c.update(splits={}), "no split"),
    (lambda c: c["splits"].update(more=c["splits"]["test"]), "test-00000-of-00001.tfrecord", "twice"),
    (lambda c: c["splits"].update({"a/b": c["splits"]["train"]}), "'a/b'"),
    (lambda c: c["splits"]["train"].update(shards=[], label_histogram=[]), "'train'", "no shard"),
    (lambda c: c["splits"]["train"].update(num_rejects=-1), "'train'", "num_rejects is -1"),
    (lambda c: c["splits"]["train"].update(image_sizes={"8": 12}), "'train'", "image_sizes", "'8'"),
    (lambda c: c["splits"]["train"].update(image_sizes={"8x6": 11}), "'train'", "image_sizes", "11", "12"),
    (lambda c: c["splits"]["train"].update(image_sizes={"9x6": 12}), "'train'", "9x6", "(8, 6)"),
    (lambda c: c.update(image_mean=[1.0]), "image_mean", "3 "),
    (lambda c: c.update(image_std=[]), "image_std", "3 "),
    (lambda c: c.update(image_std=[1.0, 2.0, float("nan")]), "image_std", "nan"),
    (lambda c: c.update(image_std=[1.0, 2.0, 0.0]), "image_std is 0", "image_mean"),
    (lambda c: c.update(image_std=[1.0, 2.0, -1.0]), "-1.0"),
    (lambda c: c.update(image_mean=[1.0, 2.0, 300.0]), "300.0"),
    (lambda c: c.update(class_names=["a", "b"]), "'test'", "3 labels", "2 class_names"),
]


@pytest.mark.parametrize("case", CANNOT_BE, ids=lambda case: " ".join(case[1:]))
def test_what_cannot_be_is_named(folder, case):
    change, *facts = case
    edit_manifest(folder, change)
    with pytest.raises(DataError, check=at("manifest.json", *facts)):
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
    with pytest.raises(DataError, match=r"64x128.*\(None, 6\)"):
        manifests.load(folder)
