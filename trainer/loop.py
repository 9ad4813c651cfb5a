"""From one step to the last: inner loops up to the next step at which an action is due, then the actions."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.errors import PipelineError
from trainer.checkpoint import NotFiniteError

if TYPE_CHECKING:
    from pipeline.audit.key_log import SourceLogs
    from trainer.step.results import LoopResult
    from trainer.step.updates import Stepper


class InnerLoop(Protocol):
    """Makes updates."""

    def __call__(self, steps: int, needs: frozenset[str]) -> LoopResult:
        """Makes so many updates, the last of which tells what is needed."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is.

    Attributes:
      step: global step.
      values: of the last update: `total_loss`, `regularization`, `loss`, and the metrics.
      steps: updates that this process has made.
      seconds: that these took, without the actions.
      waited: of these, seconds of waiting for batches.
      start_up: that the first of them took, which is traced and compiled.
      result: of the inner loop.
      start_wait: seconds that the first of the updates waited for its batch.
    """

    step: int
    values: Mapping[str, float]
    steps: int
    seconds: float
    waited: float
    start_up: float
    result: LoopResult
    start_wait: float = 0.0

    @functools.cached_property
    def means(self) -> Mapping[str, float]:
        """The means of `values` over the real rows of the epoch so far; fetched from the device when first asked."""
        return dict(zip(self.values, self.result.means.numpy().tolist(), strict=True))

    def since(self, earlier: Progress | None) -> tuple[int, float]:
        """Returns the updates since an earlier progress, and the seconds that they took.

        Without an earlier one: all but the first, which takes longer, or the first where it is the only one.
        """
        if earlier is not None:
            return self.steps - earlier.steps, self.seconds - earlier.seconds
        return (self.steps - 1, self.seconds - self.start_up) if self.steps > 1 else (self.steps, self.seconds)

    def waited_since(self, earlier: Progress | None) -> float:
        """Returns the seconds of waiting for batches in the time that `since` gives."""
        if earlier is not None:
            return self.waited - earlier.waited
        return self.waited - (self.start_wait if self.steps > 1 else 0.0)


@dataclasses.dataclass(frozen=True)
class Action:
    """Something to do at some steps.

    Attributes:
      every: at every multiple of so many steps; 0: never.
      do: what.
      seconds: also after the inner loop that follows so many seconds without it; 0: never.
      at: also at these steps.
      needs: what it needs of the step, see `trainer.step.results`.
    """

    every: int
    do: Callable[[Progress], None]
    seconds: float = 0.0
    at: tuple[int, ...] = ()
    needs: frozenset[str] = frozenset()

    def next_after(self, step: int) -> float:
        """Returns the next step at which it is due, infinity if there is none."""
        periodic = step - step % self.every + self.every if self.every else math.inf
        return min([periodic, *(at for at in self.at if at > step)])

    def is_due(self, step: int) -> bool:
        """Whether a step is one of its steps."""
        return bool(self.every and step % self.every == 0) or step in self.at


class _Clocks:
    """Which actions are due by the clock."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = actions
        self._done = [time.monotonic()] * len(actions)

    def due(self) -> list[int]:
        now = time.monotonic()
        clocks = zip(self._actions, self._done, strict=True)
        return [i for i, (action, done) in enumerate(clocks) if action.seconds and now - done >= action.seconds]

    def done(self, number: int) -> None:
        self._done[number] = time.monotonic()


def train(
    inner_loop: InnerLoop,
    start_step: int,
    last_step: int,
    steps_per_loop: int,
    actions: Sequence[Action],
    agree: Callable[[Sequence[int]], tuple[bool, set[int]]],
    value_names: Callable[[], Sequence[str]],
    watch: Callable[[Progress], None] | None = None,
) -> bool:
    """Trains from start_step to last_step, or until told to stop. The first inner loop is of one update, timed apart.

    Args:
      inner_loop: makes so many updates.
      start_step: global step at the beginning.
      last_step: global step at the end.
      steps_per_loop: most updates of an inner loop.
      actions: in the order in which they are done.
      agree: asked after every inner loop and its actions, with the numbers of the actions that are due by this
        worker's clock; returns whether to stop, and those that are due by any worker's clock: the same on all workers.
      value_names: of the values of a loop's result.
      watch: told of every inner loop, before the actions.

    Returns:
      Whether `agree` ended it.

    Raises:
      NotFiniteError: a loss or weight is NaN or infinite; the message names the step.
    """
    progress, clocks, by_clock = None, _Clocks(actions), set[int]()
    step = start_step
    while step < last_step:
        most = steps_per_loop if progress else 1
        end = int(min(step + most, last_step, *(action.next_after(step) for action in actions)))
        due = [i for i, action in enumerate(actions) if action.is_due(end) or i in by_clock]
        needs = frozenset[str]().union(*(actions[i].needs for i in due))
        progress = _progress(inner_loop, end - step, needs, progress, value_names)
        step = end
        if progress.step != end:
            raise PipelineError(f"the inner loop ended at step {progress.step} instead of {end}")
        if watch:
            watch(progress)
        for i in due:
            actions[i].do(progress)
            clocks.done(i)
        stopped, by_clock = agree(clocks.due())
        if stopped:
            return True
    return False


def _progress(
    inner_loop: InnerLoop,
    steps: int,
    needs: frozenset[str],
    before: Progress | None,
    value_names: Callable[[], Sequence[str]],
) -> Progress:
    """Makes so many updates."""
    began = time.perf_counter()
    result = inner_loop(steps, needs)
    reached, numbers, finite = int(result.step), result.values.numpy().tolist(), bool(result.finite)
    seconds, waited = time.perf_counter() - began, float(result.waited)
    values = dict(zip(value_names(), numbers, strict=True))
    if not finite:
        loss = values["total_loss"]
        weights = ", and a weight after it is NaN or infinite" if math.isfinite(loss) else ""
        raise NotFiniteError(f"step {reached}: loss is {loss:.4g}{weights}")
    if before is None:
        return Progress(reached, values, steps, seconds, waited, seconds, result, waited)
    return Progress(
        reached,
        values,
        before.steps + steps,
        before.seconds + seconds,
        before.waited + waited,
        before.start_up,
        result,
        before.start_wait,
    )


def logged(
    stepper: Stepper,
    batches: Iterator[Any],
    wanted: Callable[[frozenset[str]], Any],
    log: SourceLogs,
    first_replica: int,
) -> InnerLoop:
    """Returns a loop of updates one by one, which logs the keys of each and then writes the log to its file.

    Batches are ({"image": ..., "key": ...}, labels, weights), from the state's step on; the log is this worker's, whose
    replicas are numbered from `first_replica`; `wanted` makes tensors of what a step is to tell.
    """

    def inner_loop(steps: int, needs: frozenset[str]) -> LoopResult:
        for number in range(steps):
            step = stepper.state.step
            here = needs if number == steps - 1 else frozenset[str]()
            result, keys, weights = stepper.train_one(batches, wanted(here))
            for i, (rows, real) in enumerate(zip(keys, weights, strict=True)):
                log.append(
                    step, first_replica + i, rows.numpy().reshape(-1).tolist(), real.numpy().reshape(-1).tolist()
                )
            if not result.finite:
                break
        log.flush()
        return result

    return inner_loop
