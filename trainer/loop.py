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
      start_up: that the first of them took, which is traced and compiled.
    """

    step: int
    loss: float
    accuracy: float
    steps: int
    seconds: float
    start_up: float

    def since(self, earlier: Progress | None) -> tuple[int, float]:
        """Returns the updates since an earlier progress, and the seconds that they took.

        Without an earlier one: all but the first, which takes longer, or the first where it is the only one.
        """
        if earlier is not None:
            return self.steps - earlier.steps, self.seconds - earlier.seconds
        return (self.steps - 1, self.seconds - self.start_up) if self.steps > 1 else (self.steps, self.seconds)


class NotFiniteError(DataError):
    """A loss or a weight is NaN or infinite."""


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
    """Trains from start_step to last_step, or until told to stop. The first inner loop is of one update, timed apart.

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
      NotFiniteError: a loss or weight is NaN or infinite; the message names the step.
    """
    step, seconds, start_up = start_step, 0.0, 0.0
    while step < last_step:
        most = steps_per_loop if step > start_step else 1
        steps = min(most, last_step - step, *(n - step % n for action in actions if (n := action.every)))
        began = time.perf_counter()
        result = inner_loop(steps)
        reached, loss, finite = int(result.step), float(result.loss), bool(result.finite)
        seconds += time.perf_counter() - began
        start_up = start_up or seconds
        if not finite:
            weights = ", and a weight after it is NaN or infinite" if math.isfinite(loss) else ""
            raise NotFiniteError(f"step {reached}: loss is {loss:.4g}{weights}")
        step += steps
        if reached != step:
            raise PipelineError(f"the inner loop ended at step {reached} instead of {step}")
        progress = Progress(step, loss, float(result.accuracy), step - start_step, seconds, start_up)
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
