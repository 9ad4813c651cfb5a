"""Runs that resume in half of a copy of a run's folder: one line, or an older checkpoint; nothing of use is removed."""

import itertools
import os
import shutil

import pytest

from pipeline.errors import DataError, RerunError, UsageError
from tests.helpers.lanes import some_slow
from tests.helpers.raised import said
from tests.helpers.runs import checkpoint_bytes
from trainer import evaluate, predict, run
from trainer.checkpoint.manager import CheckpointManager

FLAGS = ("--model=softmax_regression", "--eval_split=none", "--checkpoint_every=5", "--max_to_keep=20")
INDICES = tuple(f"ckpt-{step}.index" for step in (5, 10, 15))
DATA = tuple(name.replace(".index", ".data-00000-of-00001") for name in INDICES)
ROUGH = ("folder", "dangling", "loop", "fifo")


def train(digits, folder, last=20):
    run.main([f"--data_dir={digits}", f"--model_dir={folder}", *FLAGS, f"--train_steps={last}"])


@pytest.fixture(scope="module")
def whole(digits, tmp_path_factory):
    """Returns a folder with checkpoints of the steps 5, 10 and 15, and the state of that run at step 20."""
    folder = tmp_path_factory.mktemp("whole")
    train(digits, folder / "run", 15)
    shutil.copytree(folder / "run", folder / "longer")
    train(digits, folder / "longer", 20)
    return folder / "run", checkpoint_bytes(folder / "longer", 20)


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    return tmp_path / "run"


def replaced(path, kind):
    path.unlink()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind != "missing":
        path.symlink_to(path.name if kind == "loop" else "nowhere")


def contents(folder):
    """Returns the files of checkpoints; None for anything that is not a file."""
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.glob("c*")}


@pytest.mark.parametrize("without_list", [False, True], ids=["with the list", "without the list"])
@pytest.mark.parametrize("kind", ["missing", "empty"])
@pytest.mark.parametrize("lost", [INDICES, DATA], ids=["the indices", "the data"])
@pytest.mark.quick(3)
def test_a_copy_without_one_kind_of_file_is_refused_and_stays_as_it_is(lost, kind, without_list, digits, copy, capfd):
    for name in lost:
        replaced(copy / name, kind)
    if without_list:
        (copy / "checkpoint").unlink()
    before = contents(copy)
    for _ in range(2):
        with pytest.raises(DataError, check=said(copy)):
            train(digits, copy)
        assert {name: one for name, one in contents(copy).items() if name != "checkpoint"} == {
            name: one for name, one in before.items() if name != "checkpoint"
        }
    assert "a new run" not in capfd.readouterr().out
    with pytest.raises(DataError):
        evaluate.main([f"--model_dir={copy}", "--split=test"])
    with pytest.raises(DataError, match=str(copy)):  # which knows that it is a run
        predict.main([str(copy), str(copy)])


@pytest.mark.parametrize("name", [INDICES[-1], DATA[-1]])
@pytest.mark.parametrize("kind", ["missing", "empty"])
@pytest.mark.quick(2)
def test_without_the_newest_it_resumes_from_the_one_before_and_ends_with_the_same_bits(
    name, kind, digits, copy, whole, capfd
):
    replaced(copy / name, kind)
    train(digits, copy)
    out = capfd.readouterr().out
    assert f"skipped {copy}/ckpt-15, which is damaged: " in out
    assert f"resumed from {copy}/ckpt-10" in out
    assert checkpoint_bytes(copy, 20) == whole[1]


@pytest.mark.parametrize(
    ("name", "kind"),
    some_slow(
        itertools.product((INDICES[0], INDICES[-1], DATA[-1], "checkpoint", "config.yaml"), ROUGH),
        [
            (INDICES[0], "folder"),
            (INDICES[-1], "fifo"),
            (DATA[-1], "dangling"),
            ("checkpoint", "folder"),
            ("config.yaml", "loop"),
        ],
    ),
)
def test_what_is_no_file_is_named_before_a_step_is_made(name, kind, digits, copy, capfd):
    replaced(copy / name, kind)
    before = contents(copy)
    with pytest.raises(DataError, match=f"^{copy / name}: is .*; move it away", check=said()):
        train(digits, copy)
    assert contents(copy) == before
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("kind", some_slow(ROUGH, ["folder", "fifo"]))
def test_flags_that_cannot_be_read_are_named_where_the_folder_alone_is_given(kind, copy):
    replaced(copy / "config.yaml", kind)
    with pytest.raises((DataError, UsageError), check=said(copy / "config.yaml")):
        run.main([f"--model_dir={copy}"])


