"""How fast the steps would be with an input that costs nothing: the same batch again and again."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from trainer.step.train_step import TrainStep


def seconds_per_step(stepper: TrainStep, batch: Any, steps: int, steps_per_loop: int) -> float:
    """Returns the seconds of an update with a constant batch; every worker has to call it.

    It changes the weights: call it when nothing uses them any more.

    Args:
      stepper: that makes the updates.
      batch: of a distributed iterator.
      steps: how many updates to make.
      steps_per_loop: of which so many are made in one call, as in training.
    """
    int(stepper.repeat(batch, tf.constant(1, tf.int64)))  # traced and compiled
    first, began = stepper.state.step, time.perf_counter()
    for begin in range(0, steps, steps_per_loop):
        int(stepper.repeat(batch, tf.constant(min(steps_per_loop, steps - begin), tf.int64)))
    return (time.perf_counter() - began) / max(1, stepper.state.step - first)
