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
    from trainer.step.train_step import LoopResult, TrainStep

_NO_SUMMARIES = frozenset[str]()


class InnerLoop(Protocol):
    """Runs updates on the devices."""

    def __call__(self, steps: int, summaries: frozenset[str]) -> LoopResult:
        """Runs `steps` updates; of one update, also computes the summaries."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is.

    Attributes:
      step: global step.
      values: of the last update: `total_loss`, `regularization`, `loss`, and the metrics.
      steps: updates that this process has made.
      seconds: that these took, without the actions.
      waited: the part of `seconds` spent waiting for batches.
      start_up: the part of `seconds` that went to updates which had to be traced and compiled: the first, and the first
        with each set of summaries.
      result: of the inner loop.
      start_wait: seconds that those updates waited for their batches.
      start_steps: the number of those updates.
    """

    step: int
    values: Mapping[str, float]
    steps: int
    seconds: float
    waited: float
    start_up: float
    result: LoopResult
    start_wait: float = 0.0
    start_steps: int = 1

    @functools.cached_property
    def means(self) -> Mapping[str, float]:
        """The means of `values` over the real rows of the epoch so far; fetched from the device when first asked."""
        return dict(zip(self.values, self.result.means.numpy().tolist(), strict=True))

    def since(self, earlier: Progress | None) -> tuple[int, float]:
        """Returns the updates since an earlier progress (None: since the start), and the seconds that they took.

        Updates that were compiled take longer and are left out, unless there were no others.
        """
        steps, seconds, _ = self._since(earlier)
        return steps, seconds

    def waited_since(self, earlier: Progress | None) -> float:
        """Returns the seconds of waiting for batches in the time that `since` gives."""
        return self._since(earlier)[2]

    def _since(self, earlier: Progress | None) -> tuple[int, float, float]:
        everything = self.steps, self.seconds, self.waited
        compiled = self.start_steps, self.start_up, self.start_wait
        if earlier is not None:
            of_earlier = earlier.steps, earlier.seconds, earlier.waited
            everything = _less(everything, of_earlier)
            compiled = _less(compiled, (earlier.start_steps, earlier.start_up, earlier.start_wait))
        return _less(everything, compiled) if everything[0] > compiled[0] else everything


def _less(one: tuple[int, float, float], other: tuple[int, float, float]) -> tuple[int, float, float]:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


@dataclasses.dataclass(frozen=True)
class Action:
    """Something that is done between inner loops, at some steps.

    Attributes:
      every: steps; it is due at every multiple of them; 0: never.
      do: what to do.
      seconds: it is also due after the first inner loop that ends this long after it was last done; 0: never.
      at: also at these steps.
      needs: the summaries of the step that it shows; see `LoopResult`.
      pauses: whether it needs the state as of this step: with parameter servers, where workers would go on meanwhile,
        they pause for it.
    """

    every: int
    do: Callable[[Progress], None]
    seconds: float = 0.0
    at: tuple[int, ...] = ()
    needs: frozenset[str] = _NO_SUMMARIES
    pauses: bool = False

    def next_after(self, step: int) -> float:
        """Returns the next step at which it is due, infinity if there is none."""
        periodic = step - step % self.every + self.every if self.every else math.inf
        return min([periodic, *(at for at in self.at if at > step)])

    def is_due(self, step: int) -> bool:
        """Whether a step is one of its steps."""
        return bool(self.every and step % self.every == 0) or step in self.at


