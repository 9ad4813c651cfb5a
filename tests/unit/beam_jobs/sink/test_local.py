"""A local folder as a sink: what can become one, one conversion at a time, and what a failed one leaves."""

import dataclasses
import itertools
import shutil
import subprocess
import sys

import pytest

from beam_jobs.shards import writer
from beam_jobs.sink.local import LocalSink
from beam_jobs.sink.remote import RemoteSink
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.files.remote import RemotePath
from tests.helpers.converting import convert_in_process, write_data_set
from tests.helpers.forked import ROOT
from tests.helpers.made_source import Content
from tests.helpers.raised import at, said


def test_a_data_dir_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, culprit in (("file", "file"), ("file/below", "file"), ("link/below", "link")):
        with pytest.raises(UsageError, match=f"--data_dir={tmp_path / name}: {tmp_path / culprit} "):
            LocalSink(tmp_path / name).check("mnist", "")
    LocalSink(tmp_path / "a" / "b").check("mnist", "")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["", "train-00000-of-00001.tfrecord", "*.tfrecord"])
def test_records_in_the_folder_are_not_overwritten(name, tmp_path, monkeypatch):
    (tmp_path / "train-00000-of-00001.tfrecord").write_bytes(b"mine")
    monkeypatch.chdir(tmp_path)
    for source in (str(tmp_path / name), name or "."):
        with pytest.raises(UsageError, match=f"--data_dir={tmp_path}: .*--source"):
            LocalSink(tmp_path).check("tfrecord", source)
        LocalSink(tmp_path / "out").check("tfrecord", source)
    LocalSink(tmp_path).check("tfrecord", "s3://bucket/folder")
    (tmp_path / "manifest.json").write_bytes(b"")  # a data set can replace itself: it stays until the new one is whole
    LocalSink(tmp_path).check("tfrecord", str(tmp_path / name))


class ReachableStore(RemotePath):
    def files(self, recursive=False):
        return []


@pytest.mark.parametrize("dataset", ["image_folder", "mnist", "cifar10", "idx", "parquet", "tfrecord", "tfds:x"])
def test_a_source_neither_is_nor_lies_in_the_data_set(dataset, tmp_path, monkeypatch):
    source = tmp_path / "data" / "source"
    source.mkdir(parents=True)
    (source / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    same = [source, "data/../data/source", "link/source", "./link/../data/source/"]
    for name, data_dir in itertools.product(same, same):
        with pytest.raises(UsageError, check=said("--data_dir=", f"holds --source={name},")):
            LocalSink(LocalPath(data_dir).absolute()).check(dataset, str(name))
    for name, data_dir in itertools.product([*same, source / "file", f"{source}/f*"], [tmp_path, tmp_path / "link"]):
        with pytest.raises(UsageError, check=said("--data_dir=", f"contains --source={name},")):
            LocalSink(LocalPath(data_dir)).check(dataset, str(name))
    LocalSink(tmp_path / "data" / "out").check(dataset, str(source))
    LocalSink(tmp_path / "data" / "source-2").check(dataset, str(source))
    for name in (source / "file", f"{source}/f*"):
        LocalSink(source / "out").check(dataset, str(name))
    for inside in (source / "out", tmp_path / "link" / "source" / "a" / "b"):
        if dataset in ("image_folder", "parquet"):
            with pytest.raises(UsageError, check=said("lies in --source=data/source,")):
                LocalSink(inside).check(dataset, "data/source")
        else:
            LocalSink(inside).check(dataset, "data/source")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "link"]


MOUNTED_TWICE = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@pytest.mark.slow
def test_a_folder_that_is_mounted_twice_is_one(tmp_path):
    source, again = tmp_path / "source", tmp_path / "again"
    for folder in (source, again):
        folder.mkdir()
    (source / "a.png").write_bytes(b"")
    before = ["unshare", "-rm", "sh", "-c", MOUNTED_TWICE, "sh", source, again]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system mounts nothing for its users")
    convert = [sys.executable, "-m", "beam_jobs.convert", "--dataset=image_folder", f"--source={source}"]
    for place, word in (("", "holds"), ("/below", "lies in")):
        command = [*before, *convert, f"--data_dir={again}{place}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"{word} --source={source}, " in done.stderr


def test_the_root_and_the_home_folder_are_no_data_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "me").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "me")
    for place in ("/", "/usr/..", "//"):
        with pytest.raises(UsageError, check=said("--data_dir=", "root")):
            LocalSink(LocalPath(place)).check("digits", "")
    for place in (tmp_path / "me", tmp_path / "link", tmp_path / "me" / "x" / ".."):
        with pytest.raises(UsageError, check=said("--data_dir=", "home")):
            LocalSink(LocalPath(place)).check("digits", "")
    LocalSink(tmp_path / "me" / "data").check("digits", "")


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("s3://bucket/folder/below", True),
        ("s3://bucket/folder/below/*.tfrecord", True),
        ("s3://bucket/folder-2", False),
        ("s3://bucket", False),
        ("s3://bucket/folder", True),
        ("s3://bucket/folder/", True),
        ("s3://bucket/folder/*.tfrecord?region=eu-west-1", True),
        ("s3://bucket/other", False),
        ("/folder", False),
    ],
)
def test_records_in_the_store_are_not_overwritten(source, is_refused):
    sink = RemoteSink(ReachableStore("s3://bucket/folder"))
    sink.check("mnist", "")
    if is_refused:
        with pytest.raises(UsageError, match="--data_dir=s3://bucket/folder: .*--source"):
            sink.check("tfrecord", source)
    else:
        sink.check("tfrecord", source)


