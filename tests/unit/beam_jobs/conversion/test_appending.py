import dataclasses
import errno
import json
import os
import pathlib
import re
import shutil

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import drafts, edit
from beam_jobs.convert import main
from beam_jobs.sink import sink_of
from pipeline import RandomAccess, manifest
from pipeline.errors import DataError
from pipeline.manifest import naming, splits, succession, versions
from pipeline.manifest.columns import Columns
from tests.helpers.round_trips import picture


def write_images(folder, numbers, classes=("cat", "dog"), splits=("train", "test"), size=(8, 8), kind="png"):
    """Writes one image per number and split into a folder per class; returns the folder."""
    for split in splits:
        for number in numbers:
            place = folder / split / classes[number % len(classes)]
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng([number, len(split)]).integers(0, 256, (*size, 3), np.uint8)
            PIL.Image.fromarray(pixels).save(place / f"{number}.{kind}")
    return folder


def files_of(folder):
    """Returns {name: bytes} of the files in a data set's folder, without cards and the log of versions."""
    skipped = (naming.LOG, naming.CARD)
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in skipped and ".html" not in name}


def published(folder):
    """Returns {name: bytes} of a data set's files, without those in folders of unfinished conversions."""
    return {name: bytes_ for name, bytes_ in files_of(folder).items() if not name.startswith(".")}


