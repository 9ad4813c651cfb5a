import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.edit import main
from beam_jobs.report import card
from beam_jobs.sink import sink_of, staging
from beam_jobs.validate import main as validate
from pipeline import RandomAccess, manifest
from pipeline.errors import DataError, PipelineError
from pipeline.inspect.__main__ import main as inspect
from pipeline.manifest import croissant, naming, versions
from pipeline.read.statistics import entropy
from tests.helpers.converting import convert_in_process
from tests.unit.beam_jobs.conversion.test_appending import files_of, write_images

STATISTICS = ("image_mean", "image_std", "class_names")


@pytest.fixture
def edit(capfd):
    """Runs the command in this process; returns its exit code, and what it printed."""

    def call(data, *flags):
        capfd.readouterr()
        code, text = 0, ""
        try:
            main([str(data), *map(str, flags)])
        except PipelineError as error:
            code, text = error.exit_code, f"{error}\n"
        out, err = capfd.readouterr()
        return code, out, err + text

    return call


@pytest.fixture
def data(convert_without_beam, tmp_path):
    """A data set of 12 + 8 images in 3 + 1 shards."""
    write_images(tmp_path / "a", range(12), splits=["train"])
    write_images(tmp_path / "a", range(12, 20), splits=["test"])
    flags = ["--dataset=image_folder", f"--source={tmp_path / 'a'}", "--num_shards=train:3,test:1"]
    found = convert_without_beam(*flags, f"--data_dir={tmp_path / 'data'}")
    assert (found.code, found.err) == (0, "")
    return tmp_path / "data"


def keys_of(data, split="train"):
    return [bytes(record["key"]) for record in RandomAccess(data, split)]


def labels_of(data, split="train"):
    return {bytes(record["key"]).decode(): record["label"] for record in RandomAccess(data, split)}


def column_of(data, split, name):
    return np.load(data / naming.column_name(split, name, manifest.load(data).columns[name].files[split]))


def table(path, rows, names="key,label"):
    path.write_text("\n".join([names, *rows]) + "\n")
    return path


def test_labels_are_set_and_other_shards_stay(data, edit, tmp_path, monkeypatch):
    monkeypatch.setattr(card, "renew_croissant", lambda folder: False)  # the version itself has the file
    before, first = files_of(data), manifest.load(data)
    shards = {shard.file: set(keys_of_shard(data, shard)) for shard in first.splits["train"].shards}
    changed = ["train/cat/0.png", "train/dog/1.png", "train/cat/2.png"]
    rows = [f"{changed[0]},dog", f"{changed[1]},ant", f"{changed[2]},cat"]  # the last one is so already
    code, out, err = edit(data, f"--set_labels={table(tmp_path / 'labels.csv', rows)}")
    assert (code, err) == (0, "")
    assert "version 2: labels set: 2; " in out
    assert "behind those that it has: 'ant' = 2\n" in out
    assert f"version 1 stays: {data}@1; runs that began on it resume on it, and move by --data_dir={data}@2" in out
    made, after = manifest.load(data), files_of(data)
    outdated = {naming.MANIFEST, naming.CROISSANT, *naming.TFDS_FILES}
    assert {name: content for name, content in before.items() if name not in outdated}.items() <= after.items()
    assert croissant.problem_of(after[naming.CROISSANT], after[naming.MANIFEST]) is None
    assert manifest.load(f"{data}@1") == first
    assert (made.version, made.parent, made.format_version) == (2, first.digest, 8)
    assert (made.edit.labels, made.edit.deleted, made.edit.removed) == (2, 0, ())
    written = [i for i, keys in enumerate(shards.values()) if keys & {key.encode() for key in changed[:2]}]
    names = iter(f"train-v2-{number:05d}-of-{len(written):05d}.tfrecord" for number in range(3))
    wanted = [next(names) if number in written else file for number, file in enumerate(shards)]
    assert [shard.file for shard in made.splits["train"].shards] == wanted
    assert made.splits["test"].shards == first.splits["test"].shards
    assert keys_of(data) == keys_of(f"{data}@1")
    labels = labels_of(f"{data}@1")
    assert labels_of(data) == labels | {changed[0]: 1, changed[1]: 2}
    assert made.splits["train"].label_histogram == (5, 6, 1)
    assert made.splits["test"].label_histogram == (4, 4, 0)
    for shard in made.splits["train"].shards:
        found = [labels_of(data)[key.decode()] for key in keys_of_shard(data, shard)]
        assert shard.label_entropy == entropy(np.bincount(found).tolist())
    assert column_of(data, "train", "label").tolist() == list(labels_of(data).values())
    assert "<dt>version 2</dt><dd>labels set: 2</dd>" in (data / naming.CARD).read_text()
    assert (made.image_mean, made.image_std) == (first.image_mean, first.image_std)

    described = {node["@id"]: node for node in json.loads(after[naming.CROISSANT])["distribution"]}
    assert described["train-shards"]["includes"] == wanted  # the pattern train-* has shards of version 1, too

    again = files_of(data)
    code, out, err = edit(data, f"--set_labels={tmp_path / 'labels.csv'}")
    assert (code, out, err) == (0, f"{data}: its newest version has these edits; nothing to do\n", "")
    assert files_of(data) == again


