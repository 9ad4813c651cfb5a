"""Records of each process across restarts, the report on them, and decisions on which workers restart when."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Collection, Sequence

from pipeline.commands.text import count_of
from trainer import journal
from trainer.checkpoint.files import path_of, steps_in
from trainer.journal import JobReport, ProcessReport, State
from trainer.launching.local.group import Cause, Group
from trainer.launching.local.placement import Placement
from trainer.launching.local.process import Process, Task
from trainer.launching.local.screen import Screen


class Records:
    """Restarts, steps and errors of each process, across all restarts of the group.

    Attributes:
      job: job that the processes belong to.
      restarts: number of restarts of the group.
      error: first cause of its last failure.
      best: highest step made so far; None before the first.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement, self.job = placement, placement.job
        self._folder = placement.job.folder.path
        # Seconds may be infinite, which JSON lacks.
        self._flags = {
            group: {name: value for name, value in members.items() if value != math.inf}
            for group, members in dataclasses.asdict(placement.job.config).items()
        }
        self.restarts, self.error = 0, ""
        self.best: int | None = None
        self._last_step: int | None = None
        self._restarts: collections.Counter[tuple[str, int]] = collections.Counter()
        self._errors: dict[tuple[str, int], str] = {}
        self._group: Group | None = None

    def started(self, group: Group) -> None:
        """Records the start of a group; every process of a later group counts as restarted."""
        if self._group:
            self.restarts += 1
            self._restarts.update(_place(one.task) for one in group.processes)
        self._group = group

    def restarted(self, task: Task) -> int:
        """Records that a process is restarted alone; returns how many times it has been so far."""
        self._restarts[_place(task)] += 1
        return self._restarts[_place(task)]

    def failed(self, task: Task, error: str) -> None:
        """Records the failure of a process."""
        self._errors[_place(task)] = error

    def restarts_of(self, task: Task) -> int:
        """Returns how many times a task's process was restarted."""
        return self._restarts[_place(task)]

    def watch(self) -> None:
        """Records the step that the group has reached."""
        step = self._group.step if self._group and self.has_stepped else None
        if step is not None:
            self.best = max(step, self.best or 0)

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint; None if there is none or the folder cannot be read now."""
        with contextlib.suppress(OSError):
            return max(steps_in(self._folder), default=None)
        return None

    @property
    def left(self) -> str:
        """The end of a message on what the job leaves behind: the newest checkpoint, and the number of lost steps.

        Steps are from the last heartbeats; the job may have made more since.
        """
        saved = self.saved
        if saved is None and self.best is None:
            return ""
        lost = max(0, (self.best or 0) - (saved or 0))
        steps = f"; at least {count_of(lost, 'step')} {'is' if lost == 1 else 'are'} lost" if lost else ""
        kept = "no checkpoint was saved" if saved is None else f"{path_of(self._folder, saved)} is saved"
        return f"; {kept}{steps}"

    @property
    def has_stepped(self) -> bool:
        """Whether the group has made a step."""
        return self._group is not None and self._group.has_stepped

    def report(self, state: State, lost: Sequence[int], exit_code: int | None = None) -> JobReport:
        """Returns the report on the job's state."""
        group, job = self._group, self.job
        beats = [one.monitor.beat for one in group.processes] if group else []
        self._last_step = next((beat.last_step for beat in beats if beat and beat.last_step), self._last_step)
        step = group.step if group else None
        return JobReport(
            time=round(time.time(), 3),
            pid=os.getpid(),
            job=self._placement.id,
            command=self._placement.command,
            flags=self._flags,
            state=state,
            exit_code=exit_code,
            step=self.best if state == "waiting" else step,
            last_step=self._last_step,
            saved_step=self.saved,
            num_workers=len(group.slots) if group else job.num_workers,
            elastic=job.elastic,
            lost=tuple(lost),
            restarts=self.restarts,
            max_restarts=job.restarts.max_restarts,
            error=self.error or None,
            processes=tuple(self._of(one) for one in group.processes) if group else (),
        )

    def _of(self, process: Process) -> ProcessReport:
        task, beat = process.task, process.monitor.beat
        return ProcessReport(
            name=task.name,
            role=task.job,
            index=task.index,
            slot=task.slot,
            gpus=self._placement.gpus_of(task),
            pid=process.pid,
            state="running" if process.exit_status is None else "ended",
            phase=beat.phase if beat else "starting",
            step=beat.step if beat else None,
            examples_per_second=beat.examples_per_second if beat else None,
            input_wait=beat.input_wait if beat else None,
            restarts=self._restarts[_place(task)],
            last_error=self._errors.get(_place(task)),
            stdout=str(process.out.path),
            stderr=str(process.err.path),
        )


