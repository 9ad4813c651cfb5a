"""Reads a checkpoint without its run: step, flags, and the weights or their average into a model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import DataError, UsageError, line_of, name_of
from trainer.checkpoint.files import path_of
from trainer.cluster.failures import first_line
from trainer.config import TrainConfig
from trainer.config.run import AggregationFlags, ClusterFlags
from trainer.run_folder import BEST

_RECORD = "record/.ATTRIBUTES/py_state"  # where tf.train.Checkpoint(record=PythonState) puts it
_STEP = "global_step/.ATTRIBUTES/VARIABLE_VALUE"
_AVERAGES = "averages/"
_MOST_NAMES = 3  # of variables in a message
_ONE_DEVICE: dict[str, Any] = {
    **{"strategy": "one_device", "num_replicas": None, "virtual_replicas": None},
    **{field.name: field.default for kind in (ClusterFlags, AggregationFlags) for field in dataclasses.fields(kind)},
}


class UnreadableError(DataError):
    """A checkpoint is damaged, or was removed: `path` cannot be read for `reason`."""

    def __str__(self) -> str:
        return f"{self.path}: cannot be read: {self.reason}"

    @property
    def is_removed(self) -> bool:
        """Whether it is no longer there."""
        return not pathlib.Path(f"{self.path}.index").exists()

    @property
    def skipped(self) -> str:
        """The line that says that the checkpoint is skipped, and why."""
        what = f"skipped {self.path}"
        return f"{what}: was removed" if self.is_removed else f"{what}, which is damaged: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Record:
    """What a checkpoint stores about its run.

    Attributes:
      path: of the checkpoint.
      step: its global step.
      averaged: whether it also has an average of the weights.
      content: what `RunSpec.content` returned: model, optimizer, num_classes, order, config, ...
    """

    path: pathlib.Path
    step: int
    averaged: bool
    content: dict[str, Any]

    def config(self, **flags: Any) -> TrainConfig:
        """Returns the flags of the run, on one device.

        Args:
          **flags: other values of some flags.

        Raises:
          UsageError: a flag has a value that this version does not know.
        """
        return TrainConfig.of_stored(self.content["config"], **{**_ONE_DEVICE, **flags})

    def chooses_average(self, kind: str | None) -> bool:
        """Returns whether to load the average of the weights.

        Args:
          kind: --weights: `raw` or `ema`; None: the average if there is one.

        Raises:
          UsageError: there is no average.
        """
        averaged = self.averaged if kind is None else kind == "ema"
        if averaged and not self.averaged:
            raise UsageError(f"--weights=ema: {self.path} has no average, as the run had no --ema; use --weights=raw")
        return averaged

    def load_weights(self, model: keras.Model, averaged: bool) -> None:
        """Loads the weights into a model, with its other state, such as the statistics of BatchNorm.

        Args:
          model: built as that of the run was.
          averaged: whether to load the average of the weights; see `chooses_average`.

        Raises:
          UnreadableError: it is damaged or was removed; the model may have some of its weights.
          UsageError: the model has other variables.
        """
        average = tf.Module()
        average.values = [tf.Variable(v.value) for v in model.trainable_variables] if averaged else []
        stored = tf.train.Checkpoint(model=model, averages=average)
        with readable(self.path):
            try:
                stored.read(str(self.path)).assert_existing_objects_matched().expect_partial()
            except (AssertionError, ValueError) as error:
                raise UsageError(f"{self.path}: its weights are not those of this model: {mismatch(error)}") from None
        for weight, value in zip(model.trainable_variables, average.values, strict=False):
            weight.assign(value)


def read(path: pathlib.Path) -> Record:
    """Returns the record of a checkpoint.

    Raises:
      UnreadableError: it is damaged or was removed.
      UsageError: `trainer.run` did not write it.
    """
    with readable(path):
        reader = tf.train.load_checkpoint(str(path))
        if not reader.has_tensor(_RECORD):
            raise UsageError(f"{path} was not written by {name_of('trainer.run')}; use another --model_dir")
        averaged = any(name.startswith(_AVERAGES) for name in reader.get_variable_to_shape_map())
        content = json.loads(reader.get_tensor(_RECORD).decode())
        return Record(path, int(reader.get_tensor(_STEP)), averaged, content)


def best_first(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Returns the best checkpoints of a run in the order of their ranking, then those that it does not name.

    Args:
      paths: in the folder of the best, the newest first: the newest one that can be read stores the ranking. Paths in
        another folder are returned as they are.
    """
    if not paths or paths[0].parent.name != BEST:
        return list(paths)
    for path in paths:
        with contextlib.suppress(UnreadableError):
            ranking = read(path).content["remembered"].get("ranking") or {}
            order = [path_of(path.parent, int(step)) for step, _ in ranking.get("best", [])]
            return sorted(paths, key=lambda one: order.index(one) if one in order else len(order))
    return list(paths)


@contextlib.contextmanager
def readable(path: pathlib.Path) -> Iterator[None]:
    """Context in which TensorFlow's errors about a damaged or removed checkpoint become UnreadableErrors."""
    for file in path.parent.glob(f"{path.name}.*"):
        if not file.is_file() and file.exists():  # TensorFlow would wait at a FIFO for ever
            raise UnreadableError(f"{file.name} is not a regular file", path=path)
    try:
        yield
    except tf.errors.OpError as error:
        raise UnreadableError(first_line(error), path=path) from None
    except IndexError as error:  # what the reader raises for a truncated file
        raise UnreadableError(line_of(error), path=path) from None


def mismatch(error: Exception) -> str:
    """Returns in one line how variables differ from a checkpoint's, from the error that restoring them raised."""
    text = str(error)
    names = re.findall(r"<Variable path=([^,]+),", text)
    shapes = re.search(r"variable\.shape=(\(.*?\)), Received: value\.shape=(\(.*?\))", text)
    if names and shapes:
        return f"{names[0]} was {shapes[2]}, is {shapes[1]}"
    if names:
        return f"it lacks {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
    return line_of(error)[:300]