def test_a_version_is_a_source_and_shards_of_an_older_one_are_not_taken_for_the_newest(data, edit, tmp_path):
    edit(data, f"--set_labels={table(tmp_path / 'labels.csv', ['train/cat/0.png,dog'])}")
    for version, label in ((1, 0), (2, 1)):
        copy = tmp_path / f"copy{version}"
        convert_in_process("--dataset=tfrecord", f"--source={data}@{version}", f"--data_dir={copy}")
        found = labels_of(copy)
        assert (len(found), found["train/cat/0.png"]) == (12, label)
    (old,) = {shard.file for shard in manifest.load(f"{data}@1").shards} - {s.file for s in manifest.load(data).shards}
    for source in ("train-*", old):
        with pytest.raises(
            DataError, match=f"{old}: is of an older version of {data}, .*; give --source={data} for the"
        ):
            convert_in_process("--dataset=tfrecord", f"--source={data}/{source}", f"--data_dir={tmp_path}/none")
    with pytest.raises(DataError, match="has no version 3; it has 1 "):
        convert_in_process("--dataset=tfrecord", f"--source={data}@3", f"--data_dir={tmp_path}/none")


def keys_of_shard(data, shard):
    from pipeline.manifest.splits import Segment
    from pipeline.records.tf_example import keys_of

    return list(keys_of(data / shard.file, Segment(shard, 0, shard.num_examples)))


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("size", [(8, 8), None])
@pytest.mark.quick(2)
def test_what_stays_is_described_as_a_conversion_of_it_does(size, compression, convert_without_beam, edit, tmp_path):
    sources = {}
    for name, left_out in (("all", ()), ("rest", ("train/cat/4.png", "train/dog/7.png", "test/dog/13.png"))):
        for number in range(18):
            split = "train" if number < 12 else "test"
            write_images(tmp_path / name, [number], splits=[split], size=size or (8 + number % 3, 9))
        for key in left_out:
            (tmp_path / name / key).unlink()
        sources[name] = tmp_path / name
        flags = ["--dataset=image_folder", f"--source={sources[name]}", "--num_shards=train:3,test:2"]
        convert_without_beam(*flags, f"--data_dir={tmp_path / f'of_{name}'}", f"--compression={compression}")
    data, rest = tmp_path / "of_all", manifest.load(tmp_path / "of_rest")
    labels = table(tmp_path / "labels.csv", ["train/cat/2.png,dog", "train/cat/8.png,1"])
    (tmp_path / "keys").write_text("\ufefftrain/cat/4.png\ntrain/dog/7.png\r\ntest/dog/13.png\n")
    code, _, err = edit(data, f"--delete=@{tmp_path / 'keys'}", f"--set_labels={labels}")
    assert (code, err) == (0, "")
    made = manifest.load(data)
    assert {name: getattr(made, name) for name in STATISTICS} == {name: getattr(rest, name) for name in STATISTICS}
    for name, split in made.splits.items():
        assert split.image_sizes == rest.splits[name].image_sizes
        assert split.num_examples == rest.splits[name].num_examples
    assert made.splits["train"].label_histogram == (3, 7)
    assert made.splits["test"].label_histogram == rest.splits["test"].label_histogram
    edited, converted = (
        {bytes(one["key"]): one["image"].tobytes() for one in RandomAccess(place, "train")}
        for place in (data, tmp_path / "of_rest")
    )
    assert edited == converted
    assert column_of(data, "train", "label").tolist() == list(labels_of(data).values())
    lengths = [len(record) for record in records_in(data, "train")]
    assert column_of(data, "train", "bytes").tolist() == lengths
    if size is None:
        assert len(column_of(data, "train", "height")) == 10


