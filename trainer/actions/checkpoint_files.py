"""The files of checkpoints: which there are, how one is added, and which are kept."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence

import tensorflow as tf

from pipeline import errors

PREFIX = "ckpt"
_SCRATCH = "saving-"  # prefix of the folder in which a checkpoint is written


@dataclasses.dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints in a folder. A kill at any moment leaves each of them whole or not there.

    A checkpoint is there when its index is: that file comes last and goes first. `tidy` removes what a kill leaves.

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
        return [self._path(step) for step in self._steps()]

    def add(self, step: int, write: Callable[[str], object]) -> None:
        """Adds the checkpoint that `write` writes to the path it is given; then removes older ones that are not kept.

        Newer ones are there only where they could not be read. They stay until training has passed them.

        Raises:
          DataError: the disk is full, or the folder cannot be written to.
        """
        name = f"{PREFIX}-{step}"
        with errors.named(self._path(step), "cannot be saved"):
            with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self.folder) as scratch:
                write(os.path.join(scratch, name))
                written = pathlib.Path(scratch).glob(f"{name}.*")
                for path in sorted(written, key=lambda path: path.suffix == ".index"):
                    path.replace(self.folder / path.name)
            steps = [other for other in self._steps() if other <= step]
            keep = kept(steps, self.max_to_keep, self.steps_per_epoch)
            self._list(keep)
            for old in set(steps) - set(keep):
                self._remove(old)

    def tidy(self) -> None:
        """Removes what a killed save or removal left behind, and lists what is complete."""
        # TensorFlow itself writes to ..._temp, as did earlier versions in this folder.
        for folder in (*self.folder.glob(f"{_SCRATCH}*"), *self.folder.glob(f"{PREFIX}-*_temp")):
            shutil.rmtree(folder, ignore_errors=True)
        with errors.named(self.folder, "cannot be written to"):
            for path in self.folder.glob(f"{PREFIX}-*.data-*"):
                if not path.with_suffix(".index").exists():
                    path.unlink()
            self._list(self._steps())

    def _steps(self) -> list[int]:
        found = [re.fullmatch(rf"{PREFIX}-(\d+)\.index", path.name) for path in self.folder.glob(f"{PREFIX}-*.index")]
        return sorted(int(match[1]) for match in found if match)

    def _path(self, step: int) -> str:
        return str(self.folder / f"{PREFIX}-{step}")

    def _remove(self, step: int) -> None:
        pathlib.Path(f"{self._path(step)}.index").unlink()
        for path in self.folder.glob(f"{PREFIX}-{step}.data-*"):
            path.unlink()

    def _list(self, steps: Sequence[int]) -> None:
        """Writes the list that `tf.train.latest_checkpoint` reads; without absolute paths, so the folder can move."""
        listing, new = self.folder / "checkpoint", self.folder / "checkpoint.tmp"
        if not steps:
            listing.unlink(missing_ok=True)
            return
        names = [f"{PREFIX}-{step}" for step in steps]
        state = tf.compat.v1.train.generate_checkpoint_state_proto("/", names[-1], names)
        new.write_text(str(state), encoding="utf-8")
        new.replace(listing)


def kept(steps: Sequence[int], max_to_keep: int, steps_per_epoch: int) -> list[int]:
    """Returns which of some steps, ascending, to keep: the newest, and two that are an epoch or more apart.

    The older of the two is an epoch old at least, two at most: from before a slow divergence that the newest have seen.
    The other one takes its place.
    """
    apart = [steps[0]]
    for step in steps:
        if step - apart[-1] >= steps_per_epoch:
            apart.append(step)
    return sorted({*steps[-max_to_keep:], *apart[-2:]})
