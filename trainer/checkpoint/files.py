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
LIST = "checkpoint"  # the file that `tf.train.latest_checkpoint` reads
SCRATCH = "saving-"  # prefix of the folder in which a checkpoint is written, or its index waits for its data's removal
FILE = re.compile(rf"{PREFIX}-\d+\.(index|data-\d{{5}}-of-\d{{5}})")  # names of the files of checkpoints
_REMOVED = "removed-"  # prefix of such an index
_HALF = (
    f"its {PREFIX}-*.data-* files lack their .index files, as half of a copy does; copy the whole folder again, once "
    "no run writes to it"
)
ALL = Period()  # every checkpoint counts as one of the newest; see `kept`
_DATA = "is a data set (it has a manifest.json), not the folder of a run"
_NAME = re.compile(rf"(?:(?P<folder>{BEST})(?:/|$))?(?:{PREFIX}-)?(?P<step>\d+)?")


def steps_in(folder: pathlib.Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, ascending; none if there is no such folder."""
    found = [re.fullmatch(rf"{PREFIX}-(\d+)\.index", path.name) for path in folder.glob(f"{PREFIX}-*.index")]
    return sorted(int(match[1]) for match in found if match)


def path_of(folder: pathlib.Path, step: int) -> pathlib.Path:
    """Returns the path of a checkpoint, without the suffixes of its files."""
    return folder / f"{PREFIX}-{step}"


@dataclasses.dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints in a folder. A kill at any moment leaves each of them complete or absent.

    A checkpoint is complete once its index exists: that file is added last and removed first. `tidy` cleans up after a
    kill, and completes a save of which only the index is left to add.

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
        """The checkpoints by step, oldest first."""
        return [str(path_of(self.folder, step)) for step in self.steps]

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, ascending."""
        # From the files themselves: TensorFlow's `checkpoint` file is written after them. If it is lost or truncated,
        # `tf.train.latest_checkpoint` finds none, and training would start from step 0.
        return steps_in(self.folder)

    def add(self, step: int, write: Callable[[str], object]) -> None:
        """Adds the checkpoint that `write` writes to a given path, then removes older ones that are not kept.

        Raises:
          DataError: the disk is full, or the folder cannot be written to, or was replaced during the run.
        """
        self.write(step, write)
        self.prune(step)

    def prune(self, step: int) -> None:
        """Removes older checkpoints that are not kept once this step is saved. Raises as `add`."""
        # Newer ones are there only if they could not be read. They stay until training has passed them.
        steps = [other for other in self.steps if other <= step]
        self.keep(kept(steps, self.max_to_keep, self.steps_per_epoch, self.period), upto=step)

    def write(self, step: int, write: Callable[[str], object]) -> None:
        """Adds a checkpoint, or replaces that of the same step; removes no others. Raises as `add`."""
        path = path_of(self.folder, step)
        with errors.named(str(path), "cannot be saved"):
            self._check_folder()
            with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as scratch:
                try:
                    write(os.path.join(scratch, path.name))
                finally:
                    self._check_folder()  # TensorFlow makes the folders that it misses
                written = pathlib.Path(scratch).glob(f"{path.name}.*")
                # The index last: until it is there, the checkpoint is absent.
                for file in sorted(written, key=lambda file: file.suffix == ".index"):
                    file.replace(self.folder / file.name)

    def keep(self, steps: Sequence[int], upto: int | None = None) -> None:
        """Lists these steps in their order, and removes all other checkpoints (up to a step, if one is given).

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
          The checkpoints that have lost their index, unless an earlier version was killed while it removed them. Their
          data files stay in any case.

        Raises:
          DataError: all have lost it, something else lies in the place of a file, or the folder cannot be written to;
            nothing is removed.
        """
        self._check_folder()  # which remembers the folder's identity
        with errors.named(self.folder, "cannot be written to"):
            self._check_places()
            scratches = list(self.folder.glob(f"{SCRATCH}*"))
            cut = [index for scratch in scratches for index in scratch.glob(f"*{PREFIX}-*.index")]
            # Killed between its renames, a save that replaces its step leaves new data with the old index.
            whole = [index for index in cut if not _is_removed(index) and not _data_in(index.parent)]
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
            for scratch in scratches:  # last, as it says what may be removed
                shutil.rmtree(scratch, ignore_errors=True)
            listed, has_list = self._listed(), (self.folder / LIST).is_file()
            self._list(self.steps)
        # Earlier versions removed the index, and then the data, of what they had taken off the list before.
        newest = max(self.steps, default=0)
        return [str(self.folder / name) for name in lost if not has_list or name in listed or _step_of(name) > newest]

    def _check_places(self) -> None:
        """Raises DataError if something else lies where a file of a checkpoint belongs: each save would fail there."""
        for path in sorted(self.folder.iterdir()):
            if path.name == LIST or FILE.fullmatch(path.name):
                check_file(path)

    def _check_lost(self, lost: Sequence[str]) -> None:
        """Raises DataError if a folder without complete checkpoints has had some."""
        if listed := self._listed():
            raise DataError(
                f"{self.folder}: lists {', '.join(listed)} in its file `{LIST}`, but no .index file is there; "
                "restore them from a backup, or start over with --fresh"
            )
        if lost:
            raise DataError(f"{self.folder}: {_HALF}, or start over with --fresh")

    def _listed(self) -> list[str]:
        """Returns the names in TensorFlow's list. It is written after saves and before removals: all were complete."""
        file = self.folder / LIST
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        return re.findall(r'^all_model_checkpoint_paths: "([^"]*)"', text, re.MULTILINE)

    def _list(self, steps: Sequence[int]) -> None:
        """Writes TensorFlow's list, a CheckpointState in text form; `tf.train.latest_checkpoint` returns the last."""
        file = self.folder / LIST
        if not steps:
            file.unlink(missing_ok=True)
            return
        names = [path_of(self.folder, step).name for step in steps]  # no absolute paths: the folder may be moved
        lines = [f'model_checkpoint_path: "{names[-1]}"', *(f'all_model_checkpoint_paths: "{name}"' for name in names)]
        replace(file, "".join(f"{line}\n" for line in lines))

    def _check_folder(self) -> None:
        """Raises DataError if the folder is no longer the one in which this process began."""
        try:
            now = self.folder.stat()
        except OSError:
            now = None
        if now is None or (now.st_dev, now.st_ino) != self._identity:
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # only if empty: then TensorFlow has made it
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
            # First, as without it the checkpoint is absent. It stays until the data are gone: data without any index
            # are those of half a copy, which are not ours to remove.
            index.replace(pathlib.Path(scratch) / f"{_REMOVED}{index.name}")
            for path in self.folder.glob(f"{PREFIX}-{step}.data-*"):
                path.unlink()


def _step_of(name: str) -> int:
    step = name.removeprefix(f"{PREFIX}-")
    return int(step) if step.isdecimal() else -1


def _is_removed(index: pathlib.Path) -> bool:
    return index.name.startswith(_REMOVED)


def _data_in(folder: pathlib.Path) -> list[pathlib.Path]:
    return list(folder.glob(f"{PREFIX}-*.data-*"))


def kept(steps: Sequence[int], max_to_keep: int, steps_per_epoch: int, period: Period = ALL) -> list[int]:
    """Returns which of the steps, ascending, to keep: the newest, and two that are an epoch or more apart.

    Args:
      steps: global steps of the checkpoints.
      max_to_keep: how many of the newest to keep.
      steps_per_epoch: T.
      period: says which steps count. Others stay while fewer count than are kept, or while they are one of the newest
        two; they take no place of those that count. Without steps, all count.
    """
    # A slow divergence may be in all of the newest. The older of the two is at least an epoch old, and about two at
    # most if checkpoints are frequent; the younger one takes its place in time.
    apart = [steps[0]]
    for step in steps:
        if step - apart[-1] >= steps_per_epoch:
            apart.append(step)
    counted = [step for step in steps if not period.steps or period.is_due(step)][-max_to_keep:]
    newest = max(max_to_keep - len(counted), min(max_to_keep, 2))
    return sorted({*counted, *steps[-newest:], *apart[-2:]})


def check_run_folder(folder: RunFolder) -> None:
    """Raises UsageError if a path cannot be the folder of a run: it is a file, a checkpoint or a data set."""
    path = folder.path
    kind = "a file" if path.is_file() else "a checkpoint" if path.with_name(f"{path.name}.index").is_file() else None
    if kind and not path.is_dir():
        raise UsageError(f"{folder}: is {kind}, not the folder of a run")
    if _is_data(path):
        raise UsageError(f"{folder}: {_DATA}; {_of_a_run()}")


def check_to_train(folder: RunFolder, fresh: bool) -> None:
    """Checks that no run would begin at step 0 where another one is. Call it before the folder is locked.

    Args:
      folder: folder of the run that begins or resumes.
      fresh: whether the run that is there is to be removed.

    Raises:
      UsageError: it is the place of another run's best checkpoints or logs.
      DataError: only the best checkpoints of its run are left, which a new ranking would replace.
    """
    # A run that an earlier version began in such a place resumes.
    if not folder.config.is_file() and (run := folder.run_around()):
        raise UsageError(
            f"{folder}: belongs to the run in {run.path}; give {run} to resume that, or a folder outside it for a new "
            "run"
        )
    # Of half a copy, which has such files, `tidy` says more.
    is_empty = not (steps_in(folder.path) or _data_in(folder.path) or (folder.path / LIST).exists())
    if is_empty and not fresh and (best := steps_in(folder.best)) and _was_saved(folder, best):
        newest = path_of(folder.best, best[-1])
        raise DataError(
            f"{folder}: has checkpoints in {BEST}/ alone, the newer ones are lost; to resume from one of these, copy "
            f"{BEST}/{newest.name}.* into the folder; or give another --model_dir with --initialize_from={newest}; or "
            "start over with --fresh"
        )


def _was_saved(folder: RunFolder, best: Sequence[int]) -> bool:
    """Returns whether a run has saved checkpoints besides its best ones, which are of these steps."""
    if not (folder.path / LOCK).is_file():  # a copy, or part of one
        return True
    # A run that was killed before its first save may have ranked evaluations. The flags are written after each save.
    first = min(path_of(folder.best, step).with_suffix(".index").stat().st_mtime_ns for step in best)
    return folder.config.is_file() and folder.config.stat().st_mtime_ns > first


def candidates(folder: pathlib.Path, checkpoint: str | None) -> list[pathlib.Path]:
    """Returns the checkpoints that a user may mean: the named one, or all, the newest first.

    Args:
      folder: folder of a run; or a checkpoint in it.
      checkpoint: `ckpt-400`, `400`, `best`, `best/ckpt-400`; None: not named.

    Raises:
      DataError: there is no checkpoint.
      UsageError: there is none of that name.
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
    """Returns why a folder has no checkpoints, and what to do."""
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