def test_a_checkpoint_is_no_folder_to_train_in(digits, copy):
    """A folder of its name would hide it, and the training would begin at 0."""
    with pytest.raises(UsageError, match=f"^--model_dir={copy}/ckpt-15: is a checkpoint"):
        train(digits, copy / "ckpt-15")
    assert not (copy / "ckpt-15").exists()


@pytest.mark.parametrize("place", ["best", "logs", "logs/evaluate", "launch"])
@pytest.mark.quick(2)
def test_a_folder_of_a_run_is_no_folder_to_train_in(place, digits, copy, monkeypatch):
    before = {path for path in copy.rglob("*") if path.name != "launch"}
    monkeypatch.chdir(copy)
    for name in (copy / place, place):
        with pytest.raises(UsageError, match=f"^--model_dir={name}: .*--model_dir={copy} "):
            train(digits, name)
    assert {path for path in copy.rglob("*") if path.name != "launch"} == before


def test_a_run_that_began_in_such_a_folder_or_beside_none_goes_on(digits, copy, capfd):
    shutil.copytree(copy, copy / "logs", dirs_exist_ok=True)  # as an earlier version made it
    train(digits, copy / "logs")
    assert f"resumed from {copy}/logs/ckpt-15" in capfd.readouterr().out
    train(digits, copy.parent / "logs", 5)  # its parent is not a run


RANKED = ("--eval_split=test", "--eval_every=5", "--keep_best=2")


def ranked(digits, folder, *more, every=5, last=15):
    flags = (*RANKED, f"--checkpoint_every={every}", f"--train_steps={last}", *more)
    run.main([f"--data_dir={digits}", f"--model_dir={folder}", "--model=softmax_regression", *flags])


@pytest.mark.slow
@pytest.mark.parametrize("is_copy", [False, True], ids=["the others deleted", "a copy of best/ alone"])
def test_where_only_the_best_are_left_no_run_begins_that_would_replace_them(is_copy, digits, tmp_path, capfd):
    folder = tmp_path / "run"
    ranked(digits, folder)
    best = {path.name: path.read_bytes() for path in (folder / "best").iterdir()}
    newest = max(int(name[5:-6]) for name in best if name.endswith(".index"))
    if is_copy:
        shutil.move(folder / "best", tmp_path / "best")
        shutil.rmtree(folder)
        folder.mkdir()
        shutil.move(tmp_path / "best", folder / "best")
    for path in folder.glob("c*kp*"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(DataError, match=f"--initialize_from={folder}/best/ckpt-{newest}", check=said()):
            ranked(digits, folder)
        assert {path.name: path.read_bytes() for path in (folder / "best").iterdir()} == best
    for path in (folder / "best").glob(f"ckpt-{newest}.*"):  # as the line says
        shutil.copy(path, folder)
    capfd.readouterr()
    ranked(digits, folder, last=20)
    assert f"resumed from {folder}/ckpt-{newest}" in capfd.readouterr().out


@pytest.mark.parametrize("flags", [(), ("--fresh",)])
@pytest.mark.quick(1)
def test_a_run_that_was_killed_after_its_first_evaluation_begins_anew(flags, digits, tmp_path):
    """It has one of the best, and has saved no other: nothing is lost."""
    folder = tmp_path / "run"

    def killed(self):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CheckpointManager, "save", killed)
        with pytest.raises((KeyboardInterrupt, RerunError)):
            ranked(digits, folder, *flags, every=1000)
    assert list((folder / "best").glob("ckpt-*.index"))
    assert not list(folder.glob("ckpt-*"))
    ranked(digits, folder, every=1000)
    assert (folder / "ckpt-15.index").exists()


def test_a_checkpoint_under_the_name_of_another_step_is_refused(digits, copy):
    """Its batches would follow the step in its name, its schedule the step stored in it."""
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(copy / f"ckpt-10{suffix}", copy / f"ckpt-17{suffix}")
    before = contents(copy)
    with pytest.raises(DataError, match=f"^{copy}/ckpt-17: is a copy of ckpt-10 .*", check=said()):
        train(digits, copy)
    assert contents(copy).keys() == before.keys()
    for suffix in (".index", ".data-00000-of-00001"):
        (copy / f"ckpt-17{suffix}").unlink()
    train(digits, copy)
