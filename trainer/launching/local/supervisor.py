"""Runs a job to its end: starts a group, and starts it again when it fails; if elastic, with fewer or more workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from pipeline.commands.text import count_of
from pipeline.errors import PipelineError, RerunError
from trainer.launching.job import Job
from trainer.launching.local.attempt import Attempt, Outcome, Stopping
from trainer.launching.local.group import Cause, Group
from trainer.launching.local.records import Records, Reporter
from trainer.launching.local.restarts import BackOff, WorkerPool
from trainer.launching.local.screen import Screen

_TICK = 0.05  # seconds
_KILLED = 128  # exit code of a shell for a signal, less the signal


class JobFailedError(PipelineError):
    """The job has failed; the exit code is that of the process that failed first."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Supervisor:
    """Runs a job to its end.

    Args:
      job: to run.
      pool: the slots of its workers.
      records: of restarts, steps and errors.
      reporter: to keep up to date.
      screen: to show it on.
      stopping: whether the user wants an end.
    """

    def __init__(
        self,
        job: Job,
        pool: WorkerPool,
        records: Records,
        reporter: Reporter,
        screen: Screen,
        stopping: Stopping,
    ) -> None:
        self._job, self._pool, self._records, self._reporter = job, pool, records, reporter
        self._screen, self._stopping = screen, stopping
        self._back_off = BackOff(job.restarts.restart_delay)
        self._size = job.num_workers
        self._restarts, self._saved = 0, records.saved  # restarts since the newest checkpoint, and its step

    def run(self, start: Callable[[Sequence[int]], Group], attempt: Callable[[Group], Attempt]) -> None:
        """Runs the job.

        Args:
          start: starts a group with workers in the given slots.
          attempt: watches it.

        Raises:
          RerunError: it was stopped; the same command resumes.
          JobFailedError: it failed, and was not worth another start.
        """
        while True:
            slots = self._pool.chosen(time.monotonic())
            if len(slots) != self._size:
                self._screen.say(f"going on with {count_of(len(slots), 'worker')}")
            self._size = len(slots)
            group = start(slots)
            try:
                self._records.started(group)
                self._reporter.set("starting")
                outcome = attempt(group).run(lambda: self._may_grow(group))  # noqa: B023, it is used here alone
            finally:
                group.close()
            if outcome.kind == "done":
                return
            self._go_on(outcome)

    def _may_grow(self, group: Group) -> bool:
        """Records that the group makes steps; returns whether a larger one could start."""
        now = time.monotonic()
        self._pool.stepped([one.task.slot for one in group.processes if one.monitor.has_stepped], now)
        return self._job.elastic is not None and self._pool.can_grow(len(group.slots), now)

    def _go_on(self, outcome: Outcome) -> None:
        """Waits for the next start; raises the job's error if there is none."""
        if outcome.kind == "failed" and (cause := outcome.cause):
            if not cause.exit_status.is_restartable:
                self._fail(cause, "")
            if self._records.best is None:
                self._fail(cause, "; not started again, since no step was made")
            self._check_stopped()
            self._check_restarts(cause)
            self._wait()
        self._check_stopped()

    def _check_restarts(self, cause: Cause) -> None:
        """Raises JobFailedError if the job may not start again. A new checkpoint forgives failures before it."""
        most, saved = self._job.restarts.max_restarts, self._records.saved
        if saved is not None and (self._saved is None or saved > self._saved):
            self._saved, self._restarts = saved, 0
            self._pool.forgive()
        if self._job.elastic is None:
            if self._restarts >= most:
                why = f"after {count_of(most, 'restart')} (--max_restarts) without a new checkpoint"
                self._fail(cause, f"; not started again {why}")
            self._restarts += 1
            return
        slot = cause.task.slot
        if self._pool.failed(slot, cause.at_start):
            self._screen.say(f"the place of {cause.task.name} (slot {slot}) is given up for now")
        if not self._pool.can_grow(0, time.monotonic()):
            least, most = self._job.elastic
            self._fail(cause, f"; too few workers are left for --elastic={least}:{most}")

    def _wait(self) -> None:
        """Waits before a restart, shorter if there was progress."""
        seconds = self._back_off.next(self._records.best)
        elastic = self._job.elastic
        number = (
            f"{self._records.restarts + 1}" if elastic else f"{self._restarts} of {self._job.restarts.max_restarts}"
        )
        what = "the process" if sum(self._job.roles.values()) == 1 else "all processes"
        self._screen.say(f"starting {what} again in {seconds:g} s (restart {number})")
        self._reporter.set("waiting")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stopping.is_asked:
            time.sleep(_TICK)
            self._reporter.tick()

    def _check_stopped(self) -> None:
        """Raises an error if the user wants an end."""
        if self._stopping.is_urgent:
            number = self._stopping.received[1]
            message = f"{number.name} again: killed{self._records.left}; rerun the same command to resume"
            raise JobFailedError(message, _KILLED + number)
        if self._stopping.is_asked:
            best = self._records.best
            at = "before the first step" if best is None else f"after step {max(best, self._records.saved or 0)}"
            name = self._stopping.received[0].name
            raise RerunError(f"stopped by {name} {at}{self._records.left}; rerun the same command to resume")

    def _fail(self, cause: Cause, why: str) -> NoReturn:
        raise JobFailedError(f"{cause}{why}{self._records.left}", cause.exit_status.exit_code)
