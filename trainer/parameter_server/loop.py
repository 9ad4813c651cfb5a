"""From one step to the last: the workers make steps without pause, up to those at which all of them have to be done."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from trainer.checkpoint import NotFiniteError
from trainer.loop import Action, Clocks, Progress, Spent
from trainer.parameter_server.ledger import SPAN, Averages, EpochSums, Ledger, Row, Rows, Tally, loop_result
from trainer.parameter_server.scheduling import Finished, Scheduler


@dataclasses.dataclass(eq=False)
class Loop:
    """Follows a scheduler.

    Attributes:
      scheduler: of the workers' steps.
      rows: unpacks the results of steps.
      averages: over them.
      epoch: the sums over their epoch.
      ledger: of them.
      tally: of all steps of the training.
      actions: in their order. Workers go on during those that only look at a step's numbers. Before one that `pauses`,
        exactly the steps before it are applied.
      settle: called at every pause with the number of applied steps.
      stops: whether training has to end; asked often, raises if it cannot go on.
      watch: called with every report.
    """

    scheduler: Scheduler
    rows: Rows
    averages: Averages
    epoch: EpochSums
    ledger: Ledger
    tally: Tally
    actions: Sequence[Action]
    settle: Callable[[int], None]
    stops: Callable[[], bool]
    watch: Callable[[Progress], None]

    def __post_init__(self) -> None:
        self._progress: Progress | None = None
        self._last: Row | None = None
        self._seconds, self._waited = 0.0, 0.0
        self._updates = 0  # as of the last report
        self._clocks = Clocks(self.actions)

    def train(self, start: int, last: int) -> bool:
        """Trains from one step to another; returns whether it ended early.

        Raises:
          NotFiniteError: a loss or gradient is NaN or infinite; the message names the step.
        """
        step = start
        while step < last:  # from pause to pause
            self._run(step, min(last, self._next_due(step, SPAN, pauses=True)))
            self.tally.add(self.ledger.read(step, self.scheduler.reached))
            self.tally.add(self.scheduler.tally())
            step = self.scheduler.reached
            self.settle(step)
            self._act(step, pauses=True)
            if self.stops():
                return step < last
        return False

    def _run(self, first: int, end: int) -> None:
        began = time.perf_counter()
        before, self._updates = self._seconds, first
        for finished in self.scheduler.run(first, end, self._cut, self._pauses):
            self._seconds = before + time.perf_counter() - began
            self._report(finished)
        self._seconds = before + time.perf_counter() - began

    def _next_due(self, step: int, most: int, pauses: bool) -> int:
        """Returns the next step at which an action is due, of those that pause or of the others; at most `most` on."""
        steps = [action.next_after(step) for action in self.actions if action.pauses == pauses]
        return int(min([step + most, *steps]))

    def _act(self, step: int, pauses: bool) -> None:
        """Runs the actions that are due at a step, those that pause or the others."""
        for number, action in enumerate(self.actions):
            is_due = action.is_due(step) or self._clocks.is_due(number)
            if self._progress and action.pauses == pauses and is_due:
                action.do(self._progress)
                self._clocks.done(number)

    def _cut(self, step: int) -> int:
        # The first report is of one step, so that the time to compile can be told apart.
        return self._next_due(step, SPAN if self._last else 1, pauses=False)

    def _pauses(self) -> bool:
        # Before the first report nothing that pauses can be done: to pause for it would be to wait for ever.
        is_due = self._progress and any(self.actions[number].pauses for number in self._clocks.due())
        return self.stops() or bool(is_due)

    def _report(self, finished: Finished) -> None:
        for step in sorted(finished.rows):
            self._last = finished.rows[step]
            self.averages.add(step, self.rows.loss(self._last), self._last.penalty)
            self.epoch.add(step, self._last, self.rows.weight(self._last))
        self._waited += finished.waited
        if self._last is None:  # a worker that is lost had applied all of them
            return
        if not finished.finite:
            loss = self.rows.loss(self._last)
            raise NotFiniteError(f"step {max(finished.rows) + 1}: loss is {loss:.4g}, or a gradient is not finite")
        self._progress = self._next(finished, self._last)
        self.watch(self._progress)
        self._act(finished.stop, pauses=False)

    def _next(self, finished: Finished, row: Row) -> Progress:
        before, values = self._progress, self.rows.values(row)
        result = loop_result(finished.stop, self.averages, self.epoch.means(self.rows), row.norm)
        # Reports come in the order of steps, and so in bursts where a worker is slow. For the speed all updates count
        # that there were by now.
        more, self._updates = finished.updates - self._updates, finished.updates
        made = before.spent.steps + more if before else max(1, len(finished.rows))
        spent = Spent(made, self._seconds, self._waited)
        compiling = before.compiling if before else spent._replace(steps=1)
        return Progress(finished.stop, values, spent, compiling, result)
