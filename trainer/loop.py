"""The training loop: inner loops up to the next step at which an action is due, then the actions that are due."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from trainer.checkpoint import NotFiniteError
from trainer.config.phases import NO_PHASES, Phases
from trainer.config.steps import Period

if TYPE_CHECKING:
    from pipeline.order.key_log import SourceLogs
    from pipeline.order.views import Intervals
    from pipeline.request import Request
    from trainer.loss_log import LossLog
    from trainer.plan import Plan
    from trainer.step.train_step import LoopResult, TrainStep

_NO_SUMMARIES = frozenset[str]()


class InnerLoop(Protocol):
    """Runs updates on the devices."""

    def __call__(self, steps: int, summaries: frozenset[str]) -> LoopResult:
        """Runs `steps` updates; with summaries, one update that also computes them."""


class Spent(NamedTuple):
    """The time that some updates took.

    Attributes:
      steps: the number of updates.
      seconds: time that they took, without the actions.
      waited: the part of `seconds` spent waiting for batches.
      exchanged: the part of `seconds` in which workers exchanged what they sum; see `LoopResult`.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    exchanged: float = 0.0

    @property
    def waiting(self) -> float:
        """Share of the time spent waiting for batches."""
        return self.waited / self.seconds

    def rate(self, rows: int) -> float:
        """Returns the rows per second, if each update has `rows` rows."""
        return self.steps * rows / self.seconds

    def plus(self, other: Spent) -> Spent:
        """Returns the time of both."""
        return Spent(*map(operator.add, self, other))

    def minus(self, other: Spent) -> Spent:
        """Returns the time without that of other updates, which are among these."""
        return Spent(*map(operator.sub, self, other))


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is.

    Attributes:
      step: global step.
      values: numbers of the last update by name: `total_loss`, `regularization`, `loss`, and the metrics.
      spent: time of the updates that this process has made.
      compiling: the part of it spent on updates that were traced and compiled: the first, and the first with each set
        of summaries.
      result: result of the last inner loop.
    """

    step: int
    values: Mapping[str, float]
    spent: Spent
    compiling: Spent
    result: LoopResult

    @functools.cached_property
    def means(self) -> Mapping[str, float]:
        """The means of `values` over the real rows of the epoch so far, fetched from the device on first use.

        Empty if there are none, because all steps of the epoch so far are skipped.
        """
        means = dict(zip(self.values, self.result.means.numpy().tolist(), strict=True))
        return {} if math.isnan(means["total_loss"]) else means

    def is_skipped(self, skips: Intervals) -> bool:
        """Whether the last step was one of the steps to skip: its `values` are of no row."""
        return any(first < self.step <= stop for first, stop in skips)

    def since(self, earlier: Progress | None) -> Spent:
        """Returns the time spent since an earlier progress; since the start if that is None, or as far in updates.

        (With parameter servers, steps may be reported together.) Updates that were compiled take longer and are left
        out, unless there were no others.
        """
        spent, compiling = self.spent, self.compiling
        if earlier is not None and spent.steps > earlier.spent.steps:
            spent, compiling = spent.minus(earlier.spent), compiling.minus(earlier.compiling)
        return spent.minus(compiling) if spent.steps > compiling.steps else spent


@dataclasses.dataclass(frozen=True)
class Action:
    """Something to do between inner loops, at some steps.

    Attributes:
      period: due at its steps, and after the first inner loop that ends when its clock says so.
      do: does it.
      at: further steps at which it is due.
      asked: function that says whether it is due after an inner loop, too, until it is done; None: never.
      needs: the summaries of the step that it shows; see `LoopResult`.
      pauses: whether it needs the state as of this step; with parameter servers, workers pause for it.
    """

    period: Period
    do: Callable[[Progress], None]
    at: tuple[int, ...] = ()
    asked: Callable[[], bool] | None = None
    needs: frozenset[str] = _NO_SUMMARIES
    pauses: bool = False

    def next_after(self, step: int) -> float:
        """Returns the next step at which it is due, infinity if there is none."""
        return min([self.period.next_after(step), *(at for at in self.at if at > step)])

    def is_due(self, step: int) -> bool:
        """Whether a step is one of its steps."""
        return self.period.is_due(step) or step in self.at


class Clocks:
    """Says which actions are due by the clock. Actions are known by their numbers."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = actions
        self._began = time.monotonic()
        self._done = [self._began] * len(actions)

    def is_due(self, number: int) -> bool:
        """Returns whether an action is due by the clock, or was asked for."""
        action, done = self._actions[number], self._done[number]
        if action.asked is not None and action.asked():
            return True
        wait = action.period.wait_after(done - self._began)
        return bool(wait) and time.monotonic() - done >= wait

    def due(self) -> list[int]:
        """Returns the numbers of the actions that are due."""
        return [number for number in range(len(self._actions)) if self.is_due(number)]

    def done(self, number: int) -> None:
        """Restarts the clock of an action that was just done."""
        self._done[number] = time.monotonic()


