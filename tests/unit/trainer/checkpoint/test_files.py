import itertools
import os
import pathlib
import re
import sys

import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import DataError, UsageError
from trainer.checkpoint.files import CheckpointFiles, candidates, check_run_folder, kept, steps_in
from trainer.config.steps import Period
from trainer.run_folder import RunFolder

KILLED = 9


def writer(step, more=""):
    """Returns a function that writes the two files of a checkpoint under TensorFlow's names."""

    def write(path):
        for suffix in (".data-00000-of-00001", ".index"):
            pathlib.Path(path + suffix).write_text(f"step {step}{more}")

    return write


def steps_of(folder):
    """Returns the steps of the checkpoints, all of which must be complete."""
    paths = CheckpointFiles(folder, 1, 1).paths
    for path in paths:
        text = pathlib.Path(f"{path}.index").read_text()
        assert text == pathlib.Path(f"{path}.data-00000-of-00001").read_text()
        assert text.startswith(f"step {path.rsplit('-', 1)[1]}")
    return [int(path.rsplit("-", 1)[1]) for path in paths]


def kill_at(operation, work):
    """Does some work in a child that ends at once where it is about to change a file for the n-th time."""
    child = os.fork()
    if not child:
        countdown = itertools.count(operation, -1)

        def hook(event, arguments):
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") or (
                event == "open" and arguments[1] == "w"
            )
            if changes and next(countdown) == 0:
                os._exit(KILLED)

        sys.addaudithook(hook)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("there", [(10, 20), (), (10, 20, 30)], ids=["two", "none", "the same step"])
@pytest.mark.quick(1)
def test_killed_at_any_moment_it_leaves_whole_checkpoints_and_the_newest(there, tmp_path):
    for operation in itertools.count():
        folder = tmp_path / str(operation)
        folder.mkdir()
        files = CheckpointFiles(folder, max_to_keep=1, steps_per_epoch=15)
        for step in there:
            files.add(step, writer(step))
        before, after = steps_of(folder), [10, 30] if there else [30]
        code = kill_at(operation, lambda files=files: files.add(30, writer(30, ", evaluated")))
        assert steps_in(folder) in (before, sorted({*before, 30}), after)
        assert code in (0, KILLED)
        assert not there or tf.train.latest_checkpoint(str(folder)) in files.paths
        files.tidy()
        left = [f"ckpt-{step}{suffix}" for step in steps_of(folder) for suffix in (".data-00000-of-00001", ".index")]
        assert sorted(path.name for path in folder.iterdir()) == sorted([*left, *(["checkpoint"] if left else [])])
        assert tf.train.latest_checkpoint(str(folder)) == (files.paths[-1] if left else None)
        if code == 0:
            assert steps_of(folder) == after
            break
    assert operation >= 6


def test_a_checkpoint_that_lost_its_index_is_returned_and_its_data_stay(tmp_path):
    files = CheckpointFiles(tmp_path, 3, 100)
    for step in (10, 20):
        files.add(step, writer(step))
    (tmp_path / "ckpt-20.index").unlink()
    assert files.tidy() == [str(tmp_path / "ckpt-20")]
    assert steps_of(tmp_path) == [10]
    assert (tmp_path / "ckpt-20.data-00000-of-00001").exists()


def test_a_folder_that_is_replaced_before_the_first_save_is_noticed(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    files = CheckpointFiles(folder, 3, 100)
    files.tidy()
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    with pytest.raises(DataError, match=re.escape(f"--model_dir={folder}: ")):
        files.add(10, writer(10))


@pytest.mark.parametrize("files_left", ["data", "nothing"])
def test_a_list_of_which_nothing_is_left_is_an_error(files_left, tmp_path):
    files = CheckpointFiles(tmp_path, 3, 100)
    files.add(10, writer(10))
    for path in tmp_path.glob("ckpt-10.index" if files_left == "data" else "ckpt-*"):
        path.unlink()
    left = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DataError, match=r"ckpt-10 .*`checkpoint`.*\.index"):
        files.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    (tmp_path / "checkpoint").unlink()
    left.remove("checkpoint")
    if files_left == "nothing":
        assert files.tidy() == []
        return
    with pytest.raises(DataError, match=r"ckpt-\*.*lack their .index files"):  # half of a copy
        files.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize("has_list", [True, False])
