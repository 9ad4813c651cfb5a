"""The files of checkpoints on disk: listing, adding and removing them. Without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence

from pipeline import errors
from pipeline.errors import DataError, UsageError, name_of, unknown
from pipeline.files.write import replace
from trainer.config.steps import Period
from trainer.run_folder import BEST, LOCK, RunFolder, check_file

PREFIX = "ckpt"
LIST = "checkpoint"  # file read by `tf.train.latest_checkpoint`
SCRATCH = "saving-"  # prefix of a folder for a checkpoint being written, or for an index whose data are being removed
FILE = re.compile(rf"{PREFIX}-\d+\.(index|data-\d{{5}}-of-\d{{5}})")  # file names of checkpoints
_REMOVED = "removed-"  # prefix of such an index
_HALF = (
    f"its {PREFIX}-*.data-* files lack their .index files, as half of a copy does; copy the whole folder again, once "
    "no run writes to it"
)
ALL = Period()  # every checkpoint counts towards the newest; see `kept`
_DATA = "is a data set (it has a manifest.json), not the folder of a run"
_NAME = re.compile(rf"(?:(?P<folder>{BEST})(?:/|$))?(?:{PREFIX}-)?(?P<step>\d+)?")


def steps_in(folder: pathlib.Path) -> list[int]:
    """Returns the steps of complete checkpoints in a folder, ascending; empty if there is no such folder."""
    found = [re.fullmatch(rf"{PREFIX}-(\d+)\.index", path.name) for path in folder.glob(f"{PREFIX}-*.index")]
    return sorted(int(match[1]) for match in found if match)


def path_of(folder: pathlib.Path, step: int) -> pathlib.Path:
    """Returns the path of a checkpoint, without the suffixes of its files."""
    return folder / f"{PREFIX}-{step}"


@dataclasses.dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints in a folder. A kill at any moment leaves each of them complete or absent.

    A checkpoint is complete once its index exists, as that file is added last and removed first. `tidy` cleans up after
    a kill, and completes a save that only lacks its index.

    Attributes:
      folder: folder of the files.
      max_to_keep, steps_per_epoch, period: see `kept`.
    """

    folder: pathlib.Path
    max_to_keep: int
    steps_per_epoch: int
    period: Period = ALL

    @property
    def paths(self) -> list[str]:
        """Paths of the checkpoints, ordered by step."""
        return [str(path_of(self.folder, step)) for step in self.steps]

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints, ascending."""
        # From the files themselves: TensorFlow's `checkpoint` file is written after them. If it is lost or truncated,
        # `tf.train.latest_checkpoint` finds nothing, and training would start from step 0.
        return steps_in(self.folder)

    def add(self, step: int, write: Callable[[str], object]) -> None:
        """Adds a checkpoint, which `write` writes to a given path, then removes older ones that are not to be kept.

        Raises:
          DataError: the disk is full, or the folder cannot be written to or was replaced during the run.
        """
        self.write(step, write)
        self.prune(step)

    def prune(self, step: int) -> None:
        """Removes older checkpoints that are not to be kept once this step is saved. Raises errors like `add`."""
        # Newer ones only exist if they could not be read. They stay until training has passed them.
        steps = [other for other in self.steps if other <= step]
        self.keep(kept(steps, self.max_to_keep, self.steps_per_epoch, self.period), upto=step)

    def write(self, step: int, write: Callable[[str], object]) -> None:
        """Adds a checkpoint, or replaces the one of the same step; removes no others. Raises errors like `add`."""
        path = path_of(self.folder, step)
        with errors.named(str(path), "cannot be saved"):
            self._check_folder()
            with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as scratch:
                try:
                    write(os.path.join(scratch, path.name))
                finally:
                    self._check_folder()  # TensorFlow creates missing folders
                written = pathlib.Path(scratch).glob(f"{path.name}.*")
                # The index comes last: until it exists, the checkpoint does not.
                for file in sorted(written, key=lambda file: file.suffix == ".index"):
                    file.replace(self.folder / file.name)

    def keep(self, steps: Sequence[int], upto: int | None = None) -> None:
        """Lists these steps in order, and removes all other checkpoints (up to a step, if given).

        Raises:
          DataError: the folder cannot be written to, or was replaced during the run.
        """
        with errors.named(self.folder, "cannot be written to"):
            self._check_folder()
            self._list(steps)
            for old in self.steps:
                if (upto is None or old <= upto) and old not in steps:
                    self._remove(old)

    def tidy(self) -> list[str]:
        """Cleans up after a killed save or removal, and lists the complete checkpoints.

        Returns:
          Checkpoints that have lost their index, except those that an earlier version was killed while removing. Their
          data files stay in either case.

        Raises:
          DataError: all checkpoints have lost their index, something else has a file's path, or the folder cannot be
            written to; nothing is removed.
        """
        self._check_folder()  # also remembers the folder's identity
        with errors.named(self.folder, "cannot be written to"):
            self._check_places()
            scratches = list(self.folder.glob(f"{SCRATCH}*"))
            cut = [index for scratch in scratches for index in scratch.glob(f"*{PREFIX}-*.index")]
            # A save that replaces its step leaves new data with the old index if killed between its renames.
            whole = [index for index in cut if not index.name.startswith(_REMOVED) and not _data_in(index.parent)]
            left = [path for path in _data_in(self.folder) if not path.with_suffix(".index").exists()]
            ours = {index.name.removeprefix(_REMOVED) for index in cut}
            lost = list(dict.fromkeys(path.stem for path in left if f"{path.stem}.index" not in ours))
            if not self.steps and not whole:
                self._check_lost(lost)
            for index in whole:
                index.replace(self.folder / index.name)
            for path in left:
                if path.stem not in lost and not path.with_suffix(".index").exists():
                    path.unlink()
            for scratch in scratches:  # last, as it determines what may be removed
                shutil.rmtree(scratch, ignore_errors=True)
            listed, has_list = self._listed(), (self.folder / LIST).is_file()
            self._list(self.steps)
        # Earlier versions first took a checkpoint off the list, then removed its index, then its data.
        newest = max(self.steps, default=0)
        return [str(self.folder / name) for name in lost if not has_list or name in listed or _step_of(name) > newest]

    def _check_places(self) -> None:
        """Raises DataError if something else has the path of a checkpoint's file: every save would fail there."""
        for path in sorted(self.folder.iterdir()):
            if path.name == LIST or FILE.fullmatch(path.name):
                check_file(path)

    def _check_lost(self, lost: Sequence[str]) -> None:
        if listed := self._listed():
            raise DataError(
                f"{self.folder}: lists {', '.join(listed)} in its file `{LIST}`, but no .index file is there; "
                "restore them from a backup, or start over with --fresh"
            )
        if lost:
            raise DataError(f"{self.folder}: {_HALF}, or start over with --fresh")

    def _listed(self) -> list[str]:
        """Returns the checkpoints in TensorFlow's list, all complete: it is written after saves and before removals."""
        file = self.folder / LIST
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        return re.findall(r'^all_model_checkpoint_paths: "([^"]*)"', text, re.MULTILINE)

    def _list(self, steps: Sequence[int]) -> None:
        """Writes TensorFlow's list, a CheckpointState as text, whose last one `tf.train.latest_checkpoint` returns."""
        file = self.folder / LIST
        if not steps:
            file.unlink(missing_ok=True)
            return
        names = [path_of(self.folder, step).name for step in steps]  # no absolute paths: the folder may be moved
        lines = [f'model_checkpoint_path: "{names[-1]}"', *(f'all_model_checkpoint_paths: "{name}"' for name in names)]
        replace(file, "".join(f"{line}\n" for line in lines))

    def _check_folder(self) -> None:
        """Raises DataError if the folder is no longer the one that this process started with."""
        try:
            now = self.folder.stat()
        except OSError:
            now = None
        if now is None or (now.st_dev, now.st_ino) != self._identity:
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # only if empty: then TensorFlow created it
            raise DataError(
                f"--model_dir={self.folder}: was moved, removed or replaced during this run; put it back, then rerun "
                "the same command to resume"
            )

    @functools.cached_property
    def _identity(self) -> tuple[int, int]:
        found = self.folder.stat()
        return found.st_dev, found.st_ino

    def _remove(self, step: int) -> None:
        index = pathlib.Path(f"{path_of(self.folder, step)}.index")
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as scratch:
            # The index goes first, as there is no checkpoint without it. It is kept until the data are gone: data
            # without any index may be a partial copy, which is not ours to remove.
            index.replace(pathlib.Path(scratch) / f"{_REMOVED}{index.name}")
            for path in self.folder.glob(f"{PREFIX}-{step}.data-*"):
                path.unlink()