def train(
    inner_loop: InnerLoop,
    start_step: int,
    last_step: int,
    steps_per_loop: int,
    actions: Sequence[Action],
    agree: Callable[[Sequence[int]], tuple[bool, set[int]]],
    watch: Callable[[Progress], None] | None = None,
    phases: Phases = NO_PHASES,
) -> bool:
    """Trains from start_step to last_step, or until told to stop. The first inner loop is one update.

    Args:
      inner_loop: loop that runs the updates.
      start_step, last_step: global steps at the beginning and at the end.
      steps_per_loop: most updates of an inner loop.
      actions: actions in the order in which they are done.
      agree: function called after every inner loop and its actions with the numbers of the actions due by this worker's
        clock; returns whether to stop, and the numbers due by any worker's clock: the same on all workers.
      watch: function to call after every inner loop, before the actions.
      phases: phases of the training; an inner loop ends where one does, and the next is one update.

    Returns whether `agree` stopped it.

    Raises:
      NotFiniteError: a loss or weight is NaN or infinite; the message names the step.
    """
    updates, clocks, by_clock = _Updates(inner_loop, start_step, phases), Clocks(actions), set[int]()
    while (step := updates.step) < last_step:
        most = steps_per_loop if updates.progress else 1
        end = int(
            min(step + most, last_step, phases.next_after(step), *(action.next_after(step) for action in actions))
        )
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
    """Runs the inner loop, and adds up the time that it took.

    Attributes:
      step: global step.
      progress: None before the first update.
    """

    def __init__(self, inner_loop: InnerLoop, start_step: int, phases: Phases) -> None:
        self._inner_loop, self.step, self._phases = inner_loop, start_step, phases
        self.progress: Progress | None = None
        self._compiled: set[tuple[int, frozenset[str]]] = set()  # phases, and what their updates also compute

    def run(self, end: int, summaries: frozenset[str]) -> Progress:
        """Runs the updates up to a step.

        The last update computes the summaries. It runs by itself, so that the loop of the others does not pay for them.
        """
        plain = end - 1 if summaries else end
        phase = self._phases.number_at(self.step)
        if (phase, _NO_SUMMARIES) not in self._compiled:  # compiled separately, so that its time is known
            self._run(min(self.step + 1, plain), _NO_SUMMARIES)
        self._run(plain, _NO_SUMMARIES)
        self._run(end, summaries)
        assert self.progress
        return self.progress

    def _run(self, end: int, summaries: frozenset[str]) -> None:
        if end == self.step:
            return
        steps, compiled = end - self.step, (self._phases.number_at(self.step), summaries)
        began = time.perf_counter()
        result = self._inner_loop(steps, summaries)
        reached, numbers, finite = int(result.step), result.values.numpy().tolist(), bool(result.finite)
        spent = Spent(steps, time.perf_counter() - began, float(result.waited), float(result.exchanged))
        values = dict(zip(result.names, numbers, strict=True))
        if not finite:
            loss = values["total_loss"]
            weights = ", and a weight after it is NaN or infinite" if math.isfinite(loss) else ""
            raise NotFiniteError(f"step {reached}: loss is {loss:.4g}{weights}")
        if reached != end:
            raise PipelineError(f"the inner loop ended at step {reached} instead of {end}")
        before, compiling = (self.progress.spent, self.progress.compiling) if self.progress else (Spent(), Spent())
        compiling = compiling if compiled in self._compiled else compiling.plus(spent)
        self.progress = Progress(end, values, before.plus(spent), compiling, result)
        self.step = end
        self._compiled.add(compiled)