def test_a_store_is_not_written_to_below_parquet_files():
    sink = RemoteSink(ReachableStore("s3://bucket/folder"))
    sink.check("parquet", "s3://bucket/folder-2")
    for source in ("s3://bucket", "s3://bucket/"):
        with pytest.raises(UsageError, check=said("lies in --source,")):
            sink.check("parquet", source)


def test_a_data_dir_in_a_folder_of_images_would_be_a_class(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(UsageError, match=f"--data_dir={tmp_path / 'images' / 'out'}: .*--source={tmp_path / 'images'}"):
        LocalSink(tmp_path / "images" / "out").check("image_folder", str(tmp_path / "images"))
    LocalSink(tmp_path / "out").check("image_folder", str(tmp_path / "images"))


def test_a_full_disk_is_seen_before_anything_is_written(plan_of, pixels, tmp_path):
    plan = plan_of({"train": Content(pixels(5))})
    sample = dataclasses.replace(plan.sample, record_bytes={"train": 1e17})
    for passes, num_bytes in ((1, 5 * 10**17), (2, 10**18)):  # the first pass lies beside the second
        huge = dataclasses.replace(plan, sample=sample, config=dataclasses.replace(plan.config, passes=passes))
        opened = LocalSink(tmp_path / "out").opened(huge, None)
        with pytest.raises(DataError, check=at("out", f"{num_bytes:,} bytes", "free")), opened:
            pass
    assert not list((tmp_path / "out").iterdir())


def test_a_second_conversion_is_refused_while_one_writes_and_looks_anew_after_it(mnist_folder, tmp_path):
    flags = ("--dataset=mnist", f"--source={mnist_folder()}", f"--data_dir={tmp_path / 'out'}")

    def write_while_another_tries(plan):
        with pytest.raises(UsageError, match=f"--data_dir={tmp_path / 'out'}: another command"):
            convert_in_process(*flags, "--seed=1")
        write_data_set(plan)

    convert_in_process(*flags, write=write_while_another_tries)
    with pytest.raises(UsageError, match="--seed is 0 there and 1 here"):
        convert_in_process(*flags, "--seed=1")


def test_a_conversion_that_fails_leaves_the_old_data_set_whole(converted_mnist, tmp_path, contents, capsys):
    shutil.copytree(converted_mnist, tmp_path, dirs_exist_ok=True)
    out = tmp_path / "out"
    old = ("--dataset=mnist", f"--source={tmp_path / 'source'}", f"--data_dir={out}", "--num_shards=train:3,test:2")
    new, before = (*old, "--seed=1", "--overwrite"), contents(out)

    def write_two_shards(plan):
        list(writer.write_shards(plan, plan.elements[:2]))
        raise DataError("the worker was lost")

    with pytest.raises(DataError, match="the worker was lost"):
        convert_in_process(*new, write=write_two_shards)
    assert "kept 2 finished shards in " in capsys.readouterr().err
    assert contents(out) == before
    (folder,) = out.glob(".converting.tmp-*")
    inodes = {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord")}
    assert len(inodes) == 2
    assert not list(folder.glob(".*"))
    convert_in_process(*old)  # the old one
    convert_in_process(*new)
    assert not list(out.glob(".*"))


def test_links_at_the_names_of_shards_are_replaced_and_never_written_through(mnist_folder, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.write_bytes(b"mine")
    links = {"train-00000-of-00002.tfrecord": tmp_path / "gone", "train-00001-of-00002.tfrecord": elsewhere}
    links["test-00000-of-00002.tfrecord"] = tmp_path  # a folder
    for name, end in links.items():
        (out / name).symlink_to(end)
    convert_in_process("--dataset=mnist", f"--source={mnist_folder()}", f"--data_dir={out}", "--num_shards=2")
    assert not any((out / name).is_symlink() for name in links)
    assert not (tmp_path / "gone").exists()
    assert elsewhere.read_bytes() == b"mine"