def _place(task: Task) -> tuple[str, int]:
    return task.job, task.slot


_EVERY = 1.0  # seconds between reports


class Reporter:
    """Writes and shows the report about once per second, and immediately when the state changes.

    Args:
      records: records of the job.
      screen: screen that shows the table, and the lines of the launcher and the processes.
      folder: folder of the status file.
      lost: function that returns the slots that are given up for now.
      beside: function that looks after whatever runs next to the job.

    Attributes:
      records, screen: the arguments, for code that watches the job.
    """

    def __init__(
        self,
        records: Records,
        screen: Screen,
        folder: pathlib.Path,
        lost: Callable[[], Sequence[int]],
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        self.records, self.screen, self._folder, self._lost = records, screen, folder, lost
        self._beside = beside
        self._state: State = "starting"
        self._written = 0.0

    def set(self, state: State, exit_code: int | None = None) -> None:
        """Sets the state and reports it immediately."""
        self._state = state
        report = self.records.report(state, self._lost(), exit_code)
        journal.write(report, self._folder / journal.STATUS)
        self.screen.update(report)
        self._written = time.monotonic()

    def tick(self) -> None:
        """Reports the job's state if a report is due."""
        self._beside()
        now = time.monotonic()
        if self._state == "starting" and self.records.has_stepped:
            self.set("training")
        if is_due := now - self._written >= _EVERY:
            self._written = now
        if is_due or self.screen.is_due:
            report = self.records.report(self._state, self._lost())
            self.screen.update(report)
            if is_due:
                journal.write(report, self._folder / journal.STATUS)


_AT_START = 2  # consecutive failures at start-up after which a slot is lost


@dataclasses.dataclass
class Slot:
    """A place for a worker, with its GPUs.

    Attributes:
      failures: number of failures of its worker since the slot was last lost.
      at_start: number of these failures after the worker's last step.
      delay: seconds that the slot stays lost before it is retried.
      retry_at: time at which a lost slot may be retried; infinity until the other workers have made a step, minus
        infinity if the slot is not lost.
      is_tried: whether the slot was lost, is being retried, and has not made a step yet.
    """

    failures: int = 0
    at_start: int = 0
    delay: float = 0.0
    retry_at: float = -math.inf
    is_tried: bool = False


class WorkerPool:
    """The slots for workers on this machine: all of them or, with --elastic, those that work.

    A slot is lost when its worker cannot be restarted; it is retried after a while.

    Args:
      counts: possible numbers of workers in a group; the largest is the number of slots.
      max_restarts: maximum number of restarts of a slot's worker.
      delay: seconds before a lost slot is retried; doubles each time it is lost.
    """

    def __init__(self, counts: Sequence[int], max_restarts: int, delay: float) -> None:
        self._counts, self._max_restarts = sorted(counts), max_restarts
        self._slots = [Slot(delay=delay) for _ in range(max(counts))]

    def chosen(self, now: float) -> list[int]:
        """Returns the slots for a group that starts now; an empty list if too few are left."""
        usable = [number for number, slot in enumerate(self._slots) if slot.retry_at <= now]
        size = max((count for count in self._counts if count <= len(usable)), default=0)
        for number in usable[:size]:
            slot = self._slots[number]
            slot.is_tried, slot.retry_at = slot.is_tried or slot.retry_at > -math.inf, -math.inf
        return usable[:size]

    def can_grow(self, size: int, now: float) -> bool:
        """Whether a group that started now would have more workers than `size`."""
        usable = sum(slot.retry_at <= now for slot in self._slots)
        return any(size < count <= usable for count in self._counts)

    def stepped(self, numbers: Collection[int], now: float) -> None:
        """Records that the workers of these slots have made a step; their first step starts the wait of lost slots."""
        for slot in self._slots if numbers else []:
            if slot.retry_at == math.inf:
                slot.retry_at, slot.delay = now + slot.delay, 2 * slot.delay
        for number in numbers:
            self._slots[number].at_start, self._slots[number].is_tried = 0, False

    def failed(self, number: int, at_start: bool) -> bool:
        """Records that the worker of a slot was the first to fail; returns whether the slot is now lost."""
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
        """Forgets failures after the first step, since the job has saved a new checkpoint."""
        for slot in self._slots:
            slot.failures = slot.at_start

    @property
    def lost(self) -> list[int]:
        """The slots that are waiting for another try."""
        return [number for number, slot in enumerate(self._slots) if slot.retry_at > -math.inf]


_MOST = 60.0  # seconds


class BackOff:
    """Delays that double with each restart until there is progress, meaning a step beyond all earlier ones.

    Args:
      delay: first delay in seconds.
    """

    def __init__(self, delay: float) -> None:
        self._delay, self._next, self._best = delay, delay, -1

    def next(self, step: int | None) -> float:
        """Returns the seconds to wait after a failure.

        Args:
          step: last step made; None before the first.
        """
        if step is not None and step > self._best:
            self._best, self._next = step, self._delay
        seconds = self._next
        self._next = min(2 * seconds, max(_MOST, self._delay))
        return seconds


class AsynchronousWorkers:
    """Restarts the workers of a parameter-server job one at a time, while the others continue."""

    def __init__(self, group: Group, reporter: Reporter) -> None:
        self._group, self._records, self._screen = group, reporter.records, reporter.screen
        self._flags = reporter.records.job.restarts
        self._delays: dict[int, BackOff] = {}  # delays by slot
        self._due: dict[Process, float] = {}  # restart times

    def look_after(self, ended: Sequence[Process]) -> None:
        """Decides what to do about processes that have ended, and restarts those that are due."""
        for process in ended:
            if self._group.fails_alone(process) and process.has_failed:
                self._decide(process)
        for process in [one for one, when in self._due.items() if when <= time.monotonic()]:
            del self._due[process]
            self._group.replace(process)

    def _decide(self, process: Process) -> None:
        """Schedules the restart of a failed worker, gives the worker up, or lets the whole group fail."""
        assert process.exit_status is not None
        if not process.exit_status.is_restartable or self._records.best is None:
            self._group.failed.append(process)  # the others would fail as well
            return
        cause = Cause.of(process, process.exit_status)
        self._records.failed(process.task, str(cause))
        if self._records.restarts_of(process.task) >= self._flags.max_restarts:
            self._give_up(process, cause)
            return
        number = self._records.restarted(process.task)
        back_off = self._delays.setdefault(process.task.slot, BackOff(self._flags.restart_delay))
        seconds = back_off.next(self._records.best)
        self._due[process] = time.monotonic() + seconds
        of = f"restart {number} of {self._flags.max_restarts}"
        self._screen.say(f"{cause}; starting it again in {seconds:g} s ({of}), while the others continue", "failure")
        self._screen.release()

    def _give_up(self, process: Process, cause: Cause) -> None:
        others = [one for one in self._group.running if self._group.fails_alone(one)]
        if others or self._due:
            without = f"the others continue without it (--max_restarts={self._flags.max_restarts})"
            self._screen.say(f"{cause}; {without}", "failure")
            self._screen.release()
        else:
            self._group.failed.append(process)
