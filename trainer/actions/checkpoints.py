"""Checkpoints: the state, and beside it what the state belongs to (model, optimizer, order of examples)."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import tensorflow as tf

from pipeline.errors import DataError, UsageError
from pipeline.order.order import OrderSpec
from trainer.actions.output import Output
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.step.state import TrainState

_PREFIX = "ckpt"
_RECORD_KEY = "record/.ATTRIBUTES/py_state"  # where tf.train.Checkpoint(record=PythonState) puts it


class _Record(tf.train.experimental.PythonState):
    """A text in the checkpoint: written with it, but read before it is restored, by `_stored_record`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text

    def deserialize(self, string_value: str) -> None:
        """Does nothing."""


class Checkpoints:
    """Saves and restores the state of one run in its model_dir.

    Every worker saves, as tf.distribute requires, but only the chief into model_dir, the others into a temporary folder
    that they remove; all restore from model_dir.
    """

    def __init__(
        self, state: TrainState, spec: OrderSpec, config: TrainConfig, cluster: Cluster, output: Output
    ) -> None:
        self._state, self._spec, self._config, self._output = state, spec, config, output
        self._folder = pathlib.Path(config.run.model_dir)
        self._checkpoint = tf.train.Checkpoint(
            model=state.model,
            optimizer=state.optimizer,
            global_step=state.global_step,
            record=_Record(json.dumps(self._record(), sort_keys=True)),
        )
        self._manager = None
        self._saved_step = 0
        if cluster.is_chief:
            _tidy(self._folder)
            self._manager = tf.train.CheckpointManager(
                self._checkpoint, str(self._folder), max_to_keep=config.steps.max_to_keep, checkpoint_name=_PREFIX
            )

    @property
    def newest(self) -> str | None:
        """Path of the newest checkpoint in model_dir, or None."""
        paths = _complete_checkpoints(self._folder)
        return paths[-1] if paths else None

    def restore(self) -> str | None:
        """Restores the newest checkpoint that can be read and returns its path; None where there is none.

        A damaged one is skipped with a notice: from the one before it, the same steps lead to the same weights, so
        only time is lost. If all are damaged, that is an error, not a silent start from step 0.

        Raises:
          UsageError: the checkpoint is of another model, optimizer, image shape or order of examples.
          DataError: none can be read.
        """
        paths = _complete_checkpoints(self._folder)
        for path in reversed(paths):
            try:
                self._check(path, _stored_record(path))
                self._checkpoint.restore(path).assert_existing_objects_matched()
            except (tf.errors.OpError, IndexError) as error:  # IndexError: what the reader raises for a truncated file
                self._output.line(f"skipped {path}, which is damaged: {str(error).splitlines()[0]}")
                continue
            self._saved_step = self._state.step
            return path
        if paths:
            raise DataError(
                f"{self._folder}: none of its {len(paths)} checkpoints can be read, the newest is {paths[-1]}; "
                "restore one from a backup, or start anew with another --model_dir"
            )
        return None

    def save(self) -> None:
        """Saves the state, unless this step is saved already.

        Raises:
          DataError: a weight is not finite; nothing is written.
        """
        step = self._state.step
        if step == self._saved_step:
            return
        if not bool(self._state.is_finite()):
            raise DataError(
                f"step {step}: a weight is NaN or infinite, so it is not saved; "
                f"the last good checkpoint is {self.newest or 'none'}; try a lower --learning_rate"
            )
        if self._manager:
            self._manager.save(checkpoint_number=step)
        else:
            with tempfile.TemporaryDirectory(prefix="trainer-worker-") as scratch:
                self._checkpoint.write(os.path.join(scratch, _PREFIX))
        self._saved_step = step

    def _record(self) -> dict[str, Any]:
        _, *image_shape = self._state.model.input_shape
        return {
            "model": self._config.learning.model,
            "optimizer": self._config.learning.optimizer,
            "image_shape": image_shape,
            "num_classes": self._state.model.output_shape[-1],
            "virtual_replicas": self._config.order.virtual_replicas,
            "order": json.loads(self._spec.to_json()),
        }

    def _check(self, path: str, stored: dict[str, Any]) -> None:
        for name, here in self._record().items():
            if name != "order" and stored.get(name) != here:
                raise UsageError(
                    f"{path} has {name} {stored.get(name)}, this run has {here}; "
                    "use the old one, or another --model_dir"
                )
        changed = self._spec.differences(stored.get("order", {}))
        if changed and not self._config.order.allow_order_change:
            fields = "; ".join(f"{name} was {_short(was)}, is {_short(now)}" for name, (now, was) in changed.items())
            raise UsageError(
                f"{path}: the order of examples has changed: {fields}; use the old values, or another --model_dir, "
                "or accept the new order with --allow_order_change"
            )


def _stored_record(path: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(_RECORD_KEY):
        raise UsageError(f"{path} was not written by trainer.run; use another --model_dir")
    record: dict[str, Any] = json.loads(reader.get_tensor(_RECORD_KEY).decode())
    return record


def _complete_checkpoints(folder: pathlib.Path) -> list[str]:
    """Returns the checkpoints of a folder by step, oldest first.

    From the files themselves: TensorFlow's `checkpoint` file is written after them, and if it is lost or truncated,
    `tf.train.latest_checkpoint` finds none and training would start anew.
    """
    steps = [re.fullmatch(rf"{_PREFIX}-(\d+)\.index", path.name) for path in folder.glob(f"{_PREFIX}-*.index")]
    return [str(folder / f"{_PREFIX}-{step}") for step in sorted(int(match[1]) for match in steps if match)]


def _tidy(folder: pathlib.Path) -> None:
    """Removes what a killed save left behind, and lists for CheckpointManager what is complete."""
    for path in folder.glob(f"{_PREFIX}-*_temp"):
        shutil.rmtree(path, ignore_errors=True)
    listing, new = folder / "checkpoint", folder / "checkpoint.tmp"
    listing.unlink(missing_ok=True)
    paths = _complete_checkpoints(folder)
    if paths:
        names = [os.path.basename(path) for path in paths]
        times = [os.path.getmtime(f"{path}.index") for path in paths]  # without times, it would never remove them
        state = tf.compat.v1.train.generate_checkpoint_state_proto("/", names[-1], names, times, 0.0)
        new.write_text(str(state), encoding="utf-8")
        new.replace(listing)


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text  # a digest
