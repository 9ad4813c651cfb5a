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


@pytest.mark.parametrize("name", ["", "nothing"])
def test_a_folder_without_checkpoints_is_named(tmp_path, name):
    with pytest.raises(DataError, match=f"{tmp_path / name}: has no checkpoint; give the --model_dir of a run"):
        files.candidates(str(tmp_path / name), None)
    with pytest.raises(DataError, match="best: has no checkpoint"):
        files.candidates(str(tmp_path), "best")


def test_a_file_or_a_checkpoint_is_no_folder_of_a_run(folder):
    files.check_run_folder(str(folder))
    files.check_run_folder(str(folder / "not-there-yet"))
    with pytest.raises(UsageError, match=f"^--model_dir={folder}/ckpt-20: is a checkpoint, not the folder of a run$"):
        files.check_run_folder(str(folder / "ckpt-20"))
    with pytest.raises(UsageError, match=r"ckpt-9.index: is a file, not the folder of a run$"):
        files.check_run_folder(str(folder / "ckpt-9.index"))
