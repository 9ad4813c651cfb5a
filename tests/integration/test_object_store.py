"""Conversion into an object store, against an S3 server on the loopback interface."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.Image
import pytest

from beam_jobs import convert, drafts, edit, validate
from beam_jobs.config import ConvertConfig
from beam_jobs.plan import make_plan
from beam_jobs.shards import manifest_writer, receipts, writer
from beam_jobs.sink import staging
from beam_jobs.sink.present import columns_of
from beam_jobs.sink.remote import leased
from pipeline import manifest
from pipeline.errors import DataError, RerunError, TransientError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.files.remote import RemotePath
from pipeline.manifest import naming
from tests.helpers import forked
from tests.helpers.converting import convert_in_process, killed_in
from tests.helpers.forked import free_ports
from tests.helpers.lanes import some_slow


def digits(data_dir: object, *flags: str) -> list[str]:
    return ["--dataset=digits", f"--data_dir={data_dir}", "--num_shards=train:5,test:2", *flags]


@pytest.mark.parametrize("flags", [(), ("--compression=GZIP",)], ids=["plain", "compressed"])
def test_same_bytes_as_in_a_folder(bucket, tmp_path, flags):
    convert.main(digits(tmp_path / "here", *flags))
    convert.main(digits(bucket / "there", *flags))
    names = [name for name in LocalPath(tmp_path / "here").files(recursive=True) if name != "card.html"]
    assert [name for name in (bucket / "there").files(recursive=True) if name != "card.html"] == names
    for name in names:
        assert (bucket / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


def keys(bucket: RemotePath) -> list[str]:
    """Returns the keys of all objects, which a file system hides in part."""
    with urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/{bucket.name}?list-type=2") as answer:
        return re.findall("<Key>(.*?)</Key>", answer.read().decode())


def test_a_dry_run_writes_no_object(bucket, capsys):
    convert.main(digits(bucket / "there", "--dry_run"))
    assert f"digits: 1,797 examples to 7 shards in {bucket}/there (a dry run: nothing" in capsys.readouterr().out
    assert keys(bucket) == []
    convert_in_process(*digits(bucket / "there"))
    before = keys(bucket)
    convert.main(digits(bucket / "there", "--dry_run", "--seed=4", "--overwrite"))
    assert f"{bucket}/there: holds digits, 1,797 examples, which would be replaced" in capsys.readouterr().out
    assert keys(bucket) == before


def test_the_printed_commands_reach_the_store_that_only_the_url_names(bucket, endpoint, monkeypatch, capsys):
    for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    place = f"{bucket}/my data?endpoint_override={endpoint.partition('://')[2]}&scheme=http&region=us-east-1"
    convert.main(["--dataset=digits", f"--data_dir={place}"])
    line = next(line for line in capsys.readouterr().out.splitlines() if "pipeline.inspect" in line)
    command = f"{sys.executable} -m{line.partition('python -m')[2]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("digits: 1,797 examples")
    validate.main([place.replace("://", "://user:password@")])
    assert "password" not in "".join(capsys.readouterr())


def test_no_empty_object_stays_where_receipts_were(bucket):
    convert_in_process(*digits(bucket / "there"))
    assert [key for key in keys(bucket) if ".converting" in key] == []
    system, path = (bucket / "there" / f".converting.tmp-{'0' * 16}")._system()
    system.create_dir(path)  # as earlier releases left it
    assert [key for key in keys(bucket) if ".converting" in key]
    convert_in_process(*digits(bucket / "there"))
    assert [key for key in keys(bucket) if ".converting" in key] == []


def test_a_kill_while_a_small_file_is_written_leaves_no_upload(bucket):
    system, path = (bucket / "x")._system()
    with system.open_output_stream(path) as stream:
        stream.write(bytes(9 << 20))  # 9 MiB
        with urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/{bucket.name}?uploads") as answer:
            assert b"<Upload>" not in answer.read()
    assert keys(bucket) == ["x"]


@pytest.mark.slow
def test_again_is_nothing_to_do_and_other_options_need_overwrite(bucket, capsys):
    convert.main([*digits(bucket), "--columns=records:label"])
    convert.main([*digits(bucket), "--columns=records:label"])
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"the data set there has no column bytes, .*; --overwrite converts it again"):
        convert.main([*digits(bucket), "--columns=records:label,bytes"])
    other = ["--dataset=digits", f"--data_dir={bucket}", "--num_shards=1"]
    with pytest.raises(UsageError, match="num_shards is test:2,train:5 there and train:1,test:1 here"):
        convert.main(other)
    convert.main([*other, "--overwrite"])
    shards = [name for name in bucket.files(recursive=True) if name.endswith(".tfrecord")]
    assert shards == ["test-00000-of-00001.tfrecord", "train-00000-of-00001.tfrecord"]
    convert.main([*other, "--overwrite", "--columns=none"])
    convert.main(other)
    assert "note: the data set has no columns; --overwrite makes them" in capsys.readouterr().out
    convert.main([*other, "--overwrite"])
    # That of the bytes is the same file as before, as all records have one length; that of the labels is another.
    made = {name for name in bucket.files(recursive=True) if name.startswith("columns/")}
    assert made == {*columns_of(manifest.load(bucket))}
    assert {name.split(".")[1] for name in made} == {"bytes", "label"}


def test_receipts_are_fetched_together(bucket, tmp_path, monkeypatch):
    here = LocalPath(tmp_path)
    plan = make_plan(ConvertConfig(dataset="digits", data_dir=str(here), num_shards="train:5,test:2"), here)
    plan = dataclasses.replace(plan, receipts_dir=bucket)
    found = list(writer.write_shards(plan, plan.elements))
    together, read_text = threading.Barrier(7), RemotePath.read_text

    def read(path: RemotePath, encoding: str) -> str:
        together.wait(timeout=30)  # for all the others to be asked for, too
        return read_text(path, encoding)

    monkeypatch.setattr(RemotePath, "read_text", read)
    assert len(receipts.in_folder(bucket)) == 7
    assert manifest.load(manifest_writer.write_manifest(plan, found).parent).columns.keys() == {"bytes", "label"}


@pytest.mark.slow
def test_killed_conversion_leaves_no_data_set_and_goes_on(bucket, tmp_path):
    flags = ["--dataset=digits", "--num_shards=train:60,test:2", "--image_encoding=png", "--resize=96x96"]
    convert.main([*flags, f"--data_dir={tmp_path / 'here'}"])
    killed = subprocess.Popen([sys.executable, "-m", "beam_jobs.convert", *flags, f"--data_dir={bucket}"])
    while len([name for name in bucket.files(recursive=True) if name.endswith(".receipt.json")]) < 3:
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    with pytest.raises(DataError, match=r"no manifest|no data set"):
        manifest.load(bucket)
    finished = len([name for name in bucket.files(recursive=True) if name.endswith(".receipt.json")])
    assert finished < 62
    with pytest.raises(RerunError, match="another conversion is writing there, or was killed less than 60 s ago"):
        convert.main([*flags, f"--data_dir={bucket}"])
    with leased(bucket, lease_seconds=0.0):  # which has expired by then
        pass
    convert.main([*flags, f"--data_dir={bucket}"])
    for name in bucket.files(recursive=True):
        if name != "card.html":
            assert (bucket / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


@pytest.fixture
def images(tmp_path):
    """A folder with the sources `one` and `two`, of 12 and 6 images."""
    for name, numbers in (("one", range(12)), ("two", range(20, 26))):
        for number in numbers:
            path = tmp_path / name / "train" / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(np.full((6, 6), number, np.uint8)).save(path)
    return tmp_path


def of_images(source: pathlib.Path, data_dir: object, *flags: str) -> list[str]:
    return ["--dataset=image_folder", f"--source={source}", f"--data_dir={data_dir}", "--num_shards=2", *flags]


def content_of(folder: LocalPath | RemotePath) -> dict[str, bytes]:
    """Returns {name: bytes} of a data set's files but for cards, the log and notes on deletions, which have times."""
    names = [name for name in folder.files(recursive=True) if not name.endswith((".html", ".jsonl", ".deleted"))]
    return {name: (folder / name).read_bytes() for name in names}


