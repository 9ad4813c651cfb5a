"""A task that waits, where `WAITS` says: `compiling`, in a `step`, while `saving` or in an `evaluation`.

`WAITS=step:1:30` is for 30 seconds on worker 1; `step::30` on all of them.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
import tensorflow as tf

from trainer import Task
from trainer.checkpoint.manager import CheckpointManager

STEP = 20  # the step that waits: others go before it
_where, _rank, _seconds = os.environ["WAITS"].split(":")
_waits = _rank in ("", str(json.loads(os.environ["TF_CONFIG"])["task"]["index"]))
_calls: list[str] = []


def _wait(where: str, calls: int = 1) -> None:
    """Waits at the last of a number of calls, if this is the place to wait."""
    if _waits and where == _where:
        _calls.append(where)
        if len(_calls) == calls:
            time.sleep(float(_seconds))


class Waits(Task):
    """Image classification."""

    def train_step(self, model, features, labels):
        _wait("compiling")
        return super().train_step(model, _after("step", STEP, features), labels)

    def evaluate(self, model, features, labels):
        return super().evaluate(model, _after("evaluation", 1, features), labels)


def _after(where: str, calls: int, features: tf.Tensor) -> tf.Tensor:
    """Returns the features after a wait in the graph."""
    waited = tf.numpy_function(lambda: np.float32(_wait(where, calls) or 0.0), [], tf.float32)
    with tf.control_dependencies([waited]):
        return tf.identity(features)


_save = CheckpointManager.save


def _save_later(self: CheckpointManager) -> None:
    _wait("saving")
    _save(self)


CheckpointManager.save = _save_later
