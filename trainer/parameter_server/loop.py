"""From one step to the last: the workers make steps without pause, up to those at which all of them have to be done."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from trainer.checkpoint import NotFiniteError
from trainer.loop import Action, Progress
from trainer.parameter_server import rows as packing
from trainer.parameter_server.ledger import SPAN, Ledger, Tally
from trainer.parameter_server.rows import Averages, EpochSums, Row, Rows
from trainer.parameter_server.scheduling import Finished, Scheduler


@dataclasses.dataclass(eq=False)
class Loop:
    """Follows a scheduler.

    Attributes:
      scheduler: of the workers' steps.
      rows: says what the steps came to.
      averages: over them.
      epoch: the sums over their epoch.
      ledger: of them.
      tally: of all steps of the training.
      light: actions that only look at a step's numbers, while workers go on.
      heavy: actions for which all steps before are applied, and no others.
      settle: called after every pause, with the number of steps that are applied.
      stops: whether training has to end, asked often; raises where it cannot go on.
      watch: told of every report.
    """

    scheduler: Scheduler
    rows: Rows
    averages: Averages
    epoch: EpochSums
    ledger: Ledger
    tally: Tally
    light: Sequence[Action]
    heavy: Sequence[Action]
    settle: Callable[[int], None]
    stops: Callable[[], bool]
    watch: Callable[[Progress], None]

    def __post_init__(self) -> None:
        """Has made no step yet."""
        self._progress: Progress | None = None
        self._last: Row | None = None
        self._seconds, self._waited = 0.0, 0.0
        self._done = dict.fromkeys(range(len(self.light) + len(self.heavy)), time.monotonic())

    def train(self, start: int, last: int) -> bool:
        """Trains from one step to another; returns whether it ended early.

        Raises:
          NotFiniteError: a loss or gradient is NaN or infinite; the message names the step.
        """
        step = start
        while step < last:
            end = int(min(last, step + SPAN, *(action.next_after(step) for action in self.heavy)))
            self._run(step, end)
            self.tally.add(self.ledger.read(step, self.scheduler.reached))
            self.tally.add(self.scheduler.tally())
            step = self.scheduler.reached
            self.settle(step)
            for number, action in enumerate(self.heavy, len(self.light)):
                if self._progress and (action.is_due(step) or self._is_late(number, action)):
                    action.do(self._progress)
                    self._done[number] = time.monotonic()
            if self.stops():
                return step < last
        return False

    def _run(self, first: int, end: int) -> None:
        began = time.perf_counter()
        before = self._seconds
        for finished in self.scheduler.run(first, end, self._cut, self._pauses):
            self._seconds = before + time.perf_counter() - began
            self._report(finished)
        self._seconds = before + time.perf_counter() - began

    def _cut(self, step: int) -> int:
        if self._progress is None and not self._last:
            return int(min(step + 1, *(action.next_after(step) for action in self.light)))
        return int(min(step + SPAN, *(action.next_after(step) for action in self.light)))

    def _pauses(self) -> bool:
        heavy = enumerate(self.heavy, len(self.light))
        return self.stops() or any(self._is_late(number, action) for number, action in heavy)

    def _is_late(self, number: int, action: Action) -> bool:
        return bool(action.seconds) and time.monotonic() - self._done[number] >= action.seconds

    def _report(self, finished: Finished) -> None:
        for step in sorted(finished.rows):
            self._last = finished.rows[step]
            self.averages.add(self.rows.loss(self._last), self._last.penalty)
            self.epoch.add(step, self._last, self.rows.weight(self._last))
        self._waited += finished.waited
        if self._last is None:  # all of it had been applied by a worker that was lost
            return
        if not finished.finite:
            loss = self.rows.loss(self._last)
            raise NotFiniteError(f"step {max(finished.rows) + 1}: loss is {loss:.4g}, or a gradient is not finite")
        self._progress = self._next(finished, self._last)
        self.watch(self._progress)
        for number, action in enumerate(self.light):
            if action.is_due(finished.stop) or self._is_late(number, action):
                action.do(self._progress)
                self._done[number] = time.monotonic()

    def _next(self, finished: Finished, row: Row) -> Progress:
        before, values = self._progress, self.rows.values(row)
        result = packing.result(finished.stop, self.averages, self.epoch.means(self.rows), row.norm)
        if before is None:
            seconds, made = self._seconds, max(1, len(finished.rows))
            return Progress(finished.stop, values, made, seconds, self._waited, seconds, result, self._waited)
        made = before.steps + finished.stop - before.step
        return Progress(
            finished.stop,
            values,
            made,
            self._seconds,
            self._waited,
            before.start_up,
            result,
            before.start_wait,
        )
