"""Reads a checkpoint without its run: step, flags, weights or their average, and differences from another one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline import order_flags
from pipeline.commands import aliases
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, line_of, name_of
from pipeline.manifest import succession
from trainer.checkpoint.files import candidates, path_of
from trainer.config import TrainConfig, meaning
from trainer.run_folder import BEST, RunFolder
from trainer.runtime import first_line

_RECORD = "record/.ATTRIBUTES/py_state"  # as stored by tf.train.Checkpoint(record=PythonState)
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # suffix of variables' tensor names
_STEP = f"global_step{_SUFFIX}"
_AVERAGES = "averages/"
_MOST_NAMES = 3  # variables named in a message


class UnreadableError(DataError):
    """A checkpoint is damaged or was removed: `path` cannot be read for `reason`."""

    def __str__(self) -> str:
        return f"{self.path}: cannot be read: {self.reason}"

    @property
    def is_removed(self) -> bool:
        """Whether the checkpoint no longer exists."""
        return not pathlib.Path(f"{self.path}.index").exists()

    @property
    def skipped(self) -> str:
        """Notice that the checkpoint is skipped, with the reason."""
        what = f"skipped {self.path}"
        return f"{what}: was removed" if self.is_removed else f"{what}, which is damaged: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Record:
    """A checkpoint's record of its run.

    Attributes:
      path: path of the checkpoint.
      step: global step of the checkpoint.
      averaged: whether the checkpoint also has averaged weights.
      content: result of `RunSpec.content`: model, optimizer, num_classes, order, config, ...
    """

    path: pathlib.Path
    step: int
    averaged: bool
    content: dict[str, Any]

    def config(self, **flags: Any) -> TrainConfig:
        """Returns the flags of the run, for one device.

        Args:
          **flags: new values of some flags.

        Raises:
          UsageError: a flag has a value that this version does not know.
        """
        return TrainConfig.of_stored(self.content["config"], **{**meaning.elsewhere(TrainConfig), **flags})

    def chooses_average(self, kind: str | None) -> bool:
        """Returns whether to load the averaged weights.

        Args:
          kind: value of --weights: `raw` or `ema`; None for the average if there is one.

        Raises:
          UsageError: there is no average.
        """
        averaged = self.averaged if kind is None else kind == "ema"
        if averaged and not self.averaged:
            raise UsageError(f"--weights=ema: {self.path} has no average, as the run had no --ema; use --weights=raw")
        return averaged

    def load_weights(self, model: keras.Model, averaged: bool) -> None:
        """Loads the weights into a model, with its other state, such as BatchNorm statistics.

        Args:
          model: model, built like the run's.
          averaged: whether to load the averaged weights; see `chooses_average`.

        Raises:
          UnreadableError: the checkpoint is damaged or was removed; the model may have some of its weights.
          UsageError: the model has different variables.
        """
        average = tf.Module()
        average.values = [tf.Variable(v.value) for v in model.trainable_variables] if averaged else []
        stored = tf.train.Checkpoint(model=model, averages=average)
        with readable(self.path):
            try:
                stored.read(str(self.path)).assert_existing_objects_matched().expect_partial()
            except (AssertionError, ValueError) as error:
                raise UsageError(f"{self.path}: its weights do not fit this model: {mismatch(error)}") from None
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
        content = _with_places(json.loads(reader.get_tensor(_RECORD).decode()), path.parent)
        return Record(path, int(reader.get_tensor(_STEP)), averaged, content)


def _with_places(content: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Returns a record's content, given its folder, with the data's versions and paths that are valid here."""
    flags = content.get("config", {}).get("data", {})
    stored = aliases.stored(content["config"]) if "data_dir" in flags else {}
    if not stored or "order" not in content:
        return content
    started_in: dict[str, Any] = {}
    run = RunFolder(folder.parent if folder.name == BEST else folder)
    with contextlib.suppress(DataError):  # without it, paths are relative to the current folder
        started_in = {succession.STARTED_IN: order_flags.order_in(run.order).get(succession.STARTED_IN)}
    now = succession.pinned(stored, {**content["order"], **started_in}, run.path)
    groups = {
        group: {name: now.get(name, value) for name, value in members.items()}
        for group, members in content["config"].items()
    }
    return {**content, "config": groups} if now != stored else content


