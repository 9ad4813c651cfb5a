"""From one step to the last: inner loops up to the next step at which an action is due, then the actions."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.errors import DataError, PipelineError

if TYPE_CHECKING:
    from pipeline.audit.key_log import KeyLogWriter
    from trainer.step.updates import LoopResult, Stepper

InnerLoop: TypeAlias = "Callable[[int], LoopResult]"  # makes so many updates


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is.

    Attributes:
      step: global step.
      loss: of the last update.
      accuracy: on the last batch.
      steps: updates that this process has made.
      seconds: that these took, without the actions.
    """

    step: int
    loss: float
    accuracy: float
    steps: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Action:
    """Something to do at every multiple of `every` steps (0: never)."""

    every: int
    do: Callable[[Progress], None]


def train(
    inner_loop: InnerLoop,
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
      stop: asked after every inner loop and its actions; must answer the same on all workers.

    Returns:
      Whether `stop` ended it.

    Raises:
      DataError: a loss or weight is NaN or infinite; the message names the step.
    """
    step, seconds = start_step, 0.0
    while step < last_step:
        steps = min(steps_per_loop, last_step - step, *(n - step % n for action in actions if (n := action.every)))
        began = time.perf_counter()
        result = inner_loop(steps)
        reached, loss, finite = int(result.step), float(result.loss), bool(result.finite)
        seconds += time.perf_counter() - began
        if not finite:
            weights = ", and a weight after it is NaN or infinite" if math.isfinite(loss) else ""
            raise DataError(f"step {reached}: loss is {loss:.4g}{weights}; try a lower --learning_rate")
        step += steps
        if reached != step:
            raise PipelineError(f"the inner loop ended at step {reached} instead of {step}")
        progress = Progress(step, loss, float(result.accuracy), step - start_step, seconds)
        for action in actions:
            if action.every and step % action.every == 0:
                action.do(progress)
        if stop():
            return True
    return False


def logged(stepper: Stepper, batches: Iterator[Any], log: KeyLogWriter, first_replica: int) -> InnerLoop:
    """Returns a loop of updates one by one, which logs the keys of each and then writes the log to its file.

    Batches are ({"image": ..., "key": ...}, labels, weights), from the state's step on; the log is this worker's, whose
    replicas are numbered from `first_replica`.
    """

    def inner_loop(steps: int) -> LoopResult:
        for _ in range(steps):
            step = stepper.state.step
            result, keys, weights = stepper.train_one(batches)
            for i, (rows, real) in enumerate(zip(keys, weights, strict=True)):
                log.append(
                    step, first_replica + i, rows.numpy().reshape(-1).tolist(), real.numpy().reshape(-1).tolist()
                )
            if not result.finite:
                break
        log.flush()
        return result

    return inner_loop
