"""Runs a job to its end: starts a group, watches it, and restarts it after failures, if elastic with fewer or more."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Literal, NoReturn, Self

from pipeline.commands.text import count_of
from pipeline.errors import PipelineError, RerunError
from trainer.cluster.interrupt import QUESTION, SAVE
from trainer.launching.local.group import Cause, Group, first_failure, is_awaited
from trainer.launching.local.process import SIGNALLED, Process
from trainer.launching.local.restarts import AsynchronousWorkers, BackOff, Reporter, WorkerPool

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Context that catches Ctrl-C, SIGTERM and SIGHUP: the first asks the job to save and end, the second kills it.

    SIGUSR1 and SIGUSR2 are passed on to the trainer; see `trainer.cluster.interrupt`.

    Attributes:
      received: signals that end the job, in order.
      passed_on: signals for the trainer, in order; each is removed once it is passed on.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.passed_on: list[signal.Signals] = []

    @property
    def is_asked(self) -> bool:
        """Whether the job should save and end."""
        return bool(self.received)

    @property
    def is_urgent(self) -> bool:
        """Whether it should end immediately."""
        return len(self.received) > 1

    def __enter__(self) -> Self:
        """Installs the handlers, except for signals that are ignored, as SIGHUP is under nohup."""
        self._handlers = {number: signal.getsignal(number) for number in (*SIGNALS, QUESTION, SAVE)}
        for number, handler in self._handlers.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        (self.passed_on if number in (QUESTION, SAVE) else self.received).append(signal.Signals(number))


_TICK = 0.05  # seconds
_GATHERED = 0.5  # seconds after noticing a failure in which an earlier one may still become visible
_AWAITED = 10.0  # the same if all ended processes report a lost one, which may take long to end
_SERVED = 5.0  # seconds to end, for processes that only served others and have nothing to save


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The way a group ended.

    Attributes:
      kind: `done`; `failed`; `stopped` by a signal; or `grow` if it ended to restart with more workers.
      cause: cause of the failure, if any.
    """

    kind: Literal["done", "failed", "stopped", "grow"]
    cause: Cause | None = None


class Attempt:
    """Watches one group.

    Args:
      group: group of started processes.
      reporter: reporter of the job's state; its records are updated here.
      stopping: user's signals to end the job.
    """

    def __init__(self, group: Group, reporter: Reporter, stopping: Stopping) -> None:
        self._group, self._reporter, self._stopping = group, reporter, stopping
        self._records, self._screen = reporter.records, reporter.screen
        self._workers = AsynchronousWorkers(group, reporter)
        self._stop_timeout = reporter.records.job.restarts.stop_timeout

    def run(self, may_grow: Callable[[], bool]) -> Outcome:
        """Watches the group until all of its processes have ended.

        Args:
          may_grow: function that returns whether a larger group could start now.
        """
        while True:
            ended = self._tick()
            if self._stopping.is_asked:
                name = self._stopping.received[0].name
                self._screen.say(f"{name}: the processes save and end; a second one kills them")
                self._reporter.set("stopping")
                return self._ended("stopped")
            if self._group.is_done:
                self._end(self._group.running, _SERVED)
                return Outcome("done")
            self._workers.look_after(ended)
            if self._group.failed:
                return self._failed()
            self._group.kill_silent()
            if self._group.has_stepped and may_grow():
                self._screen.say(
                    "a worker that was given up is tried again: the processes save and end, to start with more"
                )
                return self._ended("grow")

    def _tick(self) -> list[Process]:
        """Handles what has happened in the group; returns the processes that have ended."""
        time.sleep(_TICK)
        ended = self._group.poll()
        while self._stopping.passed_on:
            number = self._stopping.passed_on.pop(0)
            self._screen.say(f"{number.name}: {self._group.pass_on(number)}")
        self._records.watch()
        self._reporter.tick()
        return ended

    def _failed(self) -> Outcome:
        """Finds the cause of a failure, prints it ahead of its consequences, and ends the other processes."""
        self._gather()
        first = first_failure(self._group.processes, self._group.failed)
        if first.exit_status is None:
            first.kill(f"gave no sign of life for {first.monitor.unheard:.0f} s")
        while first.exit_status is None:
            self._tick()
        cause = Cause.of(first, first.exit_status)
        self._records.error = str(cause)
        self._records.failed(cause.task, str(cause))
        self._screen.say(str(cause), "failure")
        for line in cause.context:
            self._screen.say(f"  {line}")
        self._group.cause_is_said()
        self._end_all()
        return Outcome("failed", cause)

    def _gather(self) -> None:
        """Waits a while, so that the process that failed first becomes visible."""
        began, group = time.monotonic(), self._group
        while group.running:
            passed = time.monotonic() - began
            if passed >= (_AWAITED if is_awaited(group.processes, group.failed) else _GATHERED):
                break
            self._tick()

    def _ended(self, kind: Literal["stopped", "grow"]) -> Outcome:
        """Lets the group save and end; the outcome is `kind`, unless the group finishes or fails meanwhile."""
        self._end_all()
        if self._group.is_done:
            return Outcome("done")
        wrong = [
            one
            for one in self._group.leading
            if one.exit_status and not one.exit_status.is_good and not one.exit_status.is_restartable
        ]
        if wrong and wrong[0].exit_status:
            return Outcome("failed", Cause.of(wrong[0], wrong[0].exit_status))
        return Outcome(kind)

    def _end_all(self) -> None:
        late = self._end(self._group.leading, self._stop_timeout)
        for one in late:
            what = f"{one.task.name} (process {one.pid})"
            self._screen.say(f"{what} did not end within {self._stop_timeout:g} s (--stop_timeout), and was killed")
        self._end(self._group.serving, min(_SERVED, self._stop_timeout))

    def _end(self, processes: Sequence[Process], grace: float) -> list[Process]:
        """Asks processes to end; after `grace` seconds or the user's second signal, kills and returns the rest.

        Heartbeats are ignored here, since saving may keep a process busy for long.
        """
        for one in processes:
            one.ask_to_end()
        end = time.monotonic() + grace
        late: list[Process] = []
        while left := [one for one in processes if one.exit_status is None]:
            self._tick()
            if time.monotonic() > end or self._stopping.is_urgent:
                late = late or ([] if self._stopping.is_urgent else left)
                for one in left:
                    one.kill()
        return late


