"""Keras' optimizers at a step that is given, not counted: their own count loses updates that workers make at once.

`assign_add` of the count is exact by itself, but each optimizer reads it at another moment than it adds, so bias
corrections and schedules would drift (70 of 100 updates were counted with two workers).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import PipelineError, UsageError

_COUNT, _RATE = "_iterations", "_learning_rate"  # of Keras' optimizers; public nowhere as what can be set
_OWN_STATE = {"nadam": "multiplies a variable once per step", "lossscaleoptimizer": "keeps a loss scale"}


class _Given:
    """Stands in for the variable that counts updates."""

    def __init__(self, count: tf.Tensor) -> None:
        self.value = count

    def __add__(self, more: int) -> tf.Tensor:
        return self.value + more

    def assign_add(self, value: int) -> None:
        """Does nothing: the chief sets the count when it saves."""


def check(optimizer: keras.optimizers.Optimizer, flag: str) -> None:
    """Raises UsageError where several workers cannot apply gradients with an optimizer."""
    name = optimizer.name
    if why := _OWN_STATE.get(type(optimizer).__name__.lower()):
        raise UsageError(f"{flag}: with --strategy=parameter_server, {name} {why}, which workers would do at once")
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        option = "use_ema; use --ema" if optimizer.use_ema else "gradient_accumulation_steps"
        raise UsageError(f"{flag}: with --strategy=parameter_server, {name} cannot have {option}")
    if not {_COUNT, _RATE} <= set(optimizer.__dict__):
        raise PipelineError(f"Keras {keras.__version__}: its optimizers have no {_COUNT}; use another release")


@contextlib.contextmanager
def at(optimizer: keras.optimizers.Optimizer, updates: tf.Tensor, rate: tf.Tensor | None) -> Iterator[None]:
    """Context in which an optimizer is traced as if so many updates had been made before.

    Args:
      optimizer: built.
      updates: int64 scalar.
      rate: the learning rate, float32 scalar; None: the optimizer's own, or its schedule's at this count.
    """
    before: dict[str, Any] = {name: optimizer.__dict__[name] for name in (_COUNT, _RATE)}
    optimizer.__dict__[_COUNT] = _Given(updates)
    if rate is not None:
        optimizer.__dict__[_RATE] = rate
    elif isinstance(before[_RATE], keras.optimizers.schedules.LearningRateSchedule):
        optimizer.__dict__[_RATE] = before[_RATE](updates)
    try:
        yield
    finally:
        optimizer.__dict__.update(before)