DELETED = "--delete=train/a/20.png,train/b/3.png"


@pytest.mark.parametrize("moments", [pytest.param((1, 9, 17, 19, 22), marks=pytest.mark.slow), (13,)], ids=str)
def test_an_append_killed_anywhere_leaves_a_version_and_ends_as_in_a_folder(moments, bucket, images):
    here = LocalPath(images / "here")
    for place in (here, *(bucket / str(moment) for moment in moments)):
        convert_in_process(*of_images(images / "one", place))
    convert.main(of_images(images / "two", here, "--append"))
    for moment in moments:
        there = bucket / str(moment)
        before, append = content_of(there), of_images(images / "two", there, "--append")
        killed_in("publish_version", moment, *append)
        assert manifest.load(f"{there}@1").digest == manifest.load(here).parent
        left = content_of(there)
        changed = (naming.MANIFEST, naming.CROISSANT, *naming.TFDS_FILES)
        assert all(left[name] == data for name, data in before.items() if name not in changed)
        assert {shard.file for shard in manifest.load(there).shards} <= left.keys()
        with pytest.raises(RerunError, match="another conversion is writing there, or was killed less than 60 s ago"):
            convert.main(append)
        with leased(there, lease_seconds=0.0):  # which has expired by then
            pass
        convert.main(append)
        assert content_of(there) == content_of(here), moment
        assert (there / naming.CARD).exists()


