import json
import os
import types

import pytest

from beam_jobs import jobs, target
from beam_jobs.convert import main
from pipeline.errors import DataError, UsageError


def flip_last_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


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
    [
        (os.unlink, "No such file or directory; "),
        (lambda path: os.truncate(path, 5), "5 bytes, but the manifest says "),
        (flip_last_bit, "its CRC32C is "),
    ],
)
def test_a_damaged_shard_is_seen(data_set, damage, text):
    _, out, again = data_set
    damage(out / "train-00001-of-00003.tfrecord")
    outcome = again("--num_shards=train:3,test:2")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "train-00001-of-00003.tfrecord: " in outcome.err
    assert text in outcome.err
    assert "--overwrite" in outcome.err
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
    changed = json.loads((out / "manifest.json").read_text())
    changed["splits"]["test"]["shards"][0]["file"] = "notes.txt"
    (out / "manifest.json").write_text(json.dumps(changed))
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
    with target.locked(out):
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


def test_a_full_disk_is_seen_before_anything_is_written(data_set, contents, monkeypatch):
    _, out, again = data_set
    before = contents(out)
    monkeypatch.setattr(target.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=100))
    monkeypatch.setattr(target.Plan, "num_bytes", property(lambda self: 101))
    outcome = again("--overwrite")
    assert outcome.code == 1
    text = "the data set takes 101 bytes, beside the one that it replaces, its disk has 100 free; make room"
    assert text in outcome.err
    assert contents(out) == before


def test_no_other_conversion_comes_between_the_look_and_the_write(mnist_folder, tmp_path, convert, monkeypatch):
    flags = ("--dataset=mnist", f"--source={mnist_folder()}", f"--data_dir={tmp_path / 'out'}")
    look, refusals = target.existing_manifest, []

    def another_one_after(data_dir):
        present = look(data_dir)
        monkeypatch.setattr(target, "existing_manifest", look)
        try:
            main([*flags, "--seed=1"])
        except UsageError as error:
            refusals.append(str(error))
        return present

    monkeypatch.setattr(target, "existing_manifest", another_one_after)
    assert convert(*flags).code == 0
    assert refusals == [f"--data_dir={tmp_path / 'out'}: another conversion is writing there; wait for its end"]
    assert convert(*flags, "--seed=1").code == 2  # looks anew


def test_a_runner_that_fails_leaves_the_old_data_set_whole(data_set, contents, monkeypatch):
    _, out, again = data_set
    before, write_shard, written = contents(out), jobs.write_shard, []

    def fails_at_the_third(plan, split, shard):
        if len(written) == 2:
            raise RuntimeError("the worker was lost")
        written.append(write_shard(plan, split, shard))
        return written[-1]

    monkeypatch.setattr(jobs, "write_shard", fails_at_the_third)
    outcome = again("--num_shards=train:3,test:2", "--seed=1", "--overwrite")
    assert outcome.code == 1
    assert len(written) == 2
    assert contents(out) == before


def test_a_runner_without_its_options_changes_nothing(data_set, contents):
    _, out, again = data_set
    before = contents(out)
    outcome = again("--overwrite", "--runner=PortableRunner")
    assert outcome.code == 2
    assert "--runner=PortableRunner: --job_endpoint is missing" in outcome.err
    assert contents(out) == before


def test_links_in_the_place_of_shards_are_replaced_and_never_written_through(mnist_folder, tmp_path, convert):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.write_bytes(b"mine")
    links = {"train-00000-of-00002.tfrecord": tmp_path / "gone", "train-00001-of-00002.tfrecord": elsewhere}
    links["test-00000-of-00002.tfrecord"] = tmp_path  # a folder
    for name, place in links.items():
        (out / name).symlink_to(place)
    outcome = convert("--dataset=mnist", f"--source={mnist_folder()}", f"--data_dir={out}", "--num_shards=2")
    assert outcome.code == 0, outcome
    assert not any((out / name).is_symlink() for name in links)
    assert not (tmp_path / "gone").exists()
    assert elsewhere.read_bytes() == b"mine"


def test_a_missing_manifest_is_no_data_set_and_a_dangling_one_an_error(tmp_path):
    assert target.existing_manifest(tmp_path) is None
    (tmp_path / "manifest.json").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="nothing was removed"):
        target.existing_manifest(tmp_path)