def load_first_weights(model: keras.Model, path: str) -> None:
    """Loads a checkpoint's weights, or their average if it has one.

    Args:
      model: built model.
      path: --model_dir of a run, for its newest checkpoint, or a checkpoint in it, such as run/ckpt-400.

    Raises:
      UsageError: there is no such checkpoint, or its variables differ from the model's.
    """
    try:
        stored = read(candidates(pathlib.Path(path), None)[0])
        stored.load_weights(model, stored.averaged)
    except (DataError, UsageError, OSError, ValueError) as error:
        raise UsageError(f"--initialize_from={path}: {line_of(error)}") from None


def best_first(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Returns the best checkpoints of a run in ranking order, then those that are not ranked.

    Args:
      paths: checkpoints in the folder for the best, newest first: the newest readable one stores the ranking.
        Checkpoints in any other folder are returned unchanged.
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
    """Context that turns TensorFlow's errors about a damaged or removed checkpoint into UnreadableErrors."""
    for file in path.parent.glob(f"{path.name}.*"):
        if not file.is_file() and file.exists():  # TensorFlow would wait at a FIFO forever
            raise UnreadableError(f"{file.name} is not a regular file", path=path)
    try:
        yield
    except tf.errors.OpError as error:
        raise UnreadableError(first_line(error), path=path) from None
    except IndexError as error:  # raised by the reader for a truncated file
        raise UnreadableError(line_of(error), path=path) from None


def mismatch(error: Exception) -> str:
    """Returns one line on how variables differ from a checkpoint's, given the error raised by restoring them."""
    text = str(error)
    names = re.findall(r"<Variable path=([^,]+),", text)
    shapes = re.search(r"variable\.shape=(\(.*?\)), Received: value\.shape=(\(.*?\))", text)
    if names and shapes:
        return f"{names[0]} was {shapes[2]}, is {shapes[1]}"
    if names:
        return f"it lacks {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
    return line_of(error)[:300]


class Difference(NamedTuple):
    """A tensor whose bits differ between two checkpoints.

    Attributes:
      tensor: name of its variable, such as `dense/kernel`, or its own name in the checkpoint if it has no variable.
      problem: reason why the tensor cannot be compared: it is missing, damaged or of another shape; empty if it can.
      changed, size: number of values that differ, and number of all values.
      most: largest difference between two values; NaN if one of them is NaN.
    """

    tensor: str
    problem: str = ""
    changed: int = 0
    size: int = 0
    most: float = 0.0

    def __str__(self) -> str:
        if self.problem:
            return f"{self.tensor} {self.problem}"
        return f"{self.tensor} differs in {self.changed:,} of {count_of(self.size, 'value')}, by up to {self.most:.3g}"


def compare(path: str, other: str, names_of_variables: Mapping[str, str]) -> tuple[int, list[Difference]]:
    """Compares two checkpoints; returns the number of tensors, and the ones whose bits differ, weights first.

    Args:
      path: path of the checkpoint. The record of its run and its object graph are not compared.
      other: path of the other checkpoint.
      names_of_variables: {tensor name: variable name}, in the order of comparison.
    """
    both = [tf.train.load_checkpoint(one) for one in (path, other)]
    names = [{name for name in one.get_variable_to_shape_map() if name.endswith(_SUFFIX)} for one in both]
    found, known = [], [f"{name}{_SUFFIX}" for name in names_of_variables]
    union = names[0] | names[1]
    for name in [*(one for one in known if one in union), *sorted(union.difference(known))]:
        short = names_of_variables.get(name.removesuffix(_SUFFIX), name.removesuffix(_SUFFIX))
        if not all(name in each for each in names):
            found.append(Difference(short, f"is {'only ' if name in names[0] else 'not '}in the run's checkpoint"))
            continue
        try:
            values, others = (np.asarray(one.get_tensor(name)) for one in both)
        except (tf.errors.OpError, IndexError, ValueError) as error:
            found.append(Difference(short, f"cannot be read: {' '.join(str(error).split())[:200]}"))
            continue
        if values.shape != others.shape or values.dtype != others.dtype:
            was, now = (f"{one.dtype} {one.shape}" for one in (values, others))
            found.append(Difference(short, f"is {was}, the replay's is {now}"))
        elif values.tobytes() != others.tobytes():
            found.append(_difference(short, values, others))
    return len(names[0]), found


def _difference(name: str, values: NDArray[Any], others: NDArray[Any]) -> Difference:
    as_bytes = [one.reshape(-1, 1).view(np.uint8) for one in map(np.ascontiguousarray, (values, others))]
    count = int((as_bytes[0] != as_bytes[1]).any(axis=1).sum())
    with np.errstate(all="ignore"):
        most = float(np.max(np.abs(values.astype(np.float64) - others.astype(np.float64))))
    return Difference(name, "", count, values.size, most)