@pytest.mark.parametrize("moments", [pytest.param((2, 12, 21, 40, 60), marks=pytest.mark.slow), (28,)], ids=str)
def test_a_deletion_killed_anywhere_is_finished_and_no_object_has_the_records(moments, bucket, images, capsys):
    here = LocalPath(images / "here")
    convert_in_process(*of_images(images / "one", here))
    convert.main(of_images(images / "two", here, "--append"))
    for moment in moments:
        for name in here.files(recursive=True):
            (bucket / str(moment) / name).write_bytes((here / name).read_bytes())
    edit.main([str(here), DELETED])
    for moment in moments:
        there = bucket / str(moment)
        killed_in("publish_version", moment, there, DELETED, command="edit")
        assert manifest.load(there).version in (2, 3)
        with leased(there, lease_seconds=0.0):
            pass
        capsys.readouterr()
        edit.main([str(there), DELETED])
        assert "; copies elsewhere are as they were, and so are older versions of obj" in capsys.readouterr().out
        assert content_of(there) == content_of(here), moment
        for name in there.files(recursive=True):
            data = (there / name).read_bytes()
            assert b"train/a/20.png" not in data, name
            assert b"train/b/3.png" not in data, name
        with pytest.raises(DataError, match="version 1 held records that were deleted on"):
            manifest.load(f"{there}@1")


@pytest.mark.slow
def test_labels_are_set_and_both_versions_are_read(bucket, images):
    place, labels = f"{bucket}/data", f"--set_labels={images}/labels.csv"
    convert_in_process(*of_images(images / "one", place))
    (images / "labels.csv").write_text("key,label\ntrain/a/4.png,b\n")
    with leased(bucket / "data"), pytest.raises(RerunError, match="/data: another conversion is writing there"):
        edit.main([place, labels])
    edit.main([place, labels])
    counts = [manifest.load(f"{place}@{version}").splits["train"].label_histogram for version in (1, 2)]
    assert counts == [(6, 6), (5, 7)]
    for version in (1, 2):
        validate.main([f"{place}@{version}"])


def test_a_version_that_came_in_between_is_not_lost(bucket, images):
    """As after a pause in which the lease expired: the manifest is read again before it is replaced."""
    there = bucket / "data"
    convert_in_process(*of_images(images / "one", there))
    old = manifest.load(there)
    convert.main(of_images(images / "two", there, "--append"))
    before = content_of(there)
    for name, data in before.items():
        (there / "inner" / name).write_bytes(data)
    with pytest.raises(RerunError, match="data: another command has changed it meanwhile; run this one again"):
        staging.publish_version(there / "inner", there, old)
    after = content_of(there)
    assert {name: after[name] for name in before} == before


def test_hdfs_has_no_versions():
    said = r"=hdfs://name/data: HDFS cannot replace a manifest in one step, .*, then copy all"
    with pytest.raises(UsageError, match=said):
        convert.main(["--dataset=digits", "--data_dir=hdfs://name/data", "--append"])
    with pytest.raises(UsageError, match=said):
        edit.main(["hdfs://name/data", "--delete=a"])


