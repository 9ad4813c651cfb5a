"""Which checkpoints a folder has, and the one that a user names; without TensorFlow."""

from __future__ import annotations

import pathlib
import re

from pipeline.errors import DataError, UsageError, unknown

PREFIX = "ckpt"
BEST = "best"  # folder of the best checkpoints in model_dir
_NAME = re.compile(rf"(?:(?P<folder>{BEST})(?:/|$))?(?:{PREFIX}-)?(?P<step>\d+)?")


def steps_in(folder: pathlib.Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, ascending; none where there is no such folder."""
    found = [re.fullmatch(rf"{PREFIX}-(\d+)\.index", path.name) for path in folder.glob(f"{PREFIX}-*.index")]
    return sorted(int(match[1]) for match in found if match)


def path_of(folder: pathlib.Path, step: int) -> pathlib.Path:
    """Returns the path of a checkpoint, without the suffixes of its files."""
    return folder / f"{PREFIX}-{step}"


def check_run_folder(model_dir: str) -> None:
    """Raises UsageError where a path is no folder, nor can become that of a run: a file, or a checkpoint."""
    path = pathlib.Path(model_dir)
    kind = "a file" if path.is_file() else "a checkpoint" if path.with_name(f"{path.name}.index").is_file() else None
    if kind and not path.is_dir():
        raise UsageError(f"--model_dir={model_dir}: is {kind}, not the folder of a run")


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
        raise DataError(f"{folder}: has no checkpoint; give the --model_dir of a run of trainer.run")
    if match["step"] is None:
        return [path_of(folder, step) for step in reversed(steps)]
    if int(match["step"]) not in steps:
        raise unknown("--checkpoint", f"{PREFIX}-{int(match['step'])}", (f"{PREFIX}-{step}" for step in steps))
    return [path_of(folder, int(match["step"]))]