def records_in(data, split):
    from pipeline.records.stream import records_of

    for shard in manifest.load(data).splits[split].shards:
        yield from (record for _, record in records_of(data / shard.file, shard.compression))


def test_a_deleted_record_is_in_no_file_and_its_versions_are_refused(convert_without_beam, edit, tmp_path):
    source, data = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    rows = [{"id": f"patient-{n}", "image": picture_of(n), "label": n % 2, "name": f"Name{n}"} for n in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), source / "train.parquet")
    flags = ["--dataset=parquet", f"--source={source}", "--key_column=id", "--keep_columns=name", "--num_shards=4"]
    convert_without_beam(*flags, f"--data_dir={data}")
    assert "Name13" in manifest.load(data).columns["name"].values
    (data / naming.REJECTS).write_text(
        '{"file": "b.csv", "reason": "its key, \'patient-13\', is in the data set", "row": 3, "split": "train"}\n'
        '{"file": "c.csv", "reason": "no image", "row": 3, "split": "train"}\n'
    )
    edit(data, f"--set_labels={table(tmp_path / 'labels.csv', ['patient-1,1', 'patient-13,0'])}")
    twin = shutil.copytree(data, tmp_path / "twin")
    code, out, err = edit(data, "--delete=patient-13", "--dry_run")
    assert (code, err) == (0, "")
    assert "version 3: records deleted: 1; 1 of 4 shards to write again" in out
    assert "versions 1, 2 held records to delete" in out
    assert files_of(data) == files_of(twin)
    code, out, err = edit(data, "--delete=patient-13")
    assert (code, err) == (0, "")
    assert out.endswith(
        f"deleted: no file of the data set in {data} holds them any more; copies elsewhere are as they were\n"
    )
    for path in data.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(text in content for text in (b"patient-13", b"Name13", picture_of(13))), path
    assert len((data / naming.REJECTS).read_text().splitlines()) == 2
    assert "no image" in (data / naming.REJECTS).read_text()
    assert keys_of(data) == [key for key in keys_of(twin) if key != b"patient-13"]
    made = manifest.load(data)
    assert "Name12" in made.columns["name"].values
    names = [made.columns["name"].values[code] for code in column_of(data, "train", "name")]
    assert names == [f"Name{key.decode()[8:]}" for key in keys_of(data)]
    for version in (1, 2):
        digest = manifest.load(f"{twin}@{version}").digest
        for name in (version, digest[:12], digest):
            with pytest.raises(
                DataError, match=rf"version {version} held records that were deleted on 20.*; use {data}@3"
            ):
                manifest.load(f"{data}@{name}")
    assert manifest.load(f"{data}@3") == made
    assert made.edit.removed == tuple(sorted(made.edit.removed))
    assert len(made.edit.removed) == 2  # in version 1, and in version 2
    left = [f"{number}-{manifest.load(f'{twin}@{number}').short}.deleted" for number in (1, 2)]
    assert sorted(path.name for path in (data / naming.VERSIONS).iterdir()) == [*left, "log.jsonl"]
    assert versions.log_of(data).keys() == {made.parent, made.digest}
    listed = {shard.file for shard in made.shards}
    assert {path.name for path in data.glob("*.tfrecord")} == listed
    assert edit(data, "--delete=patient-13")[1].startswith(
        f"{data}: its newest version has these edits; nothing to do\n"
    )


def picture_of(number):
    import io

    import PIL.Image

    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
    PIL.Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.mark.slow
def test_a_version_that_held_no_deleted_record_stays(data, convert_without_beam, edit, convert, tmp_path, capfd):
    more = write_images(tmp_path / "b", range(20, 26), splits=["train"])
    flags = ["--dataset=image_folder", f"--source={more}", f"--data_dir={data}", "--append"]
    assert convert(*flags).code == 0
    first, second = versions.all_of(data)
    edit(data, "--delete=train/cat/20.png")
    assert manifest.load(f"{data}@1") == first
    assert len(keys_of(f"{data}@1")) == 12
    third = manifest.load(data)
    assert versions.descends(data, third, first.digest)
    assert versions.descends(data, third, second.digest)
    capfd.readouterr()
    inspect([str(data)])
    lines = capfd.readouterr().out.splitlines()[-3:]
    assert lines[0].split()[:3] == ["1", first.short, "20"]
    assert lines[1].split()[:3] == ["2", second.short, "-"]
    assert "gone, 20" in lines[1]
    assert lines[2].split()[:4] == ["3", "*", third.short, "25"]
    assert lines[2].endswith("records deleted: 1")
    assert convert(*flags).code == 1  # the other rows are there; the deleted one would come back
    assert convert(*flags, "--max_rejects=5").code == 0
    assert b"train/cat/20.png" in keys_of(data)


