"""Which checkpoints a folder has, and the one that a user names; without TensorFlow."""

from __future__ import annotations

import pathlib
import re

from pipeline.errors import DataError, UsageError, unknown

PREFIX = "ckpt"
BEST = "best"  # folder of the best checkpoints in model_dir
_DATA = "is a data set (it has a manifest.json), not the folder of a run"
_NAME = re.compile(rf"(?:(?P<folder>{BEST})(?:/|$))?(?:{PREFIX}-)?(?P<step>\d+)?")


def steps_in(folder: pathlib.Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, ascending; none where there is no such folder."""
    found = [re.fullmatch(rf"{PREFIX}-(\d+)\.index", path.name) for path in folder.glob(f"{PREFIX}-*.index")]
    return sorted(int(match[1]) for match in found if match)


def path_of(folder: pathlib.Path, step: int) -> pathlib.Path:
    """Returns the path of a checkpoint, without the suffixes of its files."""
    return folder / f"{PREFIX}-{step}"


def check_run_folder(model_dir: str) -> None:
    """Raises UsageError where a path neither is the folder of a run nor can become one: a file, a checkpoint, data."""
    path = pathlib.Path(model_dir)
    kind = "a file" if path.is_file() else "a checkpoint" if path.with_name(f"{path.name}.index").is_file() else None
    if kind and not path.is_dir():
        raise UsageError(f"--model_dir={model_dir}: is {kind}, not the folder of a run")
    if _is_data(path):
        raise UsageError(f"--model_dir={model_dir}: {_DATA}; give the --model_dir of a run of trainer.run")


def _is_data(folder: pathlib.Path) -> bool:
    return (folder / "manifest.json").is_file() and not steps_in(folder)


def _why_none(folder: pathlib.Path) -> str:
    """Returns what a folder without checkpoints is instead, and what to do."""
    if folder.name == BEST:
        return "has no checkpoint; a run keeps the best ones with --keep_best"
    if not folder.is_dir():
        return "there is no such folder; give the --model_dir of a run of trainer.run"
    if list(folder.glob(f"{PREFIX}-*.data-*")):
        return (
            f"its {PREFIX}-*.data-* files lack their .index files, as half of a copy does; copy the whole folder "
            "again, once no run writes to it"
        )
    if _is_data(folder):
        return f"{_DATA}; give the --model_dir of a run of trainer.run"
    near = [one for one in (folder.parent, *sorted(folder.glob("*/"))) if steps_in(one)]
    if near:
        return f"has no checkpoint, but {near[0]} has; give that folder"
    return "has no checkpoint; give the --model_dir of a run of trainer.run"


def candidates(model_dir: str, checkpoint: str | None) -> list[pathlib.Path]:
    """Returns the checkpoints that a user may mean: the one that is named, or else all, the newest first.

    Args:
      model_dir: of the run; or a checkpoint in it.
      checkpoint: `ckpt-400`, `400`, `best`, `best/ckpt-400`; None: not named.

    Raises:
      DataError: there is no checkpoint.
      UsageError: there is none of that name.
    """
    folder, name = pathlib.Path(model_dir), checkpoint
    if not folder.is_dir() and folder.with_name(f"{folder.name}.index").is_file():
        folder, name = folder.parent, checkpoint or folder.name
    flag = f"--checkpoint={name}"
    match = _NAME.fullmatch(name or "")
    if match is None or (name and not match["folder"] and not match["step"]):
        raise UsageError(f"{flag}: must be a checkpoint or its step, such as {PREFIX}-400 or 400, or {BEST}")
    folder = folder / BEST if match["folder"] else folder
    steps = steps_in(folder)
    if not steps:
        raise DataError(f"{folder}: {_why_none(folder)}")
    if match["step"] is None:
        return [path_of(folder, step) for step in reversed(steps)]
    if int(match["step"]) not in steps:
        raise unknown("--checkpoint", f"{PREFIX}-{int(match['step'])}", (f"{PREFIX}-{step}" for step in steps))
    return [path_of(folder, int(match["step"]))]
