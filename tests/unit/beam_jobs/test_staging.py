import os
import pathlib
import shutil
import signal

import pytest

from beam_jobs import jobs, plan, sources, staging
from pipeline import manifest
from pipeline.errors import DataError

OLD, NEW = (0, {"train": 3, "test": 2}), (1, {"train": 2, "test": 2})  # seed and shards


class Killed(BaseException):
    """In the place of SIGKILL, after which no handler and no clean-up runs."""


def converted(folder, source, seed, num_shards):
    """Writes a data set as the workers do."""
    folder.mkdir()
    made = plan.make_plan(source, str(folder), seed, num_shards)
    receipts = [jobs.write_shard(made, *element) for element in made.elements]
    list(jobs._PublishManifest(made).process(receipts))


@pytest.fixture
def replacing(mnist_folder, tmp_path):
    """A function that makes, afresh, a folder with an old data set and the inner folder with a new one."""
    source = sources.open_source("mnist", str(mnist_folder()))
    old, new = tmp_path / "old", tmp_path / "new"
    converted(old, source, *OLD)
    converted(new, source, *NEW)
    out = tmp_path / "out"

    def make():
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(old, out)
        folder = out / f".converting.tmp-{'0' * 16}"
        shutil.copytree(new, folder)
        return folder, out

    return make, old, new


def interrupt_at(monkeypatch, moment, error):
    """Makes the change number `moment` of the folder fail, before it happens; returns the changes that were tried."""
    changes = []

    def counted(function):
        def call(*arguments, **options):
            changes.append(arguments)
            if len(changes) == moment:
                raise error
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(pathlib.Path, "unlink", counted(pathlib.Path.unlink))
    return changes


def test_published_is_the_new_data_set_alone(replacing, contents):
    make, _, new = replacing
    folder, out = make()
    (out / "notes.txt").write_bytes(b"mine")
    assert staging.publish(folder, out, manifest.load(out)) == manifest.load(new)
    folder.rmdir()
    assert contents(out) == contents(new) | {"notes.txt": b"mine"}


def test_killed_at_any_change_it_leaves_a_whole_data_set_or_none(replacing, monkeypatch, contents):
    make, old, new = replacing
    seen = []
    for moment in range(1, 100):
        folder, out = make()
        present = manifest.load(out)
        with monkeypatch.context() as patch:
            changes = interrupt_at(patch, moment, Killed())
            try:
                staging.publish(folder, out, present)
            except Killed:
                pass
            else:
                break
        if not (out / "manifest.json").exists():
            seen.append("none")
        else:
            is_old = manifest.load(out) == present
            seen.append("old" if is_old else "new")
            expected = contents(old if is_old else new)
            assert expected.items() <= {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}.items()
        staging.remove_leftovers(out)
        assert not [path for path in out.iterdir() if path.name.startswith(".")]
    # New manifest aside, old one away, 4 shards, the manifest in its place; then train's 3 old shards.
    assert seen == ["old"] * 2 + ["none"] * 5 + ["new"] * 3
    assert len(changes) == len(seen)


def test_a_change_that_fails_is_one_line_with_the_place(replacing, monkeypatch):
    make, *_ = replacing
    folder, out = make()
    interrupt_at(monkeypatch, 4, OSError(5, "Input/output error"))
    with pytest.raises(DataError, match=r"out/\w+-0000\d-of-00002.tfrecord: cannot be written: Input/output error"):
        staging.publish(folder, out, manifest.load(out))


def test_a_folder_in_the_place_of_a_shard_is_seen_before_the_old_manifest_goes(replacing, contents):
    make, *_ = replacing
    folder, out = make()
    (out / "train-00001-of-00002.tfrecord").mkdir()
    with pytest.raises(DataError, match=r"train-00001-of-00002.tfrecord: cannot be written: Is a directory; remove it"):
        staging.publish(folder, out, manifest.load(out))
    assert (out / "manifest.json").exists()


def test_ctrl_c_in_the_swap_is_answered_after_it(replacing, monkeypatch, contents):
    make, _, new = replacing
    folder, out = make()
    replace = os.replace

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            staging.publish(folder, out, manifest.load(out))
    folder.rmdir()
    assert contents(out) == contents(new)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_inner_folder_goes_with_what_is_in_it_and_errors_name_the_outer(tmp_path):
    def fails():
        with staging.opened(tmp_path) as folder:
            (folder / "train-00000-of-00001.tfrecord").write_bytes(b"x")
            raise DataError(f"{folder / 'train-00000-of-00001.tfrecord'}: cannot be written")

    with pytest.raises(DataError) as error:
        fails()
    assert str(error.value) == f"{tmp_path / 'train-00000-of-00001.tfrecord'}: cannot be written"
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_removed_but_no_file_or_link_of_others(tmp_path):
    leftover, elsewhere = tmp_path / f".converting.tmp-{'a' * 16}", tmp_path / "elsewhere"
    kept = tmp_path / f".converting.tmp-{'b' * 16}"
    for folder in (leftover, elsewhere, kept):
        folder.mkdir()
        (folder / "train-00000-of-00001.tfrecord").write_bytes(b"x")
        (folder / ".test-00000-of-00001.tfrecord.tmp-0123456789abcdef").write_bytes(b"x")
        (folder / "manifest.json").write_bytes(b"{}")
    (kept / "notes.txt").write_bytes(b"mine")
    link = tmp_path / f".converting.tmp-{'c' * 16}"
    link.symlink_to(elsewhere)
    (tmp_path / ".converting.tmp-other").mkdir()
    staging.remove_leftovers(tmp_path)
    assert not leftover.exists()
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]
    assert len(list(elsewhere.iterdir())) == 3
    assert link.is_symlink()
    assert (tmp_path / ".converting.tmp-other").exists()