class Clocks:
    """Which actions are due by the clock, by their numbers."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = actions
        self._done = [time.monotonic()] * len(actions)

    def is_due(self, number: int) -> bool:
        """Whether an action is due, since it was last done long ago."""
        seconds = self._actions[number].seconds
        return bool(seconds) and time.monotonic() - self._done[number] >= seconds

    def due(self) -> list[int]:
        """Returns the numbers of those that are due."""
        return [number for number in range(len(self._actions)) if self.is_due(number)]

    def done(self, number: int) -> None:
        """Takes note that an action was done."""
        self._done[number] = time.monotonic()


def train(
    inner_loop: InnerLoop,
    start_step: int,
    last_step: int,
    steps_per_loop: int,
    actions: Sequence[Action],
    agree: Callable[[Sequence[int]], tuple[bool, set[int]]],
    watch: Callable[[Progress], None] | None = None,
) -> bool:
    """Trains from start_step to last_step, or until told to stop; the first inner loop is one update.

    Args:
      inner_loop: runs the updates.
      start_step, last_step: global steps at the beginning and at the end.
      steps_per_loop: most updates of an inner loop.
      actions: in the order in which they are done.
      agree: called after every inner loop and its actions, with the numbers of those due by this worker's clock;
        returns whether to stop, and the numbers due by any worker's clock: the same on all workers.
      watch: told of every inner loop, before the actions.

    Returns whether `agree` ended it.

    Raises:
      NotFiniteError: a loss or weight is NaN or infinite; the message names the step.
    """
    updates, clocks, by_clock = _Updates(inner_loop, start_step), Clocks(actions), set[int]()
    while (step := updates.step) < last_step:
        most = steps_per_loop if updates.progress else 1
        end = int(min(step + most, last_step, *(action.next_after(step) for action in actions)))
        due = [i for i, action in enumerate(actions) if action.is_due(end) or i in by_clock]
        progress = updates.run(end, _NO_SUMMARIES.union(*(actions[i].needs for i in due)))
        if watch:
            watch(progress)
        for i in due:
            actions[i].do(progress)
            clocks.done(i)
        stopped, by_clock = agree(clocks.due())
        if stopped:
            return True
    return False


class _Updates:
    """Runs the inner loop, and adds up what it took.

    Attributes:
      step: global step.
      progress: None before the first update.
    """

    def __init__(self, inner_loop: InnerLoop, start_step: int) -> None:
        self._inner_loop, self.step = inner_loop, start_step
        self.progress: Progress | None = None
        self._compiled: set[frozenset[str]] = set()

    def run(self, end: int, summaries: frozenset[str]) -> Progress:
        """Runs the updates up to a step.

        Summaries are computed by the last update, which runs by itself: so the other updates, compiled as a loop, have
        none of their cost.
        """
        plain = end - 1 if summaries else end
        if _NO_SUMMARIES not in self._compiled:  # by itself, so that its time can be told apart
            self._run(min(self.step + 1, plain), _NO_SUMMARIES)
        self._run(plain, _NO_SUMMARIES)
        self._run(end, summaries)
        assert self.progress
        return self.progress

    def _run(self, end: int, summaries: frozenset[str]) -> None:
        if end == self.step:
            return
        steps, is_first = end - self.step, summaries not in self._compiled
        began = time.perf_counter()
        result = self._inner_loop(steps, summaries)
        reached, numbers, finite = int(result.step), result.values.numpy().tolist(), bool(result.finite)
        seconds, waited = time.perf_counter() - began, float(result.waited)
        values = dict(zip(result.names, numbers, strict=True))
        if not finite:
            loss = values["total_loss"]
            weights = ", and a weight after it is NaN or infinite" if math.isfinite(loss) else ""
            raise NotFiniteError(f"step {reached}: loss is {loss:.4g}{weights}")
        if reached != end:
            raise PipelineError(f"the inner loop ended at step {reached} instead of {end}")
        before = self.progress or Progress(self.step, {}, 0, 0.0, 0.0, 0.0, result, 0.0, 0)
        self.progress = dataclasses.replace(
            before,
            step=end,
            values=values,
            steps=before.steps + steps,
            seconds=before.seconds + seconds,
            waited=before.waited + waited,
            start_up=before.start_up + (seconds if is_first else 0.0),
            result=result,
            start_wait=before.start_wait + (waited if is_first else 0.0),
            start_steps=before.start_steps + (steps if is_first else 0),
        )
        self.step = end
        self._compiled.add(summaries)


def logged(step: TrainStep, batches: Iterator[Any], log: SourceLogs, first_replica: int) -> InnerLoop:
    """Returns a loop of updates one by one, which logs the keys of each and then writes the log to its file.

    Args:
      step: runs the updates.
      batches: ({"image": ..., "key": ...}, labels, weights), from the state's step on.
      log: this worker's.
      first_replica: the number of its first replica.
    """

    def inner_loop(steps: int, summaries: frozenset[str]) -> LoopResult:
        for _ in range(steps):
            before = step.state.step
            result, keys, weights = step.run_one(batches, summaries)
            for i, (rows, real) in enumerate(zip(keys, weights, strict=True)):
                log.append(
                    before, first_replica + i, rows.numpy().reshape(-1).tolist(), real.numpy().reshape(-1).tolist()
                )
            if not result.finite:
                break
        log.flush()
        return result

    return inner_loop
