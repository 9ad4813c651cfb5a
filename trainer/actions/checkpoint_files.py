"""The files of checkpoints: which there are, how one is added, and which are kept."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Sequence

from pipeline import errors
from pipeline.errors import DataError
from trainer.actions import checkpoint_list
from trainer.stored.files import PREFIX, path_of, steps_in

_SCRATCH = "saving-"  # prefix of the folder in which a checkpoint is written


@dataclasses.dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints in a folder. A kill at any moment leaves each of them complete or absent.

    A checkpoint is complete once its index exists: that file is added last and removed first. `tidy` removes what a
    kill leaves.

    Attributes:
      folder: of the files.
      max_to_keep, steps_per_epoch: see `kept`.
    """

    folder: pathlib.Path
    max_to_keep: int
    steps_per_epoch: int

    @property
    def paths(self) -> list[str]:
        """The checkpoints by step, oldest first.

        From the files themselves: TensorFlow's `checkpoint` file is written after them, and if it is lost or truncated,
        `tf.train.latest_checkpoint` finds none and training would start anew.
        """
        return [self._path(step) for step in self.steps]

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, ascending."""
        return steps_in(self.folder)

    def add(self, step: int, write: Callable[[str], object]) -> None:
        """Adds the checkpoint that `write` writes to the path it is given; then removes older ones that are not kept.

        Newer ones are there only where they could not be read. They stay until training has passed them.

        Raises:
          DataError: the disk is full, or the folder cannot be written to, or is not the one it was.
        """
        self.write(step, write)
        steps = [other for other in self.steps if other <= step]
        self.keep(kept(steps, self.max_to_keep, self.steps_per_epoch), upto=step)

    def write(self, step: int, write: Callable[[str], object]) -> None:
        """Adds a checkpoint, as `add`, or replaces the one of this step; removes none."""
        name = f"{PREFIX}-{step}"
        with errors.named(self._path(step), "cannot be saved"):
            self._check_folder()
            with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self.folder) as scratch:
                try:
                    write(os.path.join(scratch, name))
                finally:
                    self._check_folder()  # TensorFlow makes the folders that it misses
                written = pathlib.Path(scratch).glob(f"{name}.*")
                for path in sorted(written, key=lambda path: path.suffix == ".index"):
                    path.replace(self.folder / path.name)

    def keep(self, steps: Sequence[int], upto: int | None = None) -> None:
        """Removes what is of other steps, up to one of them or all, and lists these in their order.

        Raises:
          DataError: as `add`.
        """
        with errors.named(self.folder, "cannot be written to"):
            self._check_folder()
            checkpoint_list.write(self.folder, steps)
            for old in self.steps:
                if (upto is None or old <= upto) and old not in steps:
                    self._remove(old)

    def tidy(self) -> list[str]:
        """Removes what a killed save or removal left behind, and lists what is complete.

        Returns:
          The checkpoints that were listed and have lost their index, which no kill does; their data stay for now.

        Raises:
          DataError: all that were listed are lost, or the folder cannot be written to.
        """
        self._check_folder()  # from now on it has to be this one
        # TensorFlow itself writes to ..._temp, as did earlier versions in this folder.
        for folder in (*self.folder.glob(f"{_SCRATCH}*"), *self.folder.glob(f"{PREFIX}-*_temp")):
            shutil.rmtree(folder, ignore_errors=True)
        with errors.named(self.folder, "cannot be written to"):
            steps, listed = self.steps, checkpoint_list.read(self.folder)
            if listed and not steps:
                raise DataError(
                    f"{self.folder}: lists {', '.join(listed)} in its file `checkpoint`, but no .index file is there; "
                    "restore them from a backup, or remove that file to start anew"
                )
            lost = []
            for path in self.folder.glob(f"{PREFIX}-*.data-*"):
                if not path.with_suffix(".index").exists():
                    if path.stem in listed:
                        lost.append(str(path.with_suffix("")))
                    else:
                        path.unlink()
            checkpoint_list.write(self.folder, steps)
        return lost

    def _check_folder(self) -> None:
        """Raises DataError where the folder is no longer the one in which this process began."""
        try:
            now = self.folder.stat()
        except OSError:
            now = None
        if now is None or (now.st_dev, now.st_ino) != self._identity:
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # empty: TensorFlow made it anew
            raise DataError(
                f"--model_dir={self.folder}: was moved, removed or replaced during this run; put it back, then rerun "
                "the same command to resume"
            )

    @functools.cached_property
    def _identity(self) -> tuple[int, int]:
        found = self.folder.stat()
        return found.st_dev, found.st_ino

    def _path(self, step: int) -> str:
        return str(path_of(self.folder, step))

    def _remove(self, step: int) -> None:
        pathlib.Path(f"{self._path(step)}.index").unlink()
        for path in self.folder.glob(f"{PREFIX}-{step}.data-*"):
            path.unlink()


def kept(steps: Sequence[int], max_to_keep: int, steps_per_epoch: int) -> list[int]:
    """Returns which of some steps, ascending, to keep: the newest, and two that are an epoch or more apart.

    The older of the two is at least an epoch old, and about two at most where checkpoints are frequent: from before a
    slow divergence that the newest have seen. The other one takes its place.
    """
    apart = [steps[0]]
    for step in steps:
        if step - apart[-1] >= steps_per_epoch:
            apart.append(step)
    return sorted({*steps[-max_to_keep:], *apart[-2:]})