def test_data_that_lost_their_index_stay_however_often_the_run_starts(has_list, tmp_path):
    files = CheckpointFiles(tmp_path, 3, 100)
    for step in (10, 20, 30):
        files.add(step, writer(step))
    for step in (10, 30):
        (tmp_path / f"ckpt-{step}.index").unlink()
    for start in range(3):
        if not has_list:
            (tmp_path / "checkpoint").unlink()
        lost = (30,) if has_list and start else (10, 30)  # an older one is named once: then it is off the list
        assert sorted(files.tidy()) == [str(tmp_path / f"ckpt-{step}") for step in lost]
        assert steps_of(tmp_path) == [20]
        assert len(list(tmp_path.glob("ckpt-*.data-*"))) == 3


def test_what_an_earlier_version_was_killed_while_removing_is_not_called_damaged(tmp_path):
    """It took the checkpoint off the list, removed its index, and was killed before it removed its data."""
    files = CheckpointFiles(tmp_path, 3, 100)
    for step in (10, 20, 30):
        files.add(step, writer(step))
    files.keep([20, 30], upto=5)
    (tmp_path / "ckpt-10.index").rename(tmp_path / "index")
    for _ in range(2):
        assert files.tidy() == []
        assert steps_of(tmp_path) == [20, 30]
    assert (tmp_path / "ckpt-10.data-00000-of-00001").exists()
    (tmp_path / "index").rename(tmp_path / "ckpt-10.index")  # from a copy: it is whole again
    assert files.tidy() == []
    assert steps_of(tmp_path) == [10, 20, 30]


@pytest.mark.parametrize("name", ["ckpt-20.index", "ckpt-20.data-00000-of-00001", "checkpoint"])
@pytest.mark.parametrize("kind", ["folder", "dangling", "loop", "fifo"])
def test_something_else_in_the_place_of_a_file_is_named_and_nothing_is_removed(name, kind, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    files = CheckpointFiles(folder, 3, 100)
    for step in (10, 20):
        files.add(step, writer(step))
    (folder / "ckpt-10.index").unlink()  # what `tidy` would complain about
    path = folder / name
    path.unlink()
    {
        "folder": path.mkdir,
        "dangling": lambda: path.symlink_to("nowhere"),
        "loop": lambda: path.symlink_to(name),
        "fifo": lambda: os.mkfifo(path),
    }[kind]()
    left = sorted(one.name for one in folder.iterdir())
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: is ") as caught:
        files.tidy()
    assert "\n" not in str(caught.value)
    assert sorted(one.name for one in folder.iterdir()) == left


def test_a_removal_that_was_killed_is_finished_at_the_next_start(tmp_path):
    """Its index stays in a folder of its own until the data are deleted; nothing else marks the data as removed."""
    for operation in itertools.count():
        folder = tmp_path / str(operation)
        folder.mkdir()
        files = CheckpointFiles(folder, max_to_keep=1, steps_per_epoch=100)
        for step in (10, 20, 30):
            files.write(step, writer(step))
        code = kill_at(operation, lambda files=files: files.keep([10, 30]))
        assert files.tidy() == []
        assert steps_of(folder) in ([10, 20, 30], [10, 30])
        assert not list(folder.glob("saving-*"))
        if code == 0:
            break
    assert operation >= 4


@pytest.mark.parametrize("moment", ["before", "while writing", "replaced"])
def test_a_folder_that_is_moved_is_not_made_anew(moment, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    files = CheckpointFiles(folder, 3, 100)
    files.add(10, writer(10))

    def move():
        folder.rename(tmp_path / "moved")
        if moment == "replaced":
            folder.mkdir()

    def write(path):
        if moment != "before":
            move()
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)  # as TensorFlow does
        writer(20)(path)

    if moment == "before":
        move()
    with pytest.raises(DataError, match=re.escape(f"--model_dir={folder}: ")):
        files.add(20, write)
    assert not list(folder.glob("ckpt-*"))
    assert steps_of(tmp_path / "moved") == [10]


def test_a_killed_tidying_loses_nothing(tmp_path):
    for operation in itertools.count():
        folder = tmp_path / str(operation)
        files = CheckpointFiles(folder, 3, 100)
        (folder / "saving-abc").mkdir(parents=True)
        writer(30)(str(folder / "saving-abc" / "ckpt-30"))
        (folder / "saving-abc" / "removed-ckpt-5.index").write_text("")
        (folder / "ckpt-5.data-00000-of-00001").write_text("")
        files.add(10, writer(10))
        code = kill_at(operation, files.tidy)
        assert steps_of(folder) == [10]
        if code == 0:
            break
        assert code == KILLED
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        "ckpt-10.data-00000-of-00001",
        "ckpt-10.index",
    ]


