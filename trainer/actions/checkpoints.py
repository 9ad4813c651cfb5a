"""Checkpoints: the state, and beside it what it belongs to: model, optimizer, order of examples, all flags."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import tempfile
from typing import Any

import tensorflow as tf

from pipeline.errors import DataError, UsageError
from pipeline.order.order import OrderSpec
from trainer.actions.checkpoint_files import CheckpointFiles
from trainer.actions.output import Output
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.config.changes import changed_flags
from trainer.loop import NotFiniteError
from trainer.step.state import TrainState
from trainer.stored import record
from trainer.stored.files import PREFIX


class _Record(tf.train.experimental.PythonState):
    """A text in the checkpoint: written with it, but read before it is restored, by `trainer.stored.record`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text

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
        spec: OrderSpec,
        steps_per_epoch: int,
        config: TrainConfig,
        cluster: Cluster,
        output: Output,
    ) -> None:
        self._state, self._spec, self._config, self._output = state, spec, config, output
        self._folder = pathlib.Path(config.run.model_dir)
        self._files = CheckpointFiles(self._folder, config.steps.max_to_keep, steps_per_epoch)
        self._checkpoint = tf.train.Checkpoint(
            **state.trackable(),
            record=_Record(json.dumps(self._record(), sort_keys=True)),
        )
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
                self._check(path, stored)
                with record.readable(pathlib.Path(path)):
                    # Earlier versions stored a count of saves, too, which is expected to be left over.
                    self._checkpoint.read(path).assert_existing_objects_matched().expect_partial()
            except record.UnreadableError as error:
                self._output.line(f"skipped {path}, which is damaged: {error.reason}")
                continue
            self._saved_step = self._state.step
            flags = changed_flags(stored.get("config", {}), self._config)
            return Restored(path, (*self._order_changes(stored), *flags))
        if paths:
            raise DataError(
                f"{self._folder}: none of its {len(paths)} checkpoints can be read, the newest is {paths[-1]}; "
                "restore one from a backup, or start anew with another --model_dir"
            )
        return None

    def save(self) -> None:
        """Saves the state, unless this step is saved already.

        Raises:
          NotFiniteError: a weight is not finite; nothing is written.
        """
        step = self._state.step
        if step == self._saved_step:
            return
        if not bool(self._state.is_finite()):
            raise NotFiniteError(f"step {step}: a weight is NaN or infinite, so it is not saved")
        if self._is_chief:
            self._files.add(step, self._checkpoint.write)
        else:
            with tempfile.TemporaryDirectory(prefix="trainer-worker-") as scratch:
                self._checkpoint.write(os.path.join(scratch, PREFIX))
        self._saved_step = step

    def way_back(self) -> str:
        """Returns what the user can do after a loss or a weight that is not finite."""
        paths = self._files.paths
        if not paths:
            return "try a lower --learning_rate"
        oldest, newest = os.path.basename(paths[0]), paths[-1]
        further = f"; to go further back, as far as {oldest}, delete the newer ones" if len(paths) > 1 else ""
        return f"rerun with a lower --learning_rate to resume from {newest}{further}"

    def _record(self) -> dict[str, Any]:
        config, data = self._config, self._state.task.data
        shape = getattr(data.features, "shape", None)
        scaling = " with loss scaling" if config.model.precision == "float16" else ""
        compiled = self._state.schedule is None
        return {
            "model": config.model.task or config.model.model,
            "optimizer": "that of the model" if compiled else config.optimizer.optimizer.partition("(")[0] + scaling,
            "image_shape": None if shape is None else shape[1:].as_list(),
            "num_classes": len(data.class_names),
            "--ema": None if config.optimizer.ema is None else "set",
            **self._same_bits(),
            "order": json.loads(self._spec.to_json()),
            "config": dataclasses.asdict(self._config),
        }

    def _same_bits(self) -> dict[str, Any]:
        """Returns the flags that the bits of the sums depend on."""
        order = self._config.order
        threads = {"--cpu_threads": order.cpu_threads} if order.virtual_replicas else {}
        return {"--virtual_replicas": order.virtual_replicas, **threads}

    def _check(self, path: str, stored: dict[str, Any]) -> None:
        for name, here in self._record().items():
            was = stored.get(name, stored.get(name.removeprefix("--")))  # without -- in earlier versions
            if name not in ("order", "config") and was != here:
                before, now = ("unset" if value is None else value for value in (was, here))
                raise UsageError(
                    f"{path} has {name} {before}, this run has {now}; use the old one, or another --model_dir"
                )
        changes = self._order_changes(stored)
        if changes and not self._config.order.allow_order_change:
            raise UsageError(
                f"{path}: the order of examples has changed: {'; '.join(changes)}; use the old values, or another "
                "--model_dir, or accept the new order with --allow_order_change"
            )

    def _order_changes(self, stored: dict[str, Any]) -> list[str]:
        changed = self._spec.differences(stored.get("order", {}))
        return [f"{name} was {_short(was)}, is {_short(now)}" for name, (now, was) in changed.items()]


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text  # a digest
