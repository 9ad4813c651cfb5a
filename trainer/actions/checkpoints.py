"""Checkpoints: the state, what it belongs to, and what a run has to remember besides."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from pipeline import errors
from pipeline.errors import DataError, UsageError
from pipeline.order.mixture_spec import Spec
from trainer.actions.checkpoint_files import CheckpointFiles
from trainer.actions.origin import Origin
from trainer.actions.output import Output
from trainer.actions.remembered import Remembered
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig, file
from trainer.loop import NotFiniteError
from trainer.step.state import TrainState
from trainer.stored import record, structure, weights
from trainer.stored.files import PREFIX


class _Record(tf.train.experimental.PythonState):
    """A text in the checkpoint: written with it, but read before it is restored, by `trainer.stored.record`."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text()

    def deserialize(self, string_value: str) -> None:
        """Does nothing."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that was restored.

    Attributes:
      path: of it.
      changes: which training options have changed since: `--learning_rate was 0.05, is 0.01`.
    """

    path: str
    changes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return os.path.basename(self.path)


class Checkpoints:
    """Saves and restores the state of one run in its model_dir.

    Every worker saves, as tf.distribute requires, but only the chief into model_dir, the others into a temporary folder
    that they remove; all restore from model_dir.
    """

    def __init__(
        self,
        state: TrainState,
        spec: Spec,
        steps_per_epoch: int,
        config: TrainConfig,
        cluster: Cluster,
        output: Output,
        remembered: Mapping[str, Remembered] | None = None,
        io_device: str | None = None,
        data: Mapping[str, str] | None = None,
    ) -> None:
        """Removes what a kill left in model_dir.

        Args:
          state, spec, steps_per_epoch, config, cluster: of the run.
          output: of lines.
          remembered: what a checkpoint holds besides variables, by name.
          data: what is read, in words, by the digest of its manifest.
          io_device: that reads and writes the files; None: the variables' own, which must be of this process.
        """
        self._state, self._output, self._origin = (
            state,
            output,
            Origin(state, spec, config, structure.of(state.model), data or {}),
        )
        self._folder = pathlib.Path(config.run.model_dir)
        self._files = CheckpointFiles(self._folder, config.steps.max_to_keep, steps_per_epoch)
        self._checkpoint = tf.train.Checkpoint(
            **state.trackable(),
            record=_Record(self._record_text),
        )
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        self._remembered = remembered or {}
        self._is_chief, self._saved_step = cluster.is_chief, 0
        if cluster.is_chief:
            for path in self._files.tidy():
                self._output.line(f"skipped {path}, which is damaged: its .index file is missing")

    @property
    def newest(self) -> str | None:
        """Path of the newest checkpoint in model_dir, or None."""
        paths = self._files.paths
        return paths[-1] if paths else None

    def restore(self) -> Restored | None:
        """Restores the newest checkpoint that can be read; None where there is none.

        A damaged one is skipped with a notice: from the one before it, the same steps lead to the same weights, so
        only time is lost. If all are damaged, that is an error, not a silent start from step 0.

        Raises:
          UsageError: the checkpoint is of another model, optimizer, image shape or order of examples.
          DataError: none can be read.
        """
        paths = self._files.paths
        for path in reversed(paths):
            try:
                stored = record.read(pathlib.Path(path)).content
                self._origin.check(path, stored)
                with record.readable(pathlib.Path(path)):
                    self._read(path, stored)
                self._origin.keep_rate(stored)
            except record.UnreadableError as error:
                self._output.line(f"skipped {path}, which is damaged: {error.reason}")
                continue
            self._saved_step = self._state.step
            for name, part in self._remembered.items():
                part.restore(stored.get("remembered", {}).get(name))
            return Restored(path, self._origin.changes(stored))
        if paths:
            raise DataError(
                f"{self._folder}: none of its {len(paths)} checkpoints can be read, the newest is {paths[-1]}; "
                "restore one from a backup, or start anew with another --model_dir"
            )
        return None

    def _read(self, path: str, stored: dict[str, Any]) -> None:
        try:
            # Earlier versions stored a count of saves, too, which is expected to be left over.
            self._checkpoint.read(path, self._options).assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError) as error:
            changes = "".join(f"; {change}" for change in self._origin.changes(stored))
            raise UsageError(
                f"{path} is of another form of the model or the optimizer: {weights.mismatch(error)}{changes}; go back "
                "to what it was, code and flags, or use another --model_dir"
            ) from None

    def save(self) -> None:
        """Saves the state, unless this step is saved already.

        Raises:
          NotFiniteError: a weight is not finite; nothing is written.
        """
        if self._state.step != self._saved_step:
            self.write(self._files.add)
            if self._is_chief:
                with errors.named(self._folder, "cannot be written to"):
                    file.write(self._folder, dataclasses.asdict(self._origin.config))
            self._saved_step = self._state.step

    def write(self, add: Callable[[int, Callable[[str], object]], None]) -> None:
        """Writes the state; every worker has to call it.

        Args:
          add: of a folder's `CheckpointFiles`: adds what is written.

        Raises:
          NotFiniteError: a weight is not finite; nothing is written.
        """
        step = self._state.step
        if not bool(self._state.is_finite()):
            raise NotFiniteError(f"step {step}: a weight is NaN or infinite, so it is not saved")
        if self._is_chief:
            add(step, self._write)
        else:
            with tempfile.TemporaryDirectory(prefix="trainer-worker-") as scratch:
                self._write(os.path.join(scratch, PREFIX))

    def _write(self, path: str) -> None:
        self._checkpoint.write(path, self._options)

    def way_back(self) -> str:
        """Returns what the user can do after a loss or a weight that is not finite."""
        paths = self._files.paths
        if not paths:
            return "try a lower --learning_rate"
        oldest, newest = os.path.basename(paths[0]), paths[-1]
        further = f"; to go further back, as far as {oldest}, delete the newer ones" if len(paths) > 1 else ""
        return f"rerun with a lower --learning_rate to resume from {newest}{further}"

    def _record_text(self) -> str:
        remembered = {name: part.stored() for name, part in self._remembered.items()}
        return json.dumps({**self._origin.content(), "remembered": remembered}, sort_keys=True)
