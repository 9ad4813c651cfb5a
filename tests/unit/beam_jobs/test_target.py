import json
import os
import types

import pytest

from beam_jobs import target
from pipeline.errors import DataError, UsageError


@pytest.fixture
def data_set(mnist_folder, tmp_path, convert):
    """A converted tiny MNIST: its folder, and a function that converts again with other flags."""
    source, out = mnist_folder(), tmp_path / "out"

    def again(*flags):
        return convert("--dataset=mnist", f"--source={source}", f"--data_dir={out}", *flags)

    assert again("--num_shards=train:3,test:2").code == 0
    return source, out, again


def test_the_same_options_again_change_nothing(data_set, contents):
    _, out, again = data_set
    before = {name: (out / name).stat().st_mtime_ns for name in contents(out)}
    outcome = again("--num_shards=test:2,train:3")
    assert outcome.code == 0
    assert "holds this data set already, made with the same options" in outcome.out
    assert before == {name: (out / name).stat().st_mtime_ns for name in contents(out)}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--num_shards=3"], "--num_shards is test:2,train:3 there and train:3,test:3 here"),
        (["--num_shards=train:3,test:2", "--seed=4"], "--seed is 0 there and 4 here"),
    ],
)
def test_other_options_are_an_error_that_names_them(data_set, contents, flags, text):
    _, out, again = data_set
    before = contents(out)
    outcome = again(*flags)
    assert outcome.code == 2
    assert text in outcome.err
    assert "--overwrite" in outcome.err
    assert contents(out) == before


def test_every_difference_is_named_at_once(data_set):
    outcome = data_set[2]("--seed=4")
    assert "--num_shards is test:2,train:3 there and train:1,test:1 here; --seed is 0 there and 4 here" in outcome.err


def test_another_source_is_an_error_that_names_the_file(data_set):
    source, _, again = data_set
    path = source / "t10k-labels-idx1-ubyte"
    data = bytearray(path.read_bytes())
    data[8] = (data[8] + 1) % 10
    path.write_bytes(data)
    outcome = again("--num_shards=train:3,test:2")
    assert outcome.code == 2
    assert "the SHA-256 of --source's t10k-labels-idx1-ubyte is " in outcome.err


def test_another_data_set_is_an_error(data_set, cifar_folder, convert):
    outcome = convert("--dataset=cifar10", f"--source={cifar_folder()[0]}", f"--data_dir={data_set[1]}")
    assert outcome.code == 2
    assert "--dataset is mnist there and cifar10 here" in outcome.err


@pytest.mark.parametrize(
    ("damage", "text"),
    [(os.unlink, "is missing"), (lambda path: os.truncate(path, 5), "has 5 bytes, not ")],
)
def test_a_damaged_shard_is_seen(data_set, damage, text):
    _, out, again = data_set
    damage(out / "train-00001-of-00003.tfrecord")
    outcome = again("--num_shards=train:3,test:2")
    assert outcome.code == 1
    assert f"train-00001-of-00003.tfrecord: {text}" in outcome.err
    assert again("--num_shards=train:3,test:2", "--overwrite").code == 0
    assert again("--num_shards=train:3,test:2").code == 0


def test_overwrite_removes_what_the_manifest_lists_and_nothing_else(data_set, contents):
    _, out, again = data_set
    others = {"train-00000-of-00009.tfrecord": b"mine", "notes.txt": b"mine", ".hidden": b"mine"}
    for name, data in others.items():
        (out / name).write_bytes(data)
    outcome = again("--num_shards=1", "--overwrite")
    assert outcome.code == 0
    assert "note: 1 other shards lie there (train-00000-of-00009.tfrecord" in outcome.out
    found = contents(out)
    ours = {"manifest.json", "train-00000-of-00001.tfrecord", "test-00000-of-00001.tfrecord"}
    assert found.keys() == ours | others.keys()
    assert {name: found[name] for name in others} == others


def test_overwrite_never_removes_a_file_that_is_no_shard(data_set):
    _, out, again = data_set
    (out / "notes.txt").write_bytes(b"mine")
    manifest = json.loads((out / "manifest.json").read_text())
    shard = manifest["splits"]["test"]["shards"][0]
    shard["file"] = "notes.txt"
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert again("--overwrite").code == 0
    assert (out / "notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "not valid JSON"), ('{"format_version": 99}', "newer than"), ("[]", "format_version is None")],
)
@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_damaged_manifest_removes_nothing_and_says_what_to_do(data_set, contents, text, reason, flags):
    _, out, again = data_set
    (out / "manifest.json").write_text(text)
    before = contents(out)
    outcome = again(*flags)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert reason in outcome.err
    assert f"remove {out} yourself or choose another --data_dir" in outcome.err
    assert contents(out) == before


def test_bad_input_leaves_the_old_data_set_whole(data_set, contents):
    source, out, again = data_set
    before = contents(out)
    (source / "t10k-labels-idx1-ubyte").unlink()
    assert again("--overwrite").code == 1
    assert contents(out) == before


def test_leftovers_of_a_killed_conversion_are_replaced_and_cleared(mnist_folder, tmp_path, convert, contents):
    source, out, clean = mnist_folder(), tmp_path / "out", tmp_path / "clean"
    out.mkdir()
    left = {
        "train-00000-of-00002.tfrecord": b"half",
        ".train-00001-of-00002.tfrecord.tmp-0123456789abcdef": b"half",
        ".manifest.json.tmp-0123456789abcdef": b"half",
    }
    for name, data in left.items():
        (out / name).write_bytes(data)
    for folder in (out, clean):
        flags = ("--dataset=mnist", f"--source={source}", f"--data_dir={folder}", "--num_shards=2")
        assert convert(*flags).code == 0
    assert contents(out) == contents(clean)


def test_two_conversions_to_one_folder_are_refused(mnist_folder, tmp_path, convert, refused):
    out = tmp_path / "out"
    out.mkdir()
    with target._locked(out):
        outcome = convert("--dataset=mnist", f"--source={mnist_folder()}", f"--data_dir={out}")
    refused(outcome, 2, "another conversion is writing there", data_dir=out)


def test_a_data_dir_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "file/below"):
        with pytest.raises(UsageError, match="file is not a folder"):
            target.check_folder(tmp_path / name)
    with pytest.raises(UsageError, match="is a link to something that is not there"):
        target.check_folder(tmp_path / "link" / "below")
    target.check_folder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_no_permission_to_write_is_an_error(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="no permission to write"):
            target.check_folder(tmp_path / "out")
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_seen_before_anything_is_written(data_set, contents, monkeypatch):
    _, out, again = data_set
    before = contents(out)
    monkeypatch.setattr(target.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=100))
    size = sum(len(data) for name, data in before.items() if name != "manifest.json")
    monkeypatch.setattr(target.Plan, "num_bytes", property(lambda self: size + 101))
    outcome = again("--overwrite")
    assert outcome.code == 1
    assert f"the data set takes {size + 101} bytes, its disk has {size + 100} free; make room" in outcome.err
    assert contents(out) == before


def test_a_missing_manifest_is_no_data_set_and_a_dangling_one_an_error(tmp_path):
    assert target.existing_manifest(tmp_path) is None
    (tmp_path / "manifest.json").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="nothing was removed"):
        target.existing_manifest(tmp_path)
