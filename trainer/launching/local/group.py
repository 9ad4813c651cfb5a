"""The processes of a job that run at the same time: started together, followed, and ended together."""

from __future__ import annotations

import time
from collections.abc import Sequence

from trainer.launching.job import PARAMETER_SERVER
from trainer.launching.local.cause import LOST
from trainer.launching.local.guardian import Guardian
from trainer.launching.local.layout import Layout
from trainer.launching.local.ports import Ports
from trainer.launching.local.process import Process, Task
from trainer.launching.local.screen import Screen

_HEARD_EVERY = 0.2  # seconds


class Group:
    """Started processes. Synchronous workers fail together; an asynchronous worker fails alone.

    Attributes:
      slots: of the workers.
      processes: the newest of each task.
      failed: those that ended with a failure that is the group's, in the order in which it was seen.
    """

    def __init__(self, layout: Layout, slots: Sequence[int], ports: Ports, guardian: Guardian, screen: Screen) -> None:
        """Starts all processes."""
        self.slots = list(slots)
        self._layout, self._guardian, self._screen = layout, guardian, screen
        self._is_asynchronous = layout.job.strategy == PARAMETER_SERVER
        tasks = layout.tasks(slots)
        self._environments = dict(zip(tasks, layout.environments(tasks, ports.take(len(tasks))), strict=True))
        screen.name_width(max(len(task.name) for task in tasks))
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
        """Looks after the processes and shows their new lines.

        Returns:
          Those that have ended since the last look.
        """
        now = time.monotonic()
        ended = [one for one in self.processes if one.ending is None and one.poll()]
        if ended or now - self._heard >= _HEARD_EVERY:
            self._heard = now
            for one in self.processes:
                one.listener.hear(now)
        self.failed += [one for one in ended if self._is_failure(one)]
        if self.failed:
            self._hold()
        for one in self.processes:
            self._show(one, one in ended)
        return ended

    def kill_silent(self) -> None:
        """Kills processes of which nothing was heard for too long."""
        for one in self.processes:
            if one.ending is None and not one.is_ending and (silence := one.listener.silence):
                one.kill(silence)

    def replace(self, process: Process) -> None:
        """Starts a process again that has ended, in its place."""
        process.close()
        self.processes[self.processes.index(process)] = self._started(process.task)

    @property
    def is_done(self) -> bool:
        """Whether all that has to be done is done."""
        return all(one.ending is not None and one.ending.is_good for one in self.leading)

    @property
    def leading(self) -> list[Process]:
        """Those whose end is the job's: all, or the chief where it gives the others work."""
        return [one for one in self.processes if not self._is_asynchronous or one.task.role == "chief"]

    @property
    def serving(self) -> list[Process]:
        """The others, who serve until they are told to end."""
        return [one for one in self.processes if one not in self.leading]

    @property
    def running(self) -> list[Process]:
        """Those that have not ended."""
        return [one for one in self.processes if one.ending is None]

    @property
    def has_stepped(self) -> bool:
        """Whether a step was made."""
        return any(one.listener.has_stepped for one in self.processes)

    @property
    def step(self) -> int | None:
        """The last step that was reported."""
        beats = [one.listener.beat for one in self.processes]
        return max((beat.step for beat in beats if beat and beat.step is not None), default=None)

    def close(self) -> None:
        """Kills what still runs."""
        for one in self.processes:
            one.kill()
        while self.running:
            self.poll()
            time.sleep(0.01)
        for one in self.processes:
            one.close()
        self._screen.release()  # the next group is to be seen

    def cause_is_said(self) -> None:
        """Shows what was held back, and from now on every line at once."""
        self._may_hold = False
        self._screen.release()

    def fails_alone(self, process: Process) -> bool:
        """Whether the others go on without it."""
        return self._is_asynchronous and process.task.role == "worker"

    def _started(self, task: Task) -> Process:
        layout = self._layout
        environment = self._environments[task]
        return Process(task, layout.command, environment, layout.folder, self._guardian, layout.job.silent_timeout)

    def _is_failure(self, process: Process) -> bool:
        """Whether the end of a process is a failure of the group."""
        assert process.ending is not None
        if process.ending.is_good or (process.is_ending and not process.ending.silence):
            return False
        return not self.fails_alone(process)

    def _hold(self) -> None:
        if self._may_hold:
            self._screen.hold()

    def _show(self, process: Process, is_end: bool) -> None:
        for tail, is_error in ((process.out, False), (process.err, True)):
            for line in tail.lines(is_end):
                if is_error and LOST.search(line):  # what it lost is the cause, to be shown before
                    self._hold()
                self._screen.line(process.task.name, line, is_error)
