"""Asynchronous workers: each is started again alone, while the others go on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from trainer.launching.job import Job
from trainer.launching.local.back_off import BackOff
from trainer.launching.local.cause import Cause
from trainer.launching.local.group import Group
from trainer.launching.local.process import Process
from trainer.launching.local.records import Records
from trainer.launching.local.screen import Screen


class Workers:
    """Looks after the workers of a group of parameter servers, a chief and workers."""

    def __init__(self, job: Job, group: Group, records: Records, screen: Screen) -> None:
        self._job, self._group, self._records, self._screen = job, group, records, screen
        self._delays: dict[int, BackOff] = {}  # by slot
        self._due: dict[Process, float] = {}  # when to start which again

    def look_after(self, ended: Sequence[Process]) -> None:
        """Starts again what is due, and decides about those who have ended."""
        for process in ended:
            if self._group.fails_alone(process) and self._has_failed(process):
                self._decide(process)
        for process in [one for one, when in self._due.items() if when <= time.monotonic()]:
            del self._due[process]
            self._group.replace(process)

    def _has_failed(self, process: Process) -> bool:
        assert process.ending is not None
        return not process.ending.is_good and (not process.is_ending or bool(process.ending.silence))

    def _decide(self, process: Process) -> None:
        assert process.ending is not None
        if not process.ending.is_restartable or self._records.best is None:
            self._group.failed.append(process)  # the others would fail, too
            return
        cause = Cause.of(process, process.ending)
        self._records.failed(process.task, str(cause))
        if self._records.restarts_of(process.task) >= self._job.max_restarts:
            self._give_up(process, cause)
            return
        number = self._records.restarted(process.task)
        seconds = self._delays.setdefault(process.task.slot, BackOff(self._job.restart_delay)).next(self._records.best)
        self._due[process] = time.monotonic() + seconds
        of = f"restart {number} of {self._job.max_restarts}"
        self._screen.say(f"{cause}; starting it again in {seconds:g} s ({of}), while the others go on")
        self._screen.release()

    def _give_up(self, process: Process, cause: Cause) -> None:
        others = [one for one in self._group.running if self._group.fails_alone(one)]
        if others or self._due:
            self._screen.say(f"{cause}; the others go on without it (--max_restarts={self._job.max_restarts})")
            self._screen.release()
        else:
            self._group.failed.append(process)