def test_a_shard_without_records_is_left_out(data, edit):
    first = manifest.load(data).splits["train"].shards[1]
    keys = keys_of_shard(data, first)
    code, _, err = edit(data, f"--delete={','.join(key.decode() for key in keys)}")
    assert (code, err) == (0, "")
    made = manifest.load(data)
    assert [shard.file for shard in made.splits["train"].shards] == [
        "train-00000-of-00003.tfrecord",
        "train-00002-of-00003.tfrecord",
    ]
    assert made.splits["train"].num_examples == 12 - len(keys)
    assert len(column_of(data, "train", "label")) == 12 - len(keys)


REFUSED = {
    "unknown": (["--delete=train/cat/0.png,no,nor"], "--delete: the data set lacks 2 of 3 keys: 'no', 'nor'"),
    "unknown of a table": (
        ["--set_labels=TABLE:no,cat"],
        "--set_labels: the data set lacks 1 of 1 key: 'no'",
    ),
    "in both": (
        ["--set_labels=TABLE:train/cat/0.png,dog", "--delete=train/cat/0.png"],
        "1 key in both, such as 'train",
    ),
    "a number": (
        ["--set_labels=TABLE:train/cat/0.png,2"],
        "row 0: has the label '2': not a class of the data set, which",
    ),
    "no label": (["--set_labels=TABLE:train/cat/0.png,"], "row 0: has the label '': it is empty"),
    "twice": (["--set_labels=TABLE:a,dog\na,cat"], "row 1: has the key 'a' of an earlier row"),
    "no column": (["--set_labels=NAMES:train/cat/0.png,dog"], "has no column 'key'"),
    "no file": (["--set_labels=no.csv"], "no.csv"),
    "no keys": (["--delete=@no.txt"], "no.txt: cannot be read: No such file"),
    "no key": (["--delete=,"], "--delete=,: names no key"),
    "nothing": ([], "nothing to change; give --set_labels=FILE, --delete=KEYS, or both"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_and_nothing_changed(name, data, edit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags, said = REFUSED[name]
    made = []
    for flag in flags:
        start, mark, rows = flag.partition("TABLE:") if "TABLE:" in flag else flag.partition("NAMES:")
        names = "key,label" if mark == "TABLE:" else "name,label"
        made.append(f"{start}{table(tmp_path / 'table.csv', [rows], names)}" if mark else flag)
    before = files_of(data)
    code, out, err = edit(data, *made)
    assert code in (1, 2)
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert files_of(data) == before


def test_no_split_becomes_empty(data, edit):
    keys = [key.decode() for key in keys_of(data, "test")]
    before = files_of(data)
    code, _, err = edit(data, f"--delete={','.join(keys)}")
    assert code == 2
    assert "--delete: no record of the split 'test' would stay" in err
    assert files_of(data) == before
    assert edit(data, f"--delete={','.join(keys[1:])}")[0] == 0
    assert keys_of(data, "test") == [keys[0].encode()]


def test_folders_that_an_edit_cannot_write_are_refused(data, edit, tmp_path):
    flags = ["--delete=train/cat/0.png"]
    assert "an edit follows the newest version; give" in edit(f"{data}@1", *flags)[2]
    assert "HDFS cannot replace a manifest in one step" in edit("hdfs://name/data", *flags)[2]
    assert "there is no such folder" in edit(tmp_path / "no", *flags)[2]
    with sink_of(str(data)).locked():
        code, _, err = edit(data, *flags)
    assert code == 2
    assert "another command is writing there; wait until it ends" in err
    foreign = shutil.copytree(data, tmp_path / "foreign")
    made = manifest.load(foreign)
    features = {**made.features, "image": dataclasses.replace(made.features["image"], stored_as="picture")}
    (foreign / naming.MANIFEST).write_bytes(
        dataclasses.replace(made, features=features, format_version=6, columns={}).to_bytes()
    )
    code, _, err = edit(foreign, *flags)
    assert code == 2
    assert "holds records of another writer" in err


def test_numbered_classes_numbers_and_several_labels(convert_without_beam, edit, tmp_path):
    rows = [{"id": f"k{n}", "image": picture_of(n), "label": n % 3, "score": n / 8} for n in range(9)]
    rows = [{**row, "tags": ["red", "blue"][: n % 3] or ["red"]} for n, row in enumerate(rows)]
    source = tmp_path / "source"
    source.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), source / "train.parquet")
    base = ["--dataset=parquet", f"--source={source}", "--key_column=id", "--num_shards=2"]
    cases = {
        "label": ([], "k1,4", 4),
        "score": (["--float_labels"], "k1,0.1", np.float32(0.1)),
        "tags": ([], 'k1,"blue"', [1, 0]),
    }
    for column, (flags, row, wanted) in cases.items():
        data = tmp_path / column
        assert convert_without_beam(*base, *flags, f"--label_column={column}", f"--data_dir={data}").code == 0
        before = manifest.load(data)
        code, _, err = edit(data, f"--set_labels={table(tmp_path / 'labels.csv', [row])}")
        assert (code, err) == (0, "")
        assert np.array_equal(labels_of(data)["k1"], wanted)
        assert np.array_equal(labels_of(data)["k2"], labels_of(f"{data}@1")["k2"])
        made = manifest.load(data)
        if column == "label":
            assert made.class_names == ("0", "1", "2", "3", "4")
            assert made.splits["train"].label_histogram == (3, 2, 3, 0, 1)
        if column == "score":
            assert column_of(data, "train", "label").tolist() == [float(each) for each in labels_of(data).values()]
        if column == "tags":
            assert before.splits["train"].label_histogram == (3, 9)
            assert made.splits["train"].label_histogram == (4, 8)
            code, _, err = edit(data, f"--set_labels={table(tmp_path / 'labels.csv', ['k1,green'])}")
            assert (code, "has the label 'green': not a class of the data set" in err) == (1, True)


def test_an_edit_is_a_digest_of_what_it_changes(data, edit):
    edit(data, "--delete=train/cat/0.png,train/dog/1.png")
    first = manifest.load(f"{data}@2")
    keys = sorted(key.hex() for key in (b"train/cat/0.png", b"train/dog/1.png"))
    text = json.dumps([first.parent, [], keys])
    assert first.edit.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_a_conversion_replaces_an_edited_data_set_only_as_a_whole(data, convert_without_beam, edit, tmp_path):
    flags = [
        "--dataset=image_folder",
        f"--source={tmp_path / 'a'}",
        f"--data_dir={data}",
        "--num_shards=train:3,test:1",
    ]
    before = files_of(data)
    edit(data, f"--set_labels={table(tmp_path / 'labels.csv', ['train/cat/0.png,dog'])}")
    found = convert_without_beam(*flags)
    assert found.code == 2
    assert "what was edited is labels set: 1 there and nothing here" in found.err
    edit(data, "--delete=train/cat/2.png")
    assert convert_without_beam(*flags, "--overwrite").code == 0
    assert files_of(data) == before


def test_validate_names_a_shard_that_a_killed_deletion_left(data, edit, tmp_path, capfd):
    kept = shutil.copytree(data, tmp_path / "kept")
    edit(data, "--delete=train/cat/0.png")
    [name] = manifest.load(data).edit.removed
    shutil.copy(kept / name, data / name)
    with pytest.raises(DataError, match="2 problems in the other files"):
        validate([str(data)])
    out = capfd.readouterr().out
    assert f"{name}: holds records that version 2 deleted; the same edit, run again, removes it" in out
    assert "of version 2 (records deleted: 1)" in out
    assert edit(data, "--delete=train/cat/0.png")[0] == 0
    validate([str(data)])
    assert not (data / name).exists()


def test_an_append_finishes_a_deletion_that_was_killed(data, convert, edit, monkeypatch, tmp_path):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(staging, "_remove_for_good", killed)
        with pytest.raises(KeyboardInterrupt):
            edit(data, "--delete=train/cat/0.png")
    [name] = manifest.load(data).edit.removed
    assert (data / name).exists()
    with pytest.raises(DataError, match=rf"version 1 held records that were deleted; use {data}@2"):
        manifest.load(f"{data}@1")
    more = write_images(tmp_path / "b", range(20, 22), splits=["train"])
    assert convert("--dataset=image_folder", f"--source={more}", f"--data_dir={data}", "--append").code == 0
    assert not (data / name).exists()
    assert [made.version for made in versions.all_of(data)] == [2, 3]
    assert [gone.version for gone in manifest.gone_in(data)] == [1]