def listed_by(refused):
    """Returns the lines of the list of invalid rows that the error of a conversion names."""
    (path,) = re.findall(r"; (\S+) lists them; ", refused.err)
    return pathlib.Path(path).read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A folder with 20 images and their data set, of 2 + 1 shards."""
    folder = tmp_path_factory.mktemp("converted")
    source = write_images(folder / "a", range(12), splits=["train"])
    write_images(source, range(12, 20), splits=["test"])
    main(
        ["--dataset=image_folder", f"--source={source}", f"--data_dir={folder / 'data'}", "--num_shards=train:2,test:1"]
    )
    return folder


@pytest.fixture
def data(converted, tmp_path):
    """A data set to which `grow` appends a source, beside its own source `a`."""
    shutil.copytree(converted, tmp_path, dirs_exist_ok=True)
    return tmp_path / "data"


@pytest.fixture
def grow(convert):
    def call(source, data, *flags):
        return convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", "--append", *flags)

    return call


def test_what_existed_is_untouched_and_the_new_version_is_that_of_all_rows(data, grow, convert, tmp_path):
    before, first = files_of(data), manifest.load(data)
    source = write_images(tmp_path / "b", range(20, 26), classes=("dog", "ant"), splits=["train"])
    found = grow(source, data, "--num_shards=2", "--seed=5")
    assert (found.code, found.err) == (0, "")
    assert "behind those that it has: 'ant' = 2\n" in found.out
    assert f"version 2 ({manifest.load(data).short}) of image_folder is in {data}, with 6 more examples:" in found.out
    after = files_of(data)
    outdated = {naming.MANIFEST, naming.CROISSANT, *naming.TFDS_FILES}
    assert {name: bytes_ for name, bytes_ in before.items() if name not in outdated}.items() <= after.items()
    assert after[naming.version_name(1, first.digest)] == before[naming.MANIFEST]
    assert not outdated & after.keys() - {naming.MANIFEST, naming.CROISSANT}
    added = sorted(name for name in after.keys() - before.keys() if name.endswith(".tfrecord"))
    assert added == ["train-v2-00000-of-00002.tfrecord", "train-v2-00001-of-00002.tfrecord"]

    made = manifest.load(data)
    assert (made.version, made.parent, made.format_version) == (2, first.digest, 7)
    assert manifest.load(f"{data}@1") == first == manifest.load(f"{data}@{first.digest[:8]}")
    assert manifest.load(f"{data}@2") == made == manifest.load(f"{data}/@{made.digest}")
    assert manifest.load(f"{data}@{first.digest}") == first
    assert made.splits["train"].shards[:2] == first.splits["train"].shards
    assert made.splits["test"].shards == first.splits["test"].shards
    assert made.class_names == ("cat", "dog", "ant")
    assert made.splits["train"].label_histogram == (6, 9, 3)
    assert made.splits["test"].label_histogram == (4, 4, 0)
    assert made.source[: len(first.source)] == first.source
    assert [file.file for file in made.source[len(first.source) :]] == ["train/ant", "train/dog"]

    both = write_images(tmp_path / "whole", range(12), splits=["train"])
    write_images(both, range(12, 20), splits=["test"])
    write_images(both, range(20, 26), classes=("dog", "ant"), splits=["train"])
    convert("--dataset=image_folder", f"--source={both}", f"--data_dir={tmp_path / 'all'}")
    whole = manifest.load(tmp_path / "all")
    assert (made.image_mean, made.image_std) == (whole.image_mean, whole.image_std)
    assert made.splits["train"].image_sizes == whole.splits["train"].image_sizes
    labels = [np.load(data / naming.column_name("train", "label", made.columns["label"].files["train"]))]
    assert (
        labels[0][:12].tolist()
        == np.load(data / naming.column_name("train", "label", first.columns["label"].files["train"])).tolist()
    )
    assert np.bincount(labels[0]).tolist() == [6, 9, 3]


def test_a_third_version_and_the_log(data, grow, tmp_path):
    card = (data / naming.CARD).read_bytes()
    grow(write_images(tmp_path / "b", range(20, 26)), data)
    grow(write_images(tmp_path / "c", range(30, 34), splits=["validation"]), data)
    first, second, third = versions.all_of(data)
    assert [made.version for made in (first, second, third)] == [1, 2, 3]
    assert third.parent == second.digest
    assert (data / naming.version_name(1, first.digest, "html")).read_bytes() == card
    assert (data / naming.CARD).read_bytes() != card
    assert (data / naming.version_name(2, second.digest, "html")).exists()
    assert sorted(third.splits) == ["test", "train", "validation"]
    assert [shard.file for shard in third.splits["validation"].shards] == ["validation-v3-00000-of-00001.tfrecord"]
    assert versions.descends(data, third, first.digest)
    assert not versions.descends(data, first, third.digest)
    order, place = {"manifest_digest": first.digest}, str(data)
    pinned = {
        given: succession.pinned({"data_dir": given}, order, "run")["data_dir"] for given in (place, f"{place}@2")
    }
    assert pinned == {place: f"{place}@{first.short}", f"{place}@2": f"{place}@2"}  # what names a version stays
    log = versions.log_of(data)
    assert log.keys() == {second.digest, third.digest}
    assert log[second.digest].time <= log[third.digest].time
    assert json.loads((data / naming.LOG).read_text().splitlines()[0])["digest"] == second.digest


def test_rows_that_are_there_are_invalid(data, grow, tmp_path):
    grown = write_images(tmp_path / "grown", range(12), splits=["train"])
    write_images(grown, range(40, 43), splits=["train"])
    before = files_of(data)
    refused = grow(grown, data)
    assert refused.code == 1
    assert "12 invalid rows, over --max_rejects=0 (--append: the data set has the keys of all of them); " in refused.err
    assert "; --max_rejects=12 skips them and appends the other 3; images that the data set does not " in refused.err
    assert "its key, 'train/cat/0.png', is in the data set" in refused.err
    assert published(data) == before
    assert len(listed_by(refused)) == 12
    assert grow(grown, data, "--max_rejects=12").code == 0
    made = manifest.load(data)
    assert made.splits["train"].num_examples == 15
    assert made.splits["train"].num_rejects == 12
    assert manifest.load(f"{data}@1").splits["train"].num_rejects == 0
    lines = [json.loads(line) for line in (data / naming.REJECTS).read_text().splitlines()]
    assert len(lines) == 12
    assert {tuple(sorted(line)) for line in lines} == {("file", "reason", "row", "split")}
    assert not list(data.glob(".*"))
    again = grow(grown, data, "--max_rejects=15", "--seed=1")
    assert (again.code, manifest.load(data)) == (1, made)
    assert (
        "--append: the data set has the keys of all 15 rows of the source, so there is nothing to append" in again.err
    )


def test_a_row_that_is_invalid_by_itself_is_named_among_those_that_are_there(data, grow, tmp_path):
    grown = write_images(tmp_path / "grown", range(12), splits=["train"])
    write_images(grown, [40, 41], splits=["train"])
    write_images(grown, [42], splits=["train"], size=(9, 9))
    refused = grow(grown, data)
    assert "13 invalid rows, over --max_rejects=0 (--append: the data set has the keys of 12 of them); " in refused.err
    assert "; the first other: train/cat/42.png, row 0: the image is 9x9x3, those of the data set are " in refused.err
    (flags,) = re.findall(r"to change it: ([^;]+);", refused.err)
    drafts.gate.open()  # as in a new process
    assert grow(grown, data, *flags.split(), "--max_rejects=12").code == 0
    assert manifest.load(data).splits["train"].num_examples == 15


def test_a_split_that_has_all_of_its_rows_stays_as_it_is(data, grow, tmp_path):
    grown = write_images(tmp_path / "grown", range(12, 20), splits=["test"])
    write_images(grown, [40], splits=["train"])
    assert grow(grown, data, "--max_rejects=8").code == 0
    made, first = manifest.load(data), manifest.load(f"{data}@1")
    assert [made.splits[name].num_examples for name in ("test", "train")] == [8, 13]
    assert made.splits["test"].label_histogram == first.splits["test"].label_histogram
    assert len(RandomAccess(data, "test")) == 8
    other = write_images(tmp_path / "other", [41], splits=["train"])
    (other / "validation/cat").mkdir(parents=True)
    (other / "validation/cat/bad.png").write_bytes(b"no image")
    refused = grow(other, data, "--max_rejects=1")
    assert "none is valid; --splits=train leaves the split 'validation' out" in refused.err


def test_classes_that_differ_in_case_from_those_that_are_there_are_named(data, grow, tmp_path):
    found = grow(write_images(tmp_path / "b", range(20, 26), classes=("Cat", "dog")), data)
    assert "note: classes 'Cat' and 'cat' differ only in case\n" in found.out


@pytest.mark.parametrize(
    ("there", "here"), [("caf\xe9", "cafe\u0301"), ("7", "07"), ("7", "7.0"), ("dog", "d\u200bog")]
)
def test_a_class_that_looks_like_one_that_is_there_is_no_new_one(there, here, convert, grow, tmp_path):
    convert(
        "--dataset=image_folder",
        f"--source={write_images(tmp_path / 'a', range(4), classes=(there, 'cat'))}",
        f"--data_dir={tmp_path}/data",
    )
    refused = grow(write_images(tmp_path / "b", range(20, 24), classes=(here, "cat")), tmp_path / "data")
    assert f"the class {here!a} of the source and {there!a} of the data set look alike" in refused.err
    assert manifest.load(tmp_path / "data").version == 1


@pytest.mark.slow
def test_the_list_of_invalid_rows_grows_behind_that_of_the_parent(convert, grow, tmp_path):
    source, data = write_images(tmp_path / "a", range(8), splits=["train"]), tmp_path / "data"
    (source / "train/cat/bad.png").write_bytes(b"no image")
    convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", "--max_rejects=1")
    more = write_images(tmp_path / "b", range(8, 12), splits=["train"])
    (more / "train/cat/0worse.png").write_bytes(b"no image")
    before = published(data)
    refused = grow(more, data)
    assert (refused.code, published(data)) == (1, before)
    assert [json.loads(line)["file"] for line in listed_by(refused)][1:] == ["train/cat/0worse.png"]
    assert grow(more, data, "--max_rejects=1").code == 0
    files = [json.loads(line)["file"] for line in (data / naming.REJECTS).read_text().splitlines()]
    assert files == ["train/cat/bad.png", "train/cat/0worse.png"]
    assert [one.splits["train"].num_rejects for one in versions.all_of(data)] == [1, 2]


def test_a_disk_that_is_full_at_the_last_file_of_an_append_leaves_all_as_it_was(data, grow, tmp_path, monkeypatch):
    class Full(drafts.Draft):
        def __init__(self, path, blocks):
            if str(path).endswith(naming.LOG):
                raise DataError(f"cannot be written: {os.strerror(errno.ENOSPC)}", path=path)
            super().__init__(path, blocks)

    def there():
        return {str(path.relative_to(data)) for path in data.rglob("*") if ".converting" not in str(path)}

    names, before, source = there(), published(data), write_images(tmp_path / "b", range(20, 26))
    with monkeypatch.context() as patched:
        patched.setattr(drafts, "Draft", Full)
        full = grow(source, data)
    assert (full.code, there(), published(data)) == (1, names, before)
    assert f"{data / naming.LOG}: cannot be written: No space left on device\n" in full.err
    drafts.gate.open()  # as in a new process
    assert grow(source, data).code == 0
    assert naming.LOG in there()


def test_the_same_append_again_has_nothing_to_do(data, grow, tmp_path):
    source = write_images(tmp_path / "b", range(20, 26))
    grow(source, data)
    before = files_of(data)
    (data / naming.CARD).unlink()
    again = grow(source, data)
    assert again.code == 0
    assert "appended by the same options; nothing to do" in again.out
    assert files_of(data) == before
    assert manifest.load(data).digest in (data / naming.CARD).read_text()
    assert grow(source, data, "--seed=3").code != 0  # another append of rows that are there


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--resize=4x4", "--image_encoding=png"], "the image is 4x4x3, those of the data set are 8x8x3"),
        (["--image_encoding=raw"], "--image_encoding=raw: the images of the data set are png; leave it out"),
        (["--image_encoding=jpeg"], "--image_encoding=jpeg: the images of the data set are png; leave it out"),
        (["--compression=GZIP"], "--compression=GZIP: it is not given in the data set; leave it out"),
        (["--channels=1", "--image_encoding=png"], "--channels=1: it is not given in the data set; leave it out"),
        (["--passes=2"], "--append with --passes=2"),
        (["--overwrite"], "--append with --overwrite=True"),
        (["--columns=none"], "--append with --columns=none"),
    ],
)
def test_what_differs_is_refused_by_name(data, grow, tmp_path, flags, text):
    source, before = write_images(tmp_path / "b", range(20, 26)), files_of(data)
    found = grow(source, data, *flags)
    assert found.code != 0
    assert text in found.err
    assert "Traceback" not in found.err
    assert files_of(data) == before


def test_images_of_another_form_are_invalid_rows(data, grow, tmp_path):
    source = write_images(tmp_path / "b", range(20, 26))
    PIL.Image.new("RGB", (8, 8)).save(source / "train/cat/99.jpg")
    PIL.Image.new("RGB", (9, 8)).save(source / "train/cat/98.png")
    found = grow(source, data, "--max_rejects=2")
    assert found.code == 0
    reasons = {json.loads(line)["reason"] for line in (data / naming.REJECTS).read_text().splitlines()}
    assert reasons == {
        "the image is jpeg, those of the data set are png; to change it: --image_encoding=png",
        "the image is 8x9x3, those of the data set are 8x8x3; to change it: --resize=8x8 --image_encoding=png",
    }
    assert manifest.load(data).features["image"] == manifest.load(f"{data}@1").features["image"]


@pytest.mark.slow
def test_a_reason_begins_with_the_image_that_a_table_names_also_of_rows_that_are_dealt(convert, tmp_path):
    write_images(tmp_path, range(12), splits=["x"])
    (tmp_path / "x/cat/bad.png").write_bytes(b"no image")
    flags = ("--dataset=image_table", f"--data_dir={tmp_path / 'data'}", "--split=train:0.5,test:0.5")
    for table, rows, more in (("a.csv", range(6), []), ("b.csv", range(6, 12), ["--append"])):
        named = "".join(f"x/{('cat', 'dog')[row % 2]}/{row}.png,1\n" for row in rows)
        (tmp_path / table).write_text(f"file_name,label\nx/cat/bad.png,1\n{named}")
        dry = convert(*flags, f"--source={tmp_path / table}", "--dry_run", *more)
        assert f"{table}, row 0: x/cat/bad.png: no image of a known format" in dry.err, dry
        refused = convert(*flags, f"--source={tmp_path / table}", *more)
        assert f"{table}, row 0: x/cat/bad.png: no image of a known format" in refused.err, refused
        drafts.gate.open()  # as in a new process
        assert convert(*flags, f"--source={tmp_path / table}", "--max_rejects=1", *more).code == 0


def test_raw_images_of_several_sizes_take_that_of_the_data_set(convert, grow, tmp_path):
    source, data = write_images(tmp_path / "a", range(8), splits=["train"]), tmp_path / "data"
    convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", "--image_encoding=raw")
    more = write_images(write_images(tmp_path / "b", range(8, 12), size=(9, 9)), range(12, 16), size=(7, 5))
    refused = grow(more, data)
    assert "--append: the images differ in size (7x5, 9x9, ...); give --resize=8x8, the data set's\n" in refused.err
    assert grow(more, data, "--resize=8x8").code == 0


def test_a_number_that_is_no_class_is_an_invalid_row_where_classes_get_other_numbers(convert, tmp_path):
    def flags(name, classes, labels):
        info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": classes}}}}
        table = pa.table({"image": [picture(1)] * len(labels), "label": labels})
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / name)
        return "--dataset=parquet", f"--source={tmp_path / name}", f"--data_dir={tmp_path / 'data'}", "--max_rejects=1"

    assert convert(*flags("a.parquet", ["cat", "dog"], [0, 1])).code == 0
    assert convert(*flags("b.parquet", ["dog", "cat"], [0, 0, 2]), "--append").code == 0
    assert sorted(int(record["label"]) for record in RandomAccess(tmp_path / "data", "train")) == [0, 1, 1, 1]
    assert manifest.load(tmp_path / "data").splits["train"].num_rejects == 1


def test_keys_of_another_kind_than_those_of_the_data_set_are_told(convert, tmp_path):
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [picture(1)] * 2, "label": [0, 1], "id": [7, 8]}), source)
    flags = ["--dataset=parquet", f"--source={source}", f"--data_dir={tmp_path / 'data'}"]
    assert convert(*flags, "--key_column=id").code == 0
    assert "the data set has the keys of all 2 rows" in convert(*flags, "--append", "--key_column=id").err
    told = convert(*flags, "--append")
    assert "warning: the data set has keys of --key_column=id, and the new rows those of their places" in told.out


def test_a_default_of_the_data_set_is_given_again(convert, tmp_path):
    def flags(name, first):
        for number in (first, first + 1):
            (tmp_path / f"{number}.png").write_bytes(picture(number))
        (tmp_path / name).write_text(f"file_name,label,site\n{first}.png,x,\n{first + 1}.png,x,b\n")
        return "--dataset=image_table", f"--source={tmp_path / name}", f"--data_dir={tmp_path / 'data'}"

    kept = "--keep_columns=site"
    assert convert(*flags("a.csv", 0), kept, "--default=site:none").code == 0
    refused = convert(*flags("b.csv", 2), kept, "--append")
    assert (refused.code, "by --default=site:none; give it again\n" in refused.err) == (2, True)
    assert convert(*flags("b.csv", 2), kept, "--append", "--default=site:none").code == 0
    found = [bytes(record["site"]) for record in RandomAccess(tmp_path / "data", "train")]
    assert sorted(found) == [b"b", b"b", b"none", b"none"]


def test_numbers_of_classes_beside_names_are_told_and_names_that_differ_are_named(convert, tmp_path):
    def flags(name, labels, *classes):
        info = {"info": {"features": {"kind": {"_type": "ClassLabel", "names": classes}}}}
        table = pa.table({"image": [picture(1)] * 2, "label": labels, "kind": [0, 1]})
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / name)
        return "--dataset=parquet", f"--source={tmp_path / name}", "--keep_columns=kind", "--append"

    to = f"--data_dir={tmp_path / 'data'}"
    assert convert(*flags("a.parquet", ["cat", "dog"], "x", "y")[:3], to).code == 0
    refused = convert(*flags("b.parquet", ["cat", "dog"], "y", "x"), to)
    assert (
        "'kind' is int64 of 2 classes, x, y, in the data set and int64 of 2 classes, y, x, in the source" in refused.err
    )
    assert convert(*flags("b.parquet", ["cat", "dog"], "y", "x")[:3], f"--data_dir={tmp_path / 'other'}").code == 0
    refused = convert("--dataset=tfrecord", f"--source={tmp_path}/*/*.tfrecord", f"--data_dir={tmp_path / 'joined'}")
    assert "'kind' is int64 in data and int64 in other, of the classes x, y and y, x; " in refused.err
    told = convert(*flags("b.parquet", [0, 1], "x", "y"), to)
    assert "'0' = 2, '1' = 3\nwarning: classes of the source are numbers, those of the data set names; if 0" in told.out


def test_a_column_that_pandas_made_floats_of_is_appended_as_what_it_was(convert, tmp_path):
    def flags(name, numbers, kept):
        pq.write_table(pa.table({"image": [picture(1)] * 2, "label": [0, 1], "age": numbers}), tmp_path / name)
        source = f"--source={tmp_path / name}"
        return "--dataset=parquet", source, f"--data_dir={tmp_path / 'data'}", f"--keep_columns={kept}"

    assert convert(*flags("a.parquet", [7, 8], "age")).code == 0
    refused = convert(*flags("b.parquet", [7.0, 9.0], "age"), "--append")
    assert "feature 'age' is int64 in the data set and float32 in the source; " in refused.err
    (advised,) = re.findall(r"; --keep_columns=(\S+) converts it\n", refused.err)
    assert convert(*flags("b.parquet", [7.0, 9.0], advised), "--append").code == 0
    assert sorted(int(record["age"]) for record in RandomAccess(tmp_path / "data", "train")) == [7, 7, 8, 9]


def test_options_of_the_data_set_hold_where_none_are_given(convert, grow, tmp_path):
    source, data = write_images(tmp_path / "a", range(40), splits=["x"]), tmp_path / "data"
    options = [
        "--image_encoding=raw",
        "--resize=6x6",
        "--compression=GZIP",
        "--split=train:0.5,test:0.5",
        "--channels=1",
    ]
    assert convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", *options).code == 0
    assert grow(write_images(tmp_path / "b", range(40, 80), splits=["x"]), data).code == 0
    made, first = manifest.load(data), manifest.load(f"{data}@1")
    assert made.features == first.features
    assert {shard.compression for shard in made.shards} == {"GZIP"}
    assert made.splits.keys() == first.splits.keys() == {"train", "test"}
    assert made.options["split"] == first.options["split"]
    assert sum(split.num_examples for split in made.splits.values()) == 80
    assert {name[:9] for name in files_of(data) if name.endswith(".gz")} >= {"train-v2-", "test-v2-0"}


def write_placed(folder, numbers, classes, masks=0):
    """Writes a table of images, whose row N has N boxes, or a mask of so many classes; returns its flag."""
    folder.mkdir()
    rows = []
    for number in numbers:
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{number}.png")
        row = {"file": f"{number}.png", "of": [classes[i % len(classes)] for i in range(number)]}
        rows.append(row | {"boxes": [[0, 0, 4, 4]] * number, "mask": f"m{number}.png"})
        if masks:
            PIL.Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % masks).save(folder / f"m{number}.png")
    (folder / "t.jsonl").write_text("".join(json.dumps(row | ({} if masks else {"label": "x"})) + "\n" for row in rows))
    return [f"--source={folder / 't.jsonl'}"]


BOXES = ["--boxes_column=boxes", "--box_labels_column=of", "--box_format=yxyx"]


def test_boxes_are_appended_with_their_classes_by_name(convert, tmp_path):
    table, data = ["--dataset=image_table", f"--data_dir={tmp_path / 'data'}"], tmp_path / "data"
    assert convert(*table, *write_placed(tmp_path / "a", range(1, 4), ["cat", "dog"]), *BOXES).code == 0
    more = write_placed(tmp_path / "b", range(5, 7), ["dog", "ant"])
    refused = convert(*table, *more, *BOXES[:2], "--append")
    assert "'boxes' is float32 (yxyx) in the data set and float32 (rel_yxyx) in the source" in refused.err
    found = convert(*table, *more, *BOXES, "--append")
    assert (found.code, "classes of boxes that the data set does not have" in found.out) == (0, True), found.err
    made, first = manifest.load(data), manifest.load(f"{data}@1")
    assert made.features["box_labels"].class_names == ("cat", "dog", "ant")
    assert (made.features["boxes"].shape, first.features["boxes"].shape) == ((6, 4), (3, 4))
    assert made.features["box_labels"].shape == (6,)
    shown = {tuple(record["box_labels"].tolist()) for record in RandomAccess(data, "train")}
    assert shown == {(0,), (0, 1), (0, 1, 0), (1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2)}
    for version, held in ((1, [1, 2, 3]), (2, [1, 2, 3, 5, 6]), (3, [1, 2, 5, 6])):
        if version == 3:
            edit.main([str(data), "--delete=3.png"])
        counts = [len(record["boxes"]) for record in RandomAccess(f"{data}@{version}", "train")]
        made = manifest.load(f"{data}@{version}")
        assert sorted(counts) == held
        assert counts == Columns(f"{data}@{version}", made, splits.select(made, "train"))["boxes"].tolist()


def test_masks_are_appended_with_more_classes(convert, tmp_path):
    table, data = ["--dataset=image_table", "--mask_column=mask", f"--data_dir={tmp_path / 'data'}"], tmp_path / "data"
    assert convert(*table, *write_placed(tmp_path / "a", range(1, 4), ["x"], 2)).code == 0
    more = write_placed(tmp_path / "b", range(5, 7), ["x"], 4)
    assert "filled with 255 in the source" in convert(*table, *more, "--mask_fill=255", "--append").err
    found = convert(*table, *more, "--append")
    assert found.code == 0, found.err
    made = manifest.load(data)
    assert made.class_names == made.features["mask"].class_names == ("0", "1", "2", "3")
    assert manifest.load(f"{data}@1").class_names == ("0", "1")
    assert (made.features["mask"].shape, made.splits["train"].num_examples) == ((8, 8, 1), 5)


def test_a_group_stays_in_its_split(convert, grow, tmp_path):
    source, data = write_images(tmp_path / "a", range(40), splits=["x"]), tmp_path / "data"
    options = ("--split=train:0.5,test:0.5", r"--group_by=file:(\d)\.png", "--seed=7")
    assert convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", *options).code == 0
    more = write_images(tmp_path / "b", range(40, 80), splits=["x"])
    refused = grow(more, data, "--seed=8")
    assert (refused.code, "--seed=8: --group_by=file:" in refused.err) == (2, True)
    assert grow(more, data, options[1]).code == 0
    groups = {}
    for path in data.rglob("*.tfrecord"):
        found = {key[-1] for key in re.findall(rb"x/(?:cat|dog)/(\d+)\.png", path.read_bytes())}
        groups.setdefault(path.name.partition("-")[0], set()).update(found)
    assert len(groups["train"]) + len(groups["test"]) == 10
    assert not groups["train"] & groups["test"]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--split=train:0.8,test:0.2", r"--group_by=file:(\d)\.png"], "--split=train:0.8,test:0.2: --group_by=file:"),
        (["--split=train:0.5,test:0.5", "--group_by=file:.*"], "--group_by=file:.*: --group_by=file:"),
        (["--folds=3"], "--folds=3: --group_by=file:"),
    ],
)
@pytest.mark.quick(1)
def test_what_would_deal_groups_otherwise_is_refused(convert, grow, tmp_path, flags, text):
    source, data = write_images(tmp_path / "a", range(40), splits=["x"]), tmp_path / "data"
    options = ("--split=train:0.5,test:0.5", r"--group_by=file:(\d)\.png", "--seed=7")
    assert convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", *options).code == 0
    more, before = write_images(tmp_path / "b", range(40, 80), splits=["x"]), files_of(data)
    found = grow(more, data, *flags)
    assert (found.code, text in found.err) == (2, True), found.err
    assert files_of(data) == before
    assert grow(more, data, *options[:2]).code == 0  # the data set's own, without its seed
    assert manifest.load(data).options["seed"] == 7


def test_groups_that_strata_shared_out_do_not_grow(convert, grow, tmp_path):
    source, data = write_images(tmp_path / "a", range(40), splits=["x"]), tmp_path / "data"
    options = ("--split=train:0.5,test:0.5", r"--group_by=file:(\d)\.png", "--stratify=label")
    assert convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", *options).code == 0
    more, before = write_images(tmp_path / "b", range(40, 47), splits=["x"]), files_of(data)
    for flags in ((), options):
        found = grow(more, data, *flags)
        assert (found.code, "could get into another split" in found.err) == (2, True), found.err
    assert files_of(data) == before


def test_strata_of_the_data_set_hold_where_its_other_options_are_given_again(convert, grow, tmp_path):
    source, data = write_images(tmp_path / "a", range(40), splits=["x"]), tmp_path / "data"
    convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", "--folds=5", "--stratify=label")
    assert grow(write_images(tmp_path / "b", range(40, 80), splits=["x"]), data, "--folds=5").code == 0
    assert [split.label_histogram for split in manifest.load(data).splits.values()] == [(16,)] * 5


def test_groups_of_new_rows_alone_are_told(data, grow, tmp_path):
    more = write_images(tmp_path / "b", range(40, 80), splits=["x"])
    refused = grow(more, data, r"--group_by=file:(\d)\.png")
    assert "--group_by=file:(\\d)\\.png: says how new splits are drawn; give --split=" in refused.err
    found = grow(more, data, r"--group_by=file:(\d)\.png", "--split=train:0.5,test:0.5")
    assert "holds for the new rows; those that are there were not dealt by it, so a group that is among" in found.out


def test_one_row_may_leave_splits_without_a_new_one(convert, grow, tmp_path):
    source, data = write_images(tmp_path / "a", range(40), splits=["x"]), tmp_path / "data"
    options = ("--split=train:0.5,test:0.5",)
    assert convert("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", *options).code == 0
    found = grow(write_images(tmp_path / "b", [77], splits=["x"]), data)
    assert (found.code, found.err) == (0, "")
    made, first = manifest.load(data), manifest.load(f"{data}@1")
    assert sum(split.num_examples for split in made.splits.values()) == 41
    assert len(made.shards) == len(first.shards) + 1


def test_there_is_nothing_to_append_to(grow, tmp_path):
    found = grow(write_images(tmp_path / "b", range(4)), tmp_path / "none")
    assert found.code != 0
    assert "holds no data set to append to" in found.err
    assert not (tmp_path / "none").exists()


def test_a_data_set_that_no_conversion_made_does_not_grow(data, grow, tmp_path):
    unknown = dataclasses.replace(manifest.load(data), source=())
    (data / naming.MANIFEST).write_bytes(unknown.to_bytes())
    refused = grow(write_images(tmp_path / "b", range(20, 26)), data)
    assert (refused.code, "was not made by a conversion" in refused.err) == (2, True)
    assert manifest.load(data) == unknown


def test_a_version_is_no_folder_to_write_to(data, grow, convert, tmp_path):
    source = write_images(tmp_path / "b", range(20, 26))
    assert "names one version; write to the data set's folder" in grow(source, f"{data}@1").err
    assert "names one version" in convert("--dataset=digits", f"--data_dir={data}@1", "--dry_run").err


@pytest.mark.slow
def test_overwriting_removes_all_versions(data, grow, convert, tmp_path):
    for number, name in enumerate("bc"):
        grow(write_images(tmp_path / name, range(20 + 6 * number, 26 + 6 * number)), data)
    assert len(versions.all_of(data)) == 3
    flags = ["--dataset=image_folder", f"--source={tmp_path / 'a'}", "--num_shards=1"]
    assert convert(*flags, f"--data_dir={data}", "--overwrite").code == 0
    convert(*flags, f"--data_dir={tmp_path / 'clean'}")
    assert files_of(data) == files_of(tmp_path / "clean")
    assert not (data / naming.VERSIONS).exists()


def test_another_command_that_appends_is_refused(data, grow, tmp_path):
    with sink_of(str(data)).locked():
        found = grow(write_images(tmp_path / "b", range(20, 26)), data)
    assert found.code != 0
    assert "another command is writing there" in found.err


def test_a_dry_run_writes_nothing(data, grow, tmp_path):
    before = files_of(data)
    found = grow(write_images(tmp_path / "b", range(20, 26), classes=["eel"]), data, "--dry_run")
    assert found.code == 0
    assert "version 1, 20 examples, would be followed by version 2" in found.out
    assert "'eel' = 2" in found.out
    assert files_of(data) == before


@pytest.mark.slow
def test_more_sizes_than_a_manifest_lists(convert, grow, tmp_path):
    data, first, more = tmp_path / "data", tmp_path / "a", tmp_path / "b"
    for folder, start in ((first, 0), (more, 70)):
        for number in range(start, start + 110):
            place = folder / "train" / "x"
            place.mkdir(parents=True, exist_ok=True)
            PIL.Image.new("L", (8 + number % 130, 8), number % 256).save(place / f"{number}-{start}.png")
    convert("--dataset=image_folder", f"--source={first}", f"--data_dir={data}")
    grow(more, data)
    both = tmp_path / "both"
    for folder in (first, more):
        for path in folder.rglob("*.png"):
            (both / "train/x").mkdir(parents=True, exist_ok=True)
            (both / "train/x" / path.name).write_bytes(path.read_bytes())
    convert("--dataset=image_folder", f"--source={both}", f"--data_dir={tmp_path / 'whole'}")
    made, whole = manifest.load(data), manifest.load(tmp_path / "whole")
    assert made.splits["train"].image_sizes == whole.splits["train"].image_sizes
    assert (made.image_mean, made.image_std) == (whole.image_mean, whole.image_std)
    assert sorted(made.columns) == sorted(whole.columns)
