import json
import os
import shutil
import types

import pytest

from beam_jobs.convert import main
from beam_jobs.examples import images
from beam_jobs.shards import manifest_writer, writer
from beam_jobs.storage.paths import RemotePath
from beam_jobs.target import target
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import naming
from tests.made_source import Content


def flip_last_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def data_set(converted_mnist, tmp_path, convert):
    """A converted tiny MNIST: its source, its folder, and a function that converts again with other flags."""
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(converted_mnist, tmp_path, dirs_exist_ok=True)

    def again(*flags):
        return convert("--dataset=mnist", f"--source={source}", f"--data_dir={out}", *flags)

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
        (["--num_shards=train:3,test:2", "--compression=GZIP"], "--compression is not given there and GZIP here"),
        (["--num_shards=train:3,test:2", "--image_encoding=png"], "--image_encoding is not given there and png here"),
        (["--num_shards=train:3,test:2", "--resize=14x14"], "--resize is not given there and 14x14 here"),
        (["--num_shards=train:3,test:2", "--channels=3"], "--channels is not given there and 3 here"),
        (["--num_shards=train:3,test:2", "--passes=2"], "--passes is not given there and 2 here"),
        (
            ["--num_shards=train:3,test:2", "--split=train:0.5,test:0.5"],
            "--split is not given there and train:0.5,test:0.5 here",
        ),
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
    outcome = data_set[2]("--seed=4", "--resize=14x14", "--channels=3", "--compression=GZIP")
    assert (
        "--channels is not given there and 3 here; --compression is not given there and GZIP here; "
        "--num_shards is test:2,train:3 there and train:1,test:1 here; --resize is not given there and 14x14 here; "
        "--seed is 0 there and 4 here"
    ) in outcome.err


@pytest.mark.parametrize("flags", [["--max_rejects=7"], ["--max_shard_bytes=1048576"]])
def test_options_that_shape_no_byte_may_differ(data_set, flags):
    outcome = data_set[2]("--num_shards=train:3,test:2", *flags)
    assert outcome.code == 0
    assert "nothing to do" in outcome.out


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


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 8), flip_last_bit])
def test_damaged_offsets_are_seen(damage, made, pixels, tmp_path, convert):
    files = [images.encoded(pixels(1, (size, 9, 3))[0], "png") for size in (4, 9, 30)]
    flags = ("--dataset=made", f"--source={made({'train': Content(files)})}", f"--data_dir={tmp_path / 'out'}")
    assert convert(*flags).code == 0
    assert "nothing to do" in convert(*flags).out
    damage(tmp_path / "out" / "train-00000-of-00001.tfrecord.offsets")
    outcome = convert(*flags)
    assert outcome.code == 1
    assert "train-00000-of-00001.tfrecord.offsets: " in outcome.err
    assert convert(*flags, "--overwrite").code == 0
    assert "nothing to do" in convert(*flags).out


def test_overwrite_removes_what_the_manifest_lists_and_nothing_else(data_set, contents):
    _, out, again = data_set
    others = {"train-00000-of-00009.tfrecord": b"mine", "notes.txt": b"mine", ".hidden": b"mine"}
    for name, data in others.items():
        (out / name).write_bytes(data)
    outcome = again("--num_shards=1", "--overwrite")
    assert outcome.code == 0
    assert "note: 1 other shards lie there (train-00000-of-00009.tfrecord" in outcome.out
    found = contents(out)
    ours = {"manifest.json", *naming.TFDS_FILES, "train-00000-of-00001.tfrecord", "test-00000-of-00001.tfrecord"}
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
    assert "the data set takes 202 bytes" in again("--overwrite", "--passes=2").err  # the first pass lies beside it
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


def test_a_worker_that_fails_leaves_the_old_data_set_whole(data_set, contents, monkeypatch):
    _, out, again = data_set
    before, publish, written = contents(out), writer._publish, []

    def fails_at_the_third(draft, folder, receipt):
        if len(written) == 2:
            raise RuntimeError("the worker was lost")
        written.append(publish(draft, folder, receipt))
        return written[-1]

    flags = ("--num_shards=train:3,test:2", "--seed=1", "--overwrite")
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_publish", fails_at_the_third)
        outcome = again(*flags)
    assert outcome.code == 1
    assert "2 finished shards are kept in " in outcome.err
    assert contents(out) == before
    assert len(list(out.glob(".converting.tmp-*/*.tfrecord"))) == 2
    assert not list(out.glob(".converting.tmp-*/.*"))
    assert again("--num_shards=train:3,test:2").code == 0  # the old one
    assert again(*flags).code == 0
    assert not list(out.glob(".*"))


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


@pytest.mark.parametrize("name", ["", "train-00000-of-00001.tfrecord", "*.tfrecord"])
def test_records_in_the_folder_are_not_written_over(name, tmp_path, monkeypatch):
    (tmp_path / "train-00000-of-00001.tfrecord").write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    source = str(tmp_path / name)
    with pytest.raises(UsageError, match=rf"--data_dir={tmp_path}: holds --source, whose files could be written over"):
        target.check_apart(source, tmp_path, None)
    target.check_apart(source, tmp_path / "out", None)
    target.check_apart("s3://bucket/folder", tmp_path, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="holds --source"):
        target.check_apart(name or ".", tmp_path, None)


def test_a_local_data_set_can_replace_itself_and_one_in_a_store_not(plan_of, pixels, tmp_path):
    plan = plan_of({"train": Content(pixels(5))}, out="out")
    manifest_writer.publish(plan, [writer.make_shard(plan, *element) for element in plan.elements])
    present = manifest.load(tmp_path / "out")
    target.check_apart(str(tmp_path / "out"), tmp_path / "out", present)
    for source in ("s3://bucket/folder", "s3://bucket/folder/", "s3://bucket/folder/*.tfrecord?region=eu-west-1"):
        with pytest.raises(UsageError, match="--data_dir=s3://bucket/folder: holds --source"):
            target.check_apart(source, RemotePath("s3://bucket/folder"), present)
    target.check_apart("s3://bucket/other", RemotePath("s3://bucket/folder"), None)
    target.check_apart(str(tmp_path), RemotePath("s3://bucket/folder"), None)