def test_ctrl_c_as_soon_as_the_lease_is_written_gives_it_back(bucket, monkeypatch):
    publish = drafts.publish

    def interrupted(path: RemotePath, data: bytes) -> None:
        publish(path, data)
        if path.name == ".converting.lease":
            raise KeyboardInterrupt

    monkeypatch.setattr(drafts, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert.main(digits(bucket))
    assert keys(bucket) == []


def test_two_conversions_at_once(bucket):
    with leased(bucket), pytest.raises(RerunError, match=r"is writing there, .* rerun the same command in \d+ s"):
        convert.main(digits(bucket))
    assert RerunError.exit_code == 75
    convert.main(digits(bucket))
    assert manifest.load(bucket).splits["train"].num_examples == 1429


def test_what_a_kill_left_while_it_took_the_lease_is_removed_a_minute_later(bucket):
    clock = bucket / ".converting.lease-0123456789abcdef"
    clock.write_bytes(b"0123456789abcdef")
    with leased(bucket):  # another conversion may be about to look at it
        pass
    assert bucket.files() == [clock.name]
    with leased(bucket, lease_seconds=0.0):
        pass
    assert bucket.files() == []


def test_of_two_that_begin_together_one_goes_on(bucket):
    began = threading.Barrier(2)

    def begin(_: int) -> str:
        began.wait()
        try:
            with leased(bucket):
                time.sleep(2.0)
                return "continues"
        except RerunError as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        found = sorted(threads.map(begin, range(2)), key=len)
    assert found[0] == "continues"
    assert "another conversion " in found[1]
    assert bucket.files() == []


def test_a_failure_that_a_rerun_can_mend_says_so(bucket, capsys, monkeypatch):
    advice = "rerun the same command to resume"

    def fail(error: DataError) -> str:
        def publish(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(manifest_writer, "write_manifest", publish)
        with pytest.raises(type(error)):
            convert_in_process(*digits(bucket))
        return capsys.readouterr().err

    assert "kept 7 finished shards in " in fail(DataError("duplicate key"))
    assert advice not in fail(DataError("duplicate key"))
    assert advice in fail(TransientError("the network is gone"))


def test_a_store_that_is_away_is_transient(bucket, monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(TransientError, match=r"s3://away/x: cannot be read"):
        RemotePath("s3://away/x?region=eu-west-3").exists()


def test_a_bucket_that_is_not_there_is_one_line(endpoint, bucket):
    with pytest.raises(DataError, match=r"s3://nowhere/x.*(NO_SUCH_BUCKET|not exist)"):
        convert.main(digits("s3://nowhere/x"))


def test_a_conversion_whose_lease_is_another_s_stops(bucket):
    stopped = []
    before = signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    try:
        with leased(bucket, renew_seconds=0.05):
            time.sleep(0.3)
            assert stopped == []
            deadline = time.monotonic() + 30
            while not stopped and time.monotonic() < deadline:
                # The other renews too: a single writing can fall between this one's look and its own writing.
                (bucket / ".converting.lease").write_bytes(b"another's")
                time.sleep(0.02)
        assert stopped == [signal.SIGTERM]
        assert (bucket / ".converting.lease").read_bytes() == b"another's"
    finally:
        signal.signal(signal.SIGTERM, before)


KILLED_IN_OVERWRITE = """
import os, signal, sys
from beam_jobs import convert
from pipeline.files.remote import RemotePath

what, when, remove = sys.argv[1], sys.argv[2], RemotePath.remove

def counted(path):
    if when == "before" and what in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    remove(path)
    if when == "after" and what in path.name:
        os.kill(os.getpid(), signal.SIGKILL)

RemotePath.remove = counted
convert.main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("what", "when"),
    some_slow(
        itertools.product(("manifest.json", ".tfrecord"), ("before", "after")),
        [("manifest.json", "after"), (".tfrecord", "before")],
    ),
)
@pytest.mark.quick(1)
def test_overwritten_data_is_gone_even_if_the_command_was_killed(what, when, bucket):
    convert.main(digits(bucket))
    new = ["--dataset=digits", f"--data_dir={bucket}", "--num_shards=1", "--image_encoding=png", "--columns=none"]
    killed = forked.run(["-c", KILLED_IN_OVERWRITE, what, when, *new, "--overwrite"])
    assert killed.returncode == -signal.SIGKILL
    with leased(bucket, lease_seconds=0.0):  # that of the killed command
        pass
    replaced = "manifest.json" in bucket.files() and "train-00000-of-00001.tfrecord" in bucket.files()
    convert.main(new if replaced else [*new, "--overwrite"])
    made = manifest.load(bucket)
    assert {*bucket.files(recursive=True)} == {
        *(name for shard in made.shards for name in shard.files),
        *("manifest.json", "card.html", "croissant.json", "dataset_info.json", "features.json", "label.labels.txt"),
    }
    assert not [key for key in keys(bucket) if ".converting" in key]