@given(
    gaps=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    steps_per_epoch=st.integers(1, 25),
    most=st.integers(1, 5),
)
def test_the_newest_are_kept_and_one_that_is_one_to_two_epochs_old(gaps, steps_per_epoch, most):
    saved = list(itertools.accumulate(gaps))
    steps = []
    for step in saved:
        steps = kept([*steps, step], most, steps_per_epoch)
        assert kept(steps, most, steps_per_epoch) == steps
        so_far = saved[: saved.index(step) + 1]
        assert steps[-most:] == so_far[-most:]
        assert len(steps) <= most + 2
        if step - saved[0] >= steps_per_epoch:
            ages = [step - other for other in steps]
            assert any(steps_per_epoch <= age < 2 * (steps_per_epoch + max(gaps)) for age in ages), (step, steps)


@given(
    gaps=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    steps_per_epoch=st.integers(1, 25),
    most=st.integers(1, 5),
    every=st.integers(1, 20),
)
@example(gaps=[2, 1, 2, 1, 2], steps_per_epoch=3, most=2, every=3)
def test_what_is_kept_is_kept_again_whatever_its_steps(gaps, steps_per_epoch, most, every):
    steps, saved = [], list(itertools.accumulate(gaps))
    for step in saved:
        steps = kept([*steps, step], most, steps_per_epoch, Period(every))
        assert kept(steps, most, steps_per_epoch, Period(every)) == steps
        assert steps[-1] == step
    due = [step for step in saved if step % every == 0]
    assert set(due[-most:]) <= set(steps)
    all_at_once = kept(saved, most, steps_per_epoch, Period(every))
    assert kept(all_at_once, most, steps_per_epoch, Period(every)) == all_at_once


def test_what_a_clock_saves_between_the_steps_of_a_flag_pushes_out_none_of_theirs():
    steps, every = [], Period(1000)
    for step in [70, 150, 310, 620, 930, 1000, 1300, 1600, 1900, 2000, 2300, 3000, 3300, 4000, 4300, 4600]:
        steps = kept([*steps, step], 3, 10**6, every)
        assert steps[-1] == step
        if step == 930:
            assert steps == [70, 310, 620, 930]  # the first is the one that is an epoch old, in time
    assert steps == [70, 2000, 3000, 4000, 4300, 4600]
    assert kept([70, 1000, 1300], 1, 10**6, every) == [70, 1000, 1300]


