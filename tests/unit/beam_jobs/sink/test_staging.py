import os
import pathlib
import shutil
import signal

import pytest

from beam_jobs.shards import manifest_writer, receipts, writer
from beam_jobs.sink import staging
from pipeline import images, manifest
from pipeline.errors import DataError, TransientError
from pipeline.manifest import naming
from tests.helpers.converting import write_shard
from tests.helpers.made_source import Content
from tests.helpers.raised import at

OLD, NEW = {"seed": 0, "num_shards": "train:3,test:2"}, {"seed": 1, "num_shards": "2"}
DIGEST = "0123456789abcdef" * 4
FOLDER = ".converting.tmp-0123456789abcdef"


class Killed(BaseException):
    """In the place of SIGKILL, after which no handler and no clean-up runs."""


def convert(plan):
    """Writes a data set as the workers do."""
    manifest_writer.write_manifest(plan, list(writer.write_shards(plan, plan.elements)))


@pytest.fixture
def replacing(plan_of, pixels, tmp_path):
    """A function that makes, afresh, a folder with an old data set and the inner folder with a new one."""
    content = {"train": Content(pixels(50)), "test": Content(pixels(20, seed=1))}
    old, new = tmp_path / "old", tmp_path / "new"
    convert(plan_of(content, out="old", **OLD))
    convert(plan_of(content, out="new", **NEW))
    for path in old.glob("*.receipt.json"):
        path.unlink()  # as a publication leaves it
    out = tmp_path / "out"

    def make():
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(old, out)
        folder = out / FOLDER
        shutil.copytree(new, folder)
        return folder, out

    return make, old, new


def published(folder, contents):
    return {name: data for name, data in contents(folder).items() if not receipts.is_receipt(name)}


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
            expected = contents(old) if is_old else published(new, contents)
            assert expected.items() <= contents(out).items()
        staging.remove_leftovers(out, "f" * 64)
        assert not [path for path in out.iterdir() if path.name.startswith(".")]
    # The list of old files, new manifest aside, old one away, 4 shards, their CRCs, 4 columns, 4 files beside them, the
    # manifest in its place; then train's 3 old shards and more.
    assert seen[:23] == ["old"] * 3 + ["none"] * 17 + ["new"] * 3
    assert set(seen[23:]) == {"new"}
    assert len(changes) == len(seen)


def test_killed_at_any_change_the_next_run_has_every_name_and_every_finished_shard(replacing, monkeypatch, contents):
    make, _, new = replacing
    shards = {name: data for name, data in contents(new).items() if naming.parse_shard_name(name)}
    seen = []
    for moment in range(1, 20):
        folder, out = make()
        with monkeypatch.context() as patch:
            interrupt_at(patch, moment, Killed())
            with pytest.raises(Killed):
                staging.publish(folder, out, manifest.load(out))
        present = manifest.load(out) if (out / "manifest.json").exists() else None
        if moment % 2:  # killed again, while it is taken back
            with monkeypatch.context() as patch:
                changes = interrupt_at(patch, 3, Killed())
                try:
                    staging.undo_interrupted_publish(out)
                except Killed:
                    assert len(changes) == 3
        staging.undo_interrupted_publish(out)
        staging.check_names_free(out, shards, present)
        staging.remove_leftovers(out, DIGEST)
        seen.append(present is None)
        assert shards.items() <= contents(folder).items()
        assert (out / "card.html").exists() is False
        if present is None:
            assert not (out / "dataset_info.json").exists()
            assert not [*(out / "columns").glob("*")]
    assert seen == [False] * 3 + [True] * 16


@pytest.mark.parametrize("digest", [DIGEST, "f" * 64, None], ids=["the same plan", "another one", "nothing to do"])
@pytest.mark.quick(1)
def test_killed_at_any_change_the_next_run_removes_what_was_to_be_replaced(replacing, monkeypatch, contents, digest):
    make, old, new = replacing
    obsolete = contents(old).keys() - contents(new).keys()
    assert sum(name.endswith(".tfrecord") for name in obsolete) == 3
    for moment in range(1, 100):
        folder, out = make()
        with monkeypatch.context() as patch:
            interrupt_at(patch, moment, Killed())
            try:
                staging.publish(folder, out, manifest.load(out))
            except Killed:
                pass
            else:
                break
        is_there = (out / "manifest.json").exists()
        if is_there or digest:  # without a manifest, there is always something to do
            staging.undo_interrupted_publish(out)
            staging.remove_leftovers(out, digest)
            is_old = is_there and manifest.load(out) == manifest.load(old)
            left = contents(out).keys() & obsolete
            assert left == (obsolete if is_old else set()), moment
            assert is_there or not [*out.glob("*.tfrecord")]
    assert moment > 25


def test_a_data_set_without_columns_gets_no_folder_for_them(plan_of, pixels, tmp_path, monkeypatch):
    folder, out = tmp_path / "new", tmp_path
    convert(plan_of({"train": Content(pixels(20))}, out="new", num_shards="2", columns="none"))
    interrupt_at(monkeypatch, 4, Killed())
    with pytest.raises(Killed):
        staging.publish(folder, out, None)
    assert (out / "sidecars").is_dir()
    assert not (out / "columns").exists()


def test_a_change_that_fails_is_one_line_with_the_path(replacing, monkeypatch):
    make, *_ = replacing
    folder, out = make()
    interrupt_at(monkeypatch, 4, OSError(5, "Input/output error"))
    with pytest.raises(
        DataError, match=r"out/(sidecars/crcs.)?\w+-0000\d-of-00002.tf-?record: cannot be written: Input/output error"
    ):
        staging.publish(folder, out, manifest.load(out))


