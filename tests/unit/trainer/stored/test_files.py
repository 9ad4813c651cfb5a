import re

import pytest

from pipeline.errors import DataError, UsageError
from trainer.stored import files


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
    assert files.candidates(str(folder), checkpoint) == [folder / name for name in found]


def test_a_checkpoint_may_be_given_as_the_model_dir(folder):
    assert files.candidates(str(folder / "ckpt-9"), None) == [folder / "ckpt-9"]
    assert files.candidates(str(folder / "best"), None) == [folder / "best" / "ckpt-20"]


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("21", r"--checkpoint: unknown 'ckpt-21'; did you mean 'ckpt-20'\? known: ckpt-100, ckpt-20, ckpt-9"),
        ("200", "--checkpoint: unknown 'ckpt-200'"),
        ("newest", "--checkpoint=newest: must be a checkpoint or its step, such as ckpt-400 or 400, or best"),
        ("ckpt-", "--checkpoint=ckpt-: must be"),
        ("best/9", "--checkpoint: unknown 'ckpt-9'"),
        ("../run/ckpt-9", "must be a checkpoint or its step"),
    ],
)
def test_a_wrong_name_is_one_line(folder, checkpoint, message):
    with pytest.raises(UsageError, match=message):
        files.candidates(str(folder), checkpoint)


def test_a_folder_without_checkpoints_is_named_with_what_it_is_instead(folder, tmp_path):
    for name in ("empty", "data", "half", "run/logs"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "manifest.json").touch()
    (tmp_path / "half" / "ckpt-20.data-00000-of-00001").touch()
    for name, said in (
        ("empty", "has no checkpoint; give the --model_dir of a run of trainer.run"),
        ("nothing", "there is no such folder; give the --model_dir of a run"),
        ("data", "is a data set (it has a manifest.json), not the folder of a run; give the --model_dir of a run"),
        (
            "half",
            "its ckpt-*.data-* files lack their .index files, as half of a copy does; copy the whole folder again",
        ),
        ("run/logs", f"has no checkpoint, but {folder} has; give that folder"),
        ("", f"has no checkpoint, but {folder} has; give that folder"),
    ):
        with pytest.raises(DataError, match=re.escape(f"{tmp_path / name}: {said}")):
            files.candidates(str(tmp_path / name), None)
    with pytest.raises(DataError, match="best: has no checkpoint; a run keeps the best ones with --keep_best"):
        files.candidates(str(tmp_path), "best")
    with pytest.raises(UsageError, match=f"--model_dir={tmp_path}/data: is a data set"):
        files.check_run_folder(str(tmp_path / "data"))


def test_a_file_or_a_checkpoint_is_no_folder_of_a_run(folder):
    files.check_run_folder(str(folder))
    files.check_run_folder(str(folder / "not-there-yet"))
    with pytest.raises(UsageError, match=f"^--model_dir={folder}/ckpt-20: is a checkpoint, not the folder of a run$"):
        files.check_run_folder(str(folder / "ckpt-20"))
    with pytest.raises(UsageError, match=r"ckpt-9.index: is a file, not the folder of a run$"):
        files.check_run_folder(str(folder / "ckpt-9.index"))
