"""The processes of a job that run together: started, followed and ended as a group."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
from collections.abc import Sequence

from pipeline.errors import EXIT_RERUN, name_of
from trainer import journal
from trainer.config.meaning import PARAMETER_SERVER
from trainer.launching.local.guardian import Guardian
from trainer.launching.local.placement import Placement, Ports
from trainer.launching.local.process import ExitStatus, Process, Task
from trainer.launching.local.screen import Screen

# A log line: of absl, including TensorFlow and gRPC (`E0000 00:00:1795.6 254 file.cc:52] ...`), except F, which ends
# the process; of TensorFlow (`2026-11-23 20:15:00.1: W file.cc:9] ...`); of Python (`WARNING:tensorflow:...`).
_LOG = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: [IWE] \S+:\d+\]"
    r"|(DEBUG|INFO|WARNING|ERROR):\w"
    r"|WARNING: All log messages before absl::InitializeLog\(\)"
    r"|To enable the following instructions: "
    r"|\S+\.py:\d+: \w*Warning: "
)
_OF_COMMAND = f"{name_of('trainer.run')}: "  # prefix of a trainer's last line


@dataclasses.dataclass(frozen=True)
class Cause:
    """The failure that ended a group.

    Attributes:
      task: task of the process.
      pid: id of the process.
      exit_status: exit status of the process.
      step: last step that it reported.
      at_start: whether the process had not made a step yet.
      lines: last lines of its stderr.
    """

    task: Task
    pid: int
    exit_status: ExitStatus
    step: int | None
    at_start: bool
    lines: tuple[str, ...]

    @classmethod
    def of(cls, process: Process, exit_status: ExitStatus) -> Cause:
        """Returns the failure of a process."""
        beat = process.monitor.beat
        step, at_start = beat.step if beat else None, not process.monitor.has_stepped
        return cls(process.task, process.pid, exit_status, step, at_start, tuple(process.err.last))

    @property
    def context(self) -> tuple[str, ...]:
        """The last lines, if they add to the reported line."""
        return self.lines if len(self.lines) > 1 or self.exit_status.code < 0 else ()

    @property
    def said(self) -> str | None:
        """The line that explains its end: the trainer's own, or the last that is not a log line; None without one."""
        lines = [line for line in self.lines if not _LOG.match(line)]
        return next((line for line in reversed(lines) if line.startswith(_OF_COMMAND)), lines[-1] if lines else None)

    def __str__(self) -> str:
        """Returns text in one line, including the process's own message."""
        step = "" if self.step is None or self.exit_status.silence else f" after step {self.step}"
        said = f": {self.said}" if self.said and self.exit_status.code > 0 else ""
        return f"{self.task.name} (process {self.pid}) {self.exit_status}{step}{said}"


def first_failure(processes: list[Process], failed: list[Process]) -> Process:
    """Returns the process that failed first.

    A process that lost a peer says so in its last heartbeat, and ends with 75 or with the code of the process that
    ended the job. That process was killed, or ended with another code; or, if it is stopped or hangs, it still exists
    and misses heartbeats.

    Args:
      processes: all processes of the group.
      failed: processes that have ended with a failure, in the order in which that was noticed.
    """
    own = [one for one in failed if not one.monitor.lost]
    # A process that exits with 75 may have been told to; with any other code it must have failed itself.
    sure = [one for one in own if one.exit_status and one.exit_status.code != EXIT_RERUN]
    return next(iter([*sure, *own]), None) or _silent(processes) or failed[0]


def is_awaited(processes: list[Process], failed: list[Process]) -> bool:
    """Returns whether the process that failed first is still running: all that have ended had lost another one."""
    return all(one.monitor.lost for one in failed) and _silent(processes) is None


def _silent(processes: list[Process]) -> Process | None:
    late = [one for one in processes if one.exit_status is None and one.monitor.is_late]
    return max(late, key=lambda one: one.monitor.unheard, default=None)


_HEARD_EVERY = 0.2  # seconds