def made_again(make: Callable[[], InnerLoop], leave: Callable[[Exception], bool]) -> InnerLoop:
    """Returns the inner loop that `make` returns; after an error that `leave` takes care of, the one that it then does.

    Args:
      make: function that makes an inner loop whose updates begin with the step of the state.
      leave: function of an error that returns whether to make another loop.
    """
    inner_loop = make()

    def looped(steps: int, summaries: frozenset[str]) -> LoopResult:
        nonlocal inner_loop
        try:
            return inner_loop(steps, summaries)
        except Exception as error:
            if not leave(error):
                raise
        inner_loop = make()
        return inner_loop(steps, summaries)

    return looped


class Batches:
    """The batches of a training: an iterator for each of its phases that has other images than the one before."""

    def __init__(self, plan: Plan, make: Callable[[Request], Iterable[Any]], **options: Any) -> None:
        """Makes nothing yet.

        Args:
          plan: what the run reads, and its phases.
          make: function that makes the batches of a request.
          **options: arguments of `input_fn` to use instead of the plan's.
        """
        self._phases, self._make = plan.phases, make
        self._requests = [dataclasses.replace(one.request, **options) for one in plan.inputs]
        self._request: Request | None = None
        self._iterator: Iterator[Any] = iter(())

    def at(self, step: int) -> Iterator[Any]:
        """Returns the iterator whose next batch is that of a global step, which follows the step of the last batch."""
        request = self._requests[self._phases.number_at(step)]
        if request != self._request:
            self._iterator = iter(())  # frees the windows of the last one before there are others
            self._iterator = iter(self._make(dataclasses.replace(request, start_step=step)))
            self._request = request
        return self._iterator


def logged(
    step: TrainStep,
    batches: Callable[[int], Iterator[Any]],
    first_replica: int,
    keys: SourceLogs | None = None,
    losses: LossLog | None = None,
) -> InnerLoop:
    """Returns an inner loop that runs updates one by one and logs their rows.

    Args:
      step: function that runs the updates.
      batches: function of a step that returns the iterator of its batch, (features, labels, weights); with `keys` the
        features are a dict with `key`, and with `losses` there are record ids after the weights.
      first_replica: number of this worker's first replica.
      keys, losses: the logs of this worker; None: it has none.
    """
    wanted = {"has_keys": keys is not None, "has_records": losses is not None}

    def inner_loop(steps: int, summaries: frozenset[str]) -> LoopResult:
        for _ in range(steps):
            before = step.state.step
            result, rows = step.run_one(batches(before), summaries, **wanted)
            weights = _values(rows.weights)
            if keys:
                for i, (of_rows, real) in enumerate(zip(_values(rows.keys), weights, strict=True)):
                    keys.append(before, first_replica + i, of_rows.reshape(-1).tolist(), real.reshape(-1).tolist())
            if losses:
                losses.append(before, *map(np.stack, (_values(rows.records), _values(rows.losses), weights)))
            if not result.finite:
                break
        for log in (keys, losses):
            if log:
                log.flush()
        return result

    return inner_loop


def _values(of_replicas: Sequence[Any]) -> list[NDArray[Any]]:
    return [one.numpy() for one in of_replicas]