def test_a_folder_with_the_name_of_a_shard_is_seen_before_the_old_manifest_goes(replacing, contents):
    make, *_ = replacing
    folder, out = make()
    (out / "train-00001-of-00002.tfrecord").mkdir()
    with pytest.raises(DataError, check=at("train-00001-of-00002.tfrecord", "Is a directory")):
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
    assert contents(out) == published(new, contents)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_inner_folder_without_a_finished_shard_goes_and_errors_name_the_outer(tmp_path, capsys):
    def fails():
        with staging.opened(tmp_path, DIGEST) as folder:
            assert folder == tmp_path / FOLDER
            (folder / "train-00000-of-00001.tfrecord").write_bytes(b"x")
            raise DataError("cannot be written", path=folder / "train-00000-of-00001.tfrecord")

    with pytest.raises(DataError) as error:
        fails()
    assert error.value.path == str(tmp_path / "train-00000-of-00001.tfrecord")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (KeyboardInterrupt(), ": rerun the same command to resume"),
        (TransientError("no room"), ": rerun the same command to resume"),
        (DataError("duplicate key"), ""),
        (RuntimeError("x"), ""),
    ],
)
def test_finished_shards_are_kept_and_a_line_says_so(error, advice, plan_of, pixels, tmp_path, capsys):
    plan = plan_of({"train": Content(pixels(20))}, out="shards", num_shards="4")
    for shard in range(3):
        write_shard(plan, "train", shard)
    (tmp_path / "out").mkdir()

    def fails():
        with staging.opened(tmp_path / "out", DIGEST) as folder:
            shutil.copytree(tmp_path / "shards", folder, dirs_exist_ok=True)
            raise error

    with pytest.raises(type(error)):
        fails()
    folder = tmp_path / "out" / FOLDER
    note = f"kept 3 finished shards in {folder}{advice}\n"
    assert capsys.readouterr().err == note
    assert len(list(folder.rglob("*"))) == 10
    found = receipts.in_folder(folder)
    assert sum(r.info.num_bytes for r in found) == sum(path.stat().st_size for path in folder.glob("*.tfrecord"))
    with staging.opened(tmp_path / "out", DIGEST) as again:
        assert len(list(again.rglob("*"))) == 10


def fill(folder):
    folder.mkdir(parents=True)
    names = ["train-00000-of-00001.tfrecord", "crcs.train-00000-of-00001.tf-record", "manifest.json"]
    names += ["offsets.train-00000-of-00001.tf-record"]
    names += ["train-00000-of-00001.tfrecord.receipt.json", "test-00000-of-00001.tfrecord.gz", "rejects.jsonl"]
    for name in (*names, ".test-00000-of-00001.tfrecord.tmp-0123456789abcdef"):
        (folder / name).write_bytes(b"x")
    return set(names)


def test_leftovers_of_other_plans_are_removed_but_no_file_or_link_of_others(tmp_path):
    leftover, elsewhere = tmp_path / f".converting.tmp-{'a' * 16}", tmp_path / "elsewhere"
    kept = tmp_path / f".converting.tmp-{'b' * 16}"
    for folder in (leftover, elsewhere, kept, leftover / staging.FIRST_PASS):
        fill(folder)
    (kept / "notes.txt").write_bytes(b"mine")
    link = tmp_path / f".converting.tmp-{'c' * 16}"
    link.symlink_to(elsewhere)
    file = tmp_path / f".converting.tmp-{'d' * 16}"
    file.write_bytes(b"mine")
    (tmp_path / ".converting.tmp-other").mkdir()
    (tmp_path / ".manifest.json.tmp-0123456789abcdef").write_bytes(b"x")
    (tmp_path / "train-00000-of-00001.tfrecord").write_bytes(b"published by somebody")
    own = fill(tmp_path / FOLDER)
    staging.remove_leftovers(tmp_path, DIGEST)
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == own  # but for the temporary file
    assert not leftover.exists()
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]
    assert len(list(elsewhere.iterdir())) == 8
    assert link.is_symlink()
    assert file.read_bytes() == b"mine"
    assert (tmp_path / ".converting.tmp-other").exists()
    assert not (tmp_path / ".manifest.json.tmp-0123456789abcdef").exists()
    assert (tmp_path / "train-00000-of-00001.tfrecord").exists()


def test_offsets_and_rejects_are_published_with_their_shards(plan_of, pixels, tmp_path, contents):
    sizes = [(3, 3, 3), (20, 20, 3), (9, 30, 3)]
    files = [images.encoded(pixels(1, size)[0], "png") for size in sizes]
    plan = plan_of({"train": Content([*files, b"no image"])}, out=f"out/{FOLDER}", max_rejects=1)
    convert(plan)
    staging.publish(tmp_path / "out" / FOLDER, tmp_path / "out", None)
    name = "train-00000-of-00001.tfrecord"
    beside = {"manifest.json", "rejects.jsonl", "croissant.json", *naming.TFDS_FILES}
    assert set(contents(tmp_path / "out")) == {name, *naming.sidecar_names(name)} | beside


def test_the_rejects_of_an_earlier_failure_do_not_stay_beside_a_data_set_without_any(plan_of, pixels, tmp_path):
    plan = plan_of({"train": Content(pixels(5))}, out=f"out/{FOLDER}")
    convert(plan)
    (tmp_path / "out" / "rejects.jsonl").write_text("{}\n")
    staging.publish(tmp_path / "out" / FOLDER, tmp_path / "out", None)
    assert not (tmp_path / "out" / "rejects.jsonl").exists()
