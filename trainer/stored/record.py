"""What a checkpoint says of the run that wrote it: step, flags, and whether it has averaged weights."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from pipeline.errors import DataError, UsageError
from trainer.cluster.failures import first_line
from trainer.config import TrainConfig
from trainer.config.flags.aggregation import AggregationFlags
from trainer.config.flags.cluster import ClusterFlags
from trainer.stored.files import BEST, path_of

KEY = "record/.ATTRIBUTES/py_state"  # where tf.train.Checkpoint(record=PythonState) puts it
_STEP = "global_step/.ATTRIBUTES/VARIABLE_VALUE"
_AVERAGES = "averages/"
_ONE_DEVICE: dict[str, Any] = {
    **{"strategy": "one_device", "num_replicas": None, "virtual_replicas": None},
    **{field.name: field.default for kind in (ClusterFlags, AggregationFlags) for field in dataclasses.fields(kind)},
}


class UnreadableError(DataError):
    """A checkpoint is damaged, or was removed."""

    def __init__(self, path: pathlib.Path, reason: str) -> None:
        super().__init__(f"{path}: cannot be read: {reason}")
        self.path, self.reason = path, reason

    @property
    def is_removed(self) -> bool:
        """Whether it is no longer there."""
        return not self.path.with_name(f"{self.path.name}.index").exists()

    @property
    def skipped(self) -> str:
        """The line on a checkpoint that is left out."""
        what = f"skipped {self.path}"
        return f"{what}: was removed" if self.is_removed else f"{what}, which is damaged: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Record:
    """What a checkpoint says of its run.

    Attributes:
      path: of the checkpoint.
      step: its global step.
      averaged: whether it has an average of the weights, too.
      content: what `trainer.run` wrote: model, optimizer, num_classes, order, config, ...
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
          UsageError: there are none, or one has a value that this version does not know.
        """
        stored = self.content.get("config")
        if not stored:
            raise UsageError(f"{self.path}: lacks the flags of its run, as an earlier version wrote it")
        return TrainConfig.of_stored(stored, **{**_ONE_DEVICE, **flags})


def read(path: pathlib.Path) -> Record:
    """Returns the record of a checkpoint.

    Raises:
      UnreadableError: it is damaged or was removed.
      UsageError: `trainer.run` did not write it.
    """
    with readable(path):
        reader = tf.train.load_checkpoint(str(path))
        if not reader.has_tensor(KEY):
            raise UsageError(f"{path} was not written by trainer.run; use another --model_dir")
        averaged = any(name.startswith(_AVERAGES) for name in reader.get_variable_to_shape_map())
        content = json.loads(reader.get_tensor(KEY).decode())
        return Record(path, int(reader.get_tensor(_STEP)), averaged, content)


def best_first(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Returns the best checkpoints of a run, the best first; those that no ranking names, and all others, as given.

    Args:
      paths: the newest first; the newest of the best remembers the ranking of all.
    """
    if not paths or paths[0].parent.name != BEST:
        return list(paths)
    for path in paths:
        with contextlib.suppress(UnreadableError):
            ranking = read(path).content.get("remembered", {}).get("ranking") or {}
            order = [path_of(path.parent, int(step)) for step, _ in ranking.get("best", [])]
            return sorted(paths, key=lambda one: order.index(one) if one in order else len(order))
    return list(paths)


@contextlib.contextmanager
def readable(path: pathlib.Path) -> Iterator[None]:
    """Context that reads a checkpoint.

    Raises:
      UnreadableError: it is damaged or was removed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise UnreadableError(path, first_line(error)) from None
    except IndexError as error:  # what the reader raises for a truncated file
        raise UnreadableError(path, str(error).splitlines()[0]) from None
