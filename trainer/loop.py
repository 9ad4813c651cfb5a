"""The outer loop: inner loops up to the next step at which an action is due, then the actions."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pipeline.errors import DataError, PipelineError


@dataclasses.dataclass(frozen=True)
class InnerResult:
    """What an inner loop came to: global step, loss and accuracy of its last update, and whether all were finite."""

    step: int
    loss: float
    accuracy: float
    finite: bool


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is.

    Attributes:
      step: global step.
      loss: of the last update.
      accuracy: on the last batch.
      steps: updates that this process has made.
      seconds: that these took, actions not counted.
    """

    step: int
    loss: float
    accuracy: float
    steps: int
    seconds: float


class Action(Protocol):
    """Something done at every multiple of `every` steps (0: never)."""

    @property
    def every(self) -> int:
        """Steps."""

    def __call__(self, progress: Progress) -> None:
        """Does it."""


def steps_to_next_stop(step: int, last_step: int, steps_per_loop: int, every: Sequence[int]) -> int:
    """Returns the length of the inner loop that begins at `step`: it passes no multiple of `every` (0s are ignored)."""
    return min([steps_per_loop, last_step - step, *(n - step % n for n in every if n)])


def train(
    inner_loop: Callable[[int], InnerResult],
    start_step: int,
    last_step: int,
    steps_per_loop: int,
    actions: Sequence[Action],
    stop: Callable[[], bool],
) -> bool:
    """Trains from start_step to last_step, or until told to stop.

    Args:
      inner_loop: makes so many updates.
      start_step: global step at the beginning.
      last_step: global step at the end.
      steps_per_loop: most updates of an inner loop.
      actions: in the order in which they are done.
      stop: asked after every inner loop and its actions; must say the same on all workers.

    Returns:
      Whether `stop` said so.

    Raises:
      DataError: a loss is NaN or infinite; the message names the step.
    """
    step, seconds = start_step, 0.0
    while step < last_step:
        steps = steps_to_next_stop(step, last_step, steps_per_loop, [action.every for action in actions])
        began = time.perf_counter()
        result = inner_loop(steps)
        seconds += time.perf_counter() - began
        if not result.finite:
            raise DataError(_diverged(result))
        step += steps
        if result.step != step:
            raise PipelineError(f"the inner loop ended at step {result.step} instead of {step}")
        progress = Progress(step, result.loss, result.accuracy, step - start_step, seconds)
        for action in actions:
            if action.every and step % action.every == 0:
                action(progress)
        if stop():
            return True
    return False


def _diverged(result: InnerResult) -> str:
    weights = ", and a weight after it is NaN or infinite" if math.isfinite(result.loss) else ""
    return f"step {result.step}: loss is {result.loss:.4g}{weights}; try a lower --learning_rate"