def cut_after(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the later checkpoints in a checkpoint's folder whose data have no index."""
    found = {data.with_suffix("") for data in _data_in(path.parent) if not data.with_suffix(".index").exists()}
    return sorted(cut for cut in found if _step_of(cut.name) > _step_of(path.name))


def without_index(path: object) -> str:
    """Returns a notice that a checkpoint without an index is skipped."""
    return f"skipped {path}, which is damaged: its .index file is missing"


def _step_of(name: str) -> int:
    step = name.removeprefix(f"{PREFIX}-")
    return int(step) if step.isdecimal() else -1


def _data_in(folder: pathlib.Path) -> list[pathlib.Path]:
    return list(folder.glob(f"{PREFIX}-*.data-*"))


def kept(steps: Sequence[int], max_to_keep: int, steps_per_epoch: int, period: Period = ALL) -> list[int]:
    """Returns the steps to keep, ascending: the newest ones, and two that are an epoch or more apart.

    A restored run keeps the same checkpoints again, however often it is restored.

    Args:
      steps: global steps of the checkpoints, ascending.
      max_to_keep: number of newest checkpoints to keep.
      steps_per_epoch: T.
      period: period of the steps that count. Other steps are kept while too few count, or while they are among the
        newest two; they never displace steps that count. With an empty period all steps count.
    """
    # A slow divergence may affect all of the newest. The older of the two is at least one epoch old, and about two at
    # most if checkpoints are frequent; the younger one takes its place in time.
    apart = [steps[0]]
    for step in steps:
        if step - apart[-1] >= steps_per_epoch:
            apart.append(step)
    counted = [step for step in steps if not period.steps or period.is_due(step)][-max_to_keep:]
    newest = max(max_to_keep - len(counted), min(max_to_keep, 2))
    found = sorted({*counted, *steps[-newest:], *apart[-2:]})
    # Once steps are removed, the first one changes, and with it perhaps the steps an epoch after it.
    return found if len(found) == len(steps) else kept(found, max_to_keep, steps_per_epoch, period)


def check_run_folder(folder: RunFolder) -> None:
    """Raises UsageError if a path cannot be a run's folder: it is a file, a checkpoint or a data set."""
    path = folder.path
    kind = "a file" if path.is_file() else "a checkpoint" if path.with_name(f"{path.name}.index").is_file() else None
    if kind and not path.is_dir():
        raise UsageError(f"{folder}: is {kind}, not the folder of a run")
    if _is_data(path):
        raise UsageError(f"{folder}: {_DATA}; {_of_a_run()}")


def check_to_train(folder: RunFolder, fresh: bool) -> None:
    """Checks that a run does not begin at step 0 over another run. Call it before the folder is locked.

    Args:
      folder: folder of the run that begins or resumes.
      fresh: whether to remove the existing run.

    Raises:
      UsageError: the folder holds another run's best checkpoints or logs.
      DataError: only the best checkpoints of its run are left, and a new ranking would replace them.
    """
    # A run that an earlier version started in such a place may resume.
    if not folder.config.is_file() and (run := folder.run_around()):
        raise UsageError(
            f"{folder}: belongs to the run in {run.path}; give {run} to resume that, or a folder outside it for a new "
            "run"
        )
    # For a partial copy, which has such files, `tidy` has a better message.
    is_empty = not (steps_in(folder.path) or _data_in(folder.path) or (folder.path / LIST).exists())
    if is_empty and not fresh and (best := steps_in(folder.best)) and _was_saved(folder, best):
        newest = path_of(folder.best, best[-1])
        raise DataError(
            f"{folder}: only has checkpoints in {BEST}/, the newer ones are lost; to resume from one of these, copy "
            f"{BEST}/{newest.name}.* into the folder; or give another --model_dir with --initialize_from={newest}; or "
            "start over with --fresh"
        )


def _was_saved(folder: RunFolder, best: Sequence[int]) -> bool:
    """Returns whether a run has saved checkpoints besides its best ones, given their steps."""
    if not (folder.path / LOCK).is_file():  # a copy, or a partial one
        return True
    # A run killed before its first save may have ranked evaluations. Flags are written after each save.
    first = min(path_of(folder.best, step).with_suffix(".index").stat().st_mtime_ns for step in best)
    return folder.config.is_file() and folder.config.stat().st_mtime_ns > first


def candidates(folder: pathlib.Path, checkpoint: str | None) -> list[pathlib.Path]:
    """Returns the checkpoints to choose from: the named one, or all, newest first.

    Args:
      folder: folder of a run, or a checkpoint in it.
      checkpoint: `ckpt-400`, `400`, `best`, `best/ckpt-400`; None if not named.

    Raises:
      DataError: there is no checkpoint.
      UsageError: no checkpoint has that name.
    """
    name = checkpoint
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


def _why_none(folder: pathlib.Path) -> str:
    if folder.name == BEST:
        return "has no checkpoint; a run keeps the best ones with --keep_best"
    if not folder.is_dir():
        return f"there is no such folder; {_of_a_run()}"
    if _data_in(folder):
        return _HALF
    if _is_data(folder):
        return f"{_DATA}; {_of_a_run()}"
    near = [one for one in (folder.parent, *sorted(folder.glob("*/"))) if steps_in(one)]
    if near:
        return f"has no checkpoint, but {near[0]} has; give that folder"
    return f"has no checkpoint; {_of_a_run()}"


def _of_a_run() -> str:
    return f"give the --model_dir of a run of {name_of('trainer.run')}"


def _is_data(folder: pathlib.Path) -> bool:
    return (folder / "manifest.json").is_file() and not steps_in(folder)