class Group:
    """A group of started processes. Synchronous workers fail together; an asynchronous worker fails alone.

    Attributes:
      slots: places of the workers on this machine.
      processes: newest process of each task.
      failed: processes whose end made the whole group fail, in the order in which it was noticed.
    """

    def __init__(
        self, placement: Placement, slots: Sequence[int], ports: Ports, guardian: Guardian, screen: Screen
    ) -> None:
        """Starts all processes."""
        self.slots = list(slots)
        self._placement, self._guardian, self._screen = placement, guardian, screen
        self._is_asynchronous = placement.job.strategy == PARAMETER_SERVER
        tasks = placement.tasks(slots)
        self._environments = dict(zip(tasks, placement.environments(tasks, ports.take(len(tasks))), strict=True))
        screen.name_width = max(len(task.name) for task in tasks)
        self.processes: list[Process] = []
        self.failed: list[Process] = []
        self._heard = 0.0
        self._may_hold = True
        try:
            self.processes.extend(map(self._started, tasks))
        except BaseException:
            self.close()
            raise

    def poll(self) -> list[Process]:
        """Checks the processes and shows their new lines; returns those that have ended since the last check."""
        now = time.monotonic()
        ended = [one for one in self.processes if one.exit_status is None and one.poll()]
        if ended or now - self._heard >= _HEARD_EVERY:
            self._heard = now
            for one in self.processes:
                one.monitor.hear(now)
        self.failed += [one for one in ended if one.has_failed and not self.fails_alone(one)]
        if self.failed:
            self._hold()
        for one in self.processes:
            self._show(one, one in ended)
        return ended

    def kill_silent(self) -> None:
        """Kills processes that gave no sign of life for too long."""
        for one in self.processes:
            if one.exit_status is None and not one.is_ending and (silence := one.monitor.silence):
                one.kill(silence)

    def pass_on(self, number: signal.Signals) -> str:
        """Sends the leading process a signal that the trainer handles; returns text on the outcome."""
        process = self.leading[0]
        if process.exit_status is not None or not process.monitor.has_stepped:  # a signal might still end it
            return f"{process.task.name} makes no steps now; send it again later"
        os.kill(process.pid, number)
        return f"passed on to {process.task.name}"

    def replace(self, process: Process) -> None:
        """Starts a process in place of one that has ended."""
        process.close()
        self.processes[self.processes.index(process)] = self._started(process.task)

    @property
    def is_done(self) -> bool:
        """Whether the job's work is done."""
        return all(one.exit_status is not None and one.exit_status.is_good for one in self.leading)

    @property
    def leading(self) -> list[Process]:
        """The processes whose end is the job's end: the chief of asynchronous workers, otherwise all."""
        return [one for one in self.processes if not self._is_asynchronous or one.task.job == "chief"]

    @property
    def serving(self) -> list[Process]:
        """The other processes, which serve until they are told to end."""
        return [one for one in self.processes if one not in self.leading]

    @property
    def running(self) -> list[Process]:
        """The processes that have not ended."""
        return [one for one in self.processes if one.exit_status is None]

    @property
    def has_stepped(self) -> bool:
        """Whether a step has been made."""
        return any(one.monitor.has_stepped for one in self.processes)

    @property
    def step(self) -> int | None:
        """The last reported step."""
        beats = [one.monitor.beat for one in self.processes]
        return max((beat.step for beat in beats if beat and beat.step is not None), default=None)

    def close(self) -> None:
        """Kills processes that still run."""
        for one in self.processes:
            one.kill()
        while self.running:
            self.poll()
            time.sleep(0.01)
        for one in self.processes:
            one.close()
        self._screen.release()  # show the next group's lines

    def cause_is_said(self) -> None:
        """Shows lines that were held back, and from now on every line immediately."""
        self._may_hold = False
        self._screen.release()

    def fails_alone(self, process: Process) -> bool:
        """Returns whether the others continue without this process."""
        return self._is_asynchronous and process.task.job == "worker"

    def _started(self, task: Task) -> Process:
        placement, timeout = self._placement, self._placement.job.restarts.silent_timeout
        environment = {**self._environments[task], journal.JOB: placement.id}
        return Process(task, placement.command, environment, placement.folder, self._guardian, timeout)

    def _hold(self) -> None:
        if self._may_hold:
            self._screen.hold()

    def _show(self, process: Process, is_end: bool) -> None:
        for tail, is_error in ((process.out, False), (process.err, True)):
            lines = tail.lines(is_end)
            # A process that lost another says so in its last beat before it prints a line. Lines are then held back, to
            # be shown after the cause.
            if lines and is_error:
                process.monitor.hear(time.monotonic())
                if process.monitor.lost:
                    self._hold()
            for line in lines:
                self._screen.line(process.task.name, line, is_error)