def test_a_newer_one_that_could_not_be_read_does_not_displace_what_is_saved(tmp_path):
    files = CheckpointFiles(tmp_path, max_to_keep=1, steps_per_epoch=1000)
    for step in (10, 20, 60):
        files.add(step, writer(step))
    files.add(30, writer(30))
    assert steps_of(tmp_path) == [10, 30, 60]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-30")
    files.add(70, writer(70))
    assert steps_of(tmp_path) == [10, 70]


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path):
    files = CheckpointFiles(tmp_path / "model", 1, 1)
    (tmp_path / "model" / "checkpoint.tmp").mkdir(parents=True)
    writer(5)(str(tmp_path / "model" / "ckpt-5"))
    with pytest.raises(DataError, match=r"/model: .*: Is a directory$"):
        files.tidy()


@pytest.fixture
def folder(tmp_path):
    for name in ("run/ckpt-9", "run/ckpt-100", "run/ckpt-20", "run/best/ckpt-20", "run/other-30", "run/ckpt-40x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.index").touch()
    (tmp_path / "run/ckpt-200.data-00000-of-00001").touch()  # of which the index is not there yet
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("checkpoint", "found"),
    [
        (None, ["ckpt-100", "ckpt-20", "ckpt-9"]),
        ("20", ["ckpt-20"]),
        ("ckpt-20", ["ckpt-20"]),
        ("best", ["best/ckpt-20"]),
        ("best/20", ["best/ckpt-20"]),
        ("best/ckpt-20", ["best/ckpt-20"]),
    ],
)
def test_a_name_finds_a_checkpoint_and_none_all_of_them(folder, checkpoint, found):
    assert candidates(folder, checkpoint) == [folder / name for name in found]


def test_a_checkpoint_may_be_given_as_the_model_dir(folder):
    assert candidates(folder / "ckpt-9", None) == [folder / "ckpt-9"]
    assert candidates(folder / "best", None) == [folder / "best" / "ckpt-20"]


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("21", r"--checkpoint: .*'ckpt-21'.*'ckpt-20'.* ckpt-100, ckpt-20, ckpt-9"),
        ("200", "--checkpoint: .*'ckpt-200'"),
        ("newest", "--checkpoint=newest: "),
        ("ckpt-", "--checkpoint=ckpt-: "),
        ("best/9", "--checkpoint: .*'ckpt-9'"),
        ("../run/ckpt-9", "--checkpoint=../run/ckpt-9: "),
    ],
)
def test_a_wrong_name_is_one_line(folder, checkpoint, message):
    with pytest.raises(UsageError, match=message):
        candidates(folder, checkpoint)


def test_a_folder_without_checkpoints_is_named_with_what_it_is_instead(folder, tmp_path):
    for name in ("empty", "data", "half", "run/logs"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "manifest.json").touch()
    (tmp_path / "half" / "ckpt-20.data-00000-of-00001").touch()
    for name, fact in (
        ("empty", "has no checkpoint; "),
        ("nothing", "no such folder"),
        ("data", "manifest.json"),
        ("half", ".index files"),
        ("run/logs", f"{folder} has"),
        ("", f"{folder} has"),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(f'{tmp_path / name}: ')}.*{re.escape(fact)}"):
            candidates(tmp_path / name, None)
    with pytest.raises(DataError, match="best: .*--keep_best"):
        candidates(tmp_path, "best")
    with pytest.raises(UsageError, match=f"--model_dir={tmp_path}/data: "):
        check_run_folder(RunFolder(tmp_path / "data"))


def test_a_file_or_a_checkpoint_is_no_folder_of_a_run(folder):
    check_run_folder(RunFolder(folder))
    check_run_folder(RunFolder(folder / "not-there-yet"))
    with pytest.raises(UsageError, match=f"^--model_dir={folder}/ckpt-20: is a checkpoint"):
        check_run_folder(RunFolder(folder / "ckpt-20"))
    with pytest.raises(UsageError, match=r"ckpt-9.index: is a file"):
        check_run_folder(RunFolder(folder / "ckpt-9.index"))