class JobFailedError(PipelineError):
    """The job has failed; its exit code is that of the process that failed first."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Supervisor:
    """Runs a job to its end.

    Args:
      pool: slots of the job's workers.
      reporter: reporter of the job's state, with its records.
      stopping: user's signals to end the job.
    """

    def __init__(self, pool: WorkerPool, reporter: Reporter, stopping: Stopping) -> None:
        self._pool, self._reporter, self._stopping = pool, reporter, stopping
        self._records, self._screen, self._job = reporter.records, reporter.screen, reporter.records.job
        self._back_off = BackOff(self._job.restarts.restart_delay)
        self._size = self._job.num_workers
        self._restarts, self._saved = 0, self._records.saved  # restarts since the newest checkpoint; its step

    def run(self, start: Callable[[Sequence[int]], Group]) -> None:
        """Runs the job.

        Args:
          start: function that starts a group with workers in the given slots.

        Raises:
          RerunError: the job was stopped; the same command resumes it.
          JobFailedError: the job failed and cannot be restarted.
        """
        while True:
            slots = self._pool.chosen(time.monotonic())
            if len(slots) != self._size:
                self._screen.say(f"continuing with {count_of(len(slots), 'worker')}")
            self._size = len(slots)
            group = start(slots)
            try:
                self._records.started(group)
                self._reporter.set("starting")
                attempt = Attempt(group, self._reporter, self._stopping)
                outcome = attempt.run(lambda: self._may_grow(group))  # noqa: B023, only called in this iteration
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
        """Waits until the next start; raises the job's error if there will be none."""
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
        """Raises JobFailedError if the job may not restart. A new checkpoint resets the count of restarts."""
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
        """Waits before a restart, for a shorter time after progress."""
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
        if self._stopping.is_urgent:
            number = self._stopping.received[1]
            message = f"{number.name} again: killed{self._records.left}; rerun the same command to resume"
            raise JobFailedError(message, SIGNALLED + number)
        if self._stopping.is_asked:
            best = self._records.best
            at = "before the first step" if best is None else f"after step {max(best, self._records.saved or 0)}"
            name = self._stopping.received[0].name
            raise RerunError(f"stopped by {name} {at}{self._records.left}; rerun the same command to resume")

    def _fail(self, cause: Cause, why: str) -> NoReturn:
        raise JobFailedError(f"{cause}{why}{self._records.left}", cause.exit_status.exit_code)
