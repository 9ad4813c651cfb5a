"""Which workers start again, and when."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Sequence

from trainer.launching.job import Job
from trainer.launching.local.group import Cause, Group
from trainer.launching.local.process import Process
from trainer.launching.local.records import Records
from trainer.launching.local.screen import Screen

_AT_START = 2  # failures at start-up, one after another, after which a slot is lost


@dataclasses.dataclass
class Slot:
    """A place for a worker, with its GPUs.

    Attributes:
      failures: of its worker, since the slot was last lost.
      at_start: of these, those since the worker's last step.
      delay: seconds that it waits once it is lost.
      retry_at: when a lost one may be tried again; infinity: not before the others have made a step; minus infinity: it
        is not lost.
      is_tried: whether it was lost and has made no step since.
    """

    failures: int = 0
    at_start: int = 0
    delay: float = 0.0
    retry_at: float = -math.inf
    is_tried: bool = False


class WorkerPool:
    """The slots for workers on this machine: all of them, or with --elastic those that work.

    A slot is lost when its worker cannot be restarted, and tried again after a while.

    Args:
      counts: numbers of workers that a group can have; the largest is the number of slots.
      max_restarts: of a slot's worker.
      delay: seconds before a lost slot is tried again; doubles each time it is lost.
    """

    def __init__(self, counts: Sequence[int], max_restarts: int, delay: float) -> None:
        self._counts, self._max_restarts = sorted(counts), max_restarts
        self._slots = [Slot(delay=delay) for _ in range(max(counts))]

    def chosen(self, now: float) -> list[int]:
        """Returns the slots for a group that starts now; none if too few are left."""
        usable = [number for number, slot in enumerate(self._slots) if slot.retry_at <= now]
        size = max((count for count in self._counts if count <= len(usable)), default=0)
        for number in usable[:size]:
            slot = self._slots[number]
            slot.is_tried, slot.retry_at = slot.is_tried or slot.retry_at > -math.inf, -math.inf
        return usable[:size]

    def can_grow(self, size: int, now: float) -> bool:
        """Whether a group that starts now would be larger than `size`."""
        usable = sum(slot.retry_at <= now for slot in self._slots)
        return any(size < count <= usable for count in self._counts)

    def stepped(self, numbers: Collection[int], now: float) -> None:
        """Records that the workers of these slots have made a step; the wait of lost slots begins with the first."""
        for slot in self._slots if numbers else []:
            if slot.retry_at == math.inf:
                slot.retry_at, slot.delay = now + slot.delay, 2 * slot.delay
        for number in numbers:
            self._slots[number].at_start, self._slots[number].is_tried = 0, False

    def failed(self, number: int, at_start: bool) -> bool:
        """Records that the worker of a slot was the first to fail.

        Returns:
          Whether the slot is lost now.
        """
        slot = self._slots[number]
        slot.failures, slot.at_start = slot.failures + 1, slot.at_start + at_start
        if not (
            slot.failures > self._max_restarts or slot.at_start >= _AT_START or (slot.is_tried and slot.at_start > 0)
        ):
            return False
        slot.retry_at = math.inf
        slot.failures, slot.at_start, slot.is_tried = 0, 0, False
        return True

    def forgive(self) -> None:
        """Forgets failures after the first step: the job has saved a new checkpoint since."""
        for slot in self._slots:
            slot.failures = slot.at_start

    @property
    def lost(self) -> list[int]:
        """The slots that wait for another try."""
        return [number for number, slot in enumerate(self._slots) if slot.retry_at > -math.inf]


_MOST = 60.0  # seconds


class BackOff:
    """Delays that double with each restart, until there is progress: a step beyond all earlier ones.

    Args:
      delay: the first one, in seconds.
    """

    def __init__(self, delay: float) -> None:
        self._delay, self._next, self._best = delay, delay, -1

    def next(self, step: int | None) -> float:
        """Returns the seconds to wait after a failure.

        Args:
          step: the last one that was made; None: there was none.
        """
        if step is not None and step > self._best:
            self._best, self._next = step, self._delay
        seconds = self._next
        self._next = min(2 * seconds, max(_MOST, self._delay))
        return seconds


class AsynchronousWorkers:
    """Restarts the workers of a parameter-server job one by one, while the others go on."""

    def __init__(self, job: Job, group: Group, records: Records, screen: Screen) -> None:
        self._job, self._group, self._records, self._screen = job, group, records, screen
        self._delays: dict[int, BackOff] = {}  # by slot
        self._due: dict[Process, float] = {}  # when to start which again

    def look_after(self, ended: Sequence[Process]) -> None:
        """Decides about the processes that have ended, and starts again those that are due."""
        for process in ended:
            if self._group.fails_alone(process) and process.has_failed:
                self._decide(process)
        for process in [one for one, when in self._due.items() if when <= time.monotonic()]:
            del self._due[process]
            self._group.replace(process)

    def _decide(self, process: Process) -> None:
        """Has a failed worker start again after a while, gives it up, or lets the whole group fail."""
        assert process.exit_status is not None
        if not process.exit_status.is_restartable or self._records.best is None:
            self._group.failed.append(process)  # the others would fail, too
            return
        cause = Cause.of(process, process.exit_status)
        self._records.failed(process.task, str(cause))
        if self._records.restarts_of(process.task) >= self._job.restarts.max_restarts:
            self._give_up(process, cause)
            return
        number = self._records.restarted(process.task)
        back_off = self._delays.setdefault(process.task.slot, BackOff(self._job.restarts.restart_delay))
        seconds = back_off.next(self._records.best)
        self._due[process] = time.monotonic() + seconds
        of = f"restart {number} of {self._job.restarts.max_restarts}"
        self._screen.say(f"{cause}; starting it again in {seconds:g} s ({of}), while the others go on", "failure")
        self._screen.release()

    def _give_up(self, process: Process, cause: Cause) -> None:
        others = [one for one in self._group.running if self._group.fails_alone(one)]
        if others or self._due:
            without = f"the others go on without it (--max_restarts={self._job.restarts.max_restarts})"
            self._screen.say(f"{cause}; {without}", "failure")
            self._screen.release()
        else:
            self._group.failed.append(process)
