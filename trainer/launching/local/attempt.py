"""A group from start to end: done, failed, stopped, or ended to make room for a larger one."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Literal, Self

from trainer.cluster.interrupt import QUESTION, SAVE
from trainer.launching.local.group import Cause, Group, first_failure, is_awaited
from trainer.launching.local.process import Process
from trainer.launching.local.records import Records, Reporter
from trainer.launching.local.restarts import AsynchronousWorkers
from trainer.launching.local.screen import Screen

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Context that catches Ctrl-C, SIGTERM and SIGHUP: the first asks the job to save and end, the second kills it.

    SIGUSR1 and SIGUSR2 are for the trainer, see `trainer.cluster.interrupt`.

    Attributes:
      received: the signals that end the job, in order.
      passed_on: those for the trainer, in order; whoever passes one on removes it.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.passed_on: list[signal.Signals] = []

    @property
    def is_asked(self) -> bool:
        """Whether the job is to save and end."""
        return bool(self.received)

    @property
    def is_urgent(self) -> bool:
        """Whether it is to end at once."""
        return len(self.received) > 1

    def __enter__(self) -> Self:
        """Installs the handlers, except for signals that are ignored, as SIGHUP is under nohup."""
        self._handlers = {number: signal.getsignal(number) for number in (*SIGNALS, QUESTION, SAVE)}
        for number, handler in self._handlers.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        """Restores the former handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        (self.passed_on if number in (QUESTION, SAVE) else self.received).append(signal.Signals(number))


_TICK = 0.05  # seconds
_GATHERED = 0.5  # seconds after a failure is seen in which another may show that came before it
_AWAITED = 10.0  # the same while all that have ended say that they lost another: that one may take long to end
_SERVED = 5.0  # seconds to end for processes that served others and have nothing to save


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a group ended.

    Attributes:
      kind: done; failed; stopped by a signal; or ended to grow.
      cause: of a failure.
    """

    kind: Literal["done", "failed", "stopped", "grow"]
    cause: Cause | None = None


class Attempt:
    """Watches a group.

    Args:
      group: the started processes.
      workers: restarts those that fail alone.
      records: to write to.
      reporter: to keep up to date.
      screen: to show it on.
      stopping: whether the user wants an end.
      stop_timeout: seconds that processes have to save and end.
    """

    def __init__(
        self,
        group: Group,
        workers: AsynchronousWorkers,
        records: Records,
        reporter: Reporter,
        screen: Screen,
        stopping: Stopping,
        stop_timeout: float,
    ) -> None:
        self._group, self._workers, self._records, self._reporter = group, workers, records, reporter
        self._screen, self._stopping, self._stop_timeout = screen, stopping, stop_timeout

    def run(self, may_grow: Callable[[], bool]) -> Outcome:
        """Watches the group to its end, at which no process is left.

        Args:
          may_grow: whether a larger group could be started now.
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
        """Looks after the group once; returns the processes that have ended."""
        time.sleep(_TICK)
        ended = self._group.poll()
        while self._stopping.passed_on:
            number = self._stopping.passed_on.pop(0)
            self._screen.say(f"{number.name}: {self._group.pass_on(number)}")
        self._records.watch()
        self._reporter.tick()
        return ended

    def _failed(self) -> Outcome:
        """Finds the cause, shows it before everything that followed from it, and ends the others."""
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
        """Waits a while for the process that failed first to be seen."""
        began, group = time.monotonic(), self._group
        while group.running:
            passed = time.monotonic() - began
            if passed >= (_AWAITED if is_awaited(group.processes, group.failed) else _GATHERED):
                break
            self._tick()

    def _ended(self, kind: Literal["stopped", "grow"]) -> Outcome:
        """Lets the group save and end; its outcome is `kind`, unless it was done or fails meanwhile."""
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
        """Lets all save and end: first those that lead the group, which need the others to save."""
        late = self._end(self._group.leading, self._stop_timeout)
        for one in late:
            what = f"{one.task.name} (process {one.pid})"
            self._screen.say(f"{what} did not end within {self._stop_timeout:g} s (--stop_timeout), and was killed")
        self._end(self._group.serving, min(_SERVED, self._stop_timeout))

    def _end(self, processes: Sequence[Process], grace: float) -> list[Process]:
        """Asks processes to end, and kills those that have not after `grace` seconds, or once the user is in a hurry.

        Heartbeats do not matter here: a process that saves may be busy for long.

        Returns:
          Those that were too late.
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
