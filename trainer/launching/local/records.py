"""What is remembered of each process over its restarts, and the job's report, which is made of it."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Sequence

from pipeline.commands.text import count_of
from trainer.checkpoint.files import path_of, steps_in
from trainer.launching.local.group import Group
from trainer.launching.local.placement import Placement
from trainer.launching.local.process import Process, Task
from trainer.launching.local.screen import VERSION, JobReport, ProcessReport, Screen, State


class Records:
    """Restarts, steps and errors of each process, over all restarts of the group.

    Attributes:
      restarts: of the group.
      error: the first cause of its last failure.
      best: the highest step that was made; None: none was.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._folder = placement.job.folder.path
        self.restarts, self.error = 0, ""
        self.best: int | None = None
        self._last_step: int | None = None
        self._restarts: collections.Counter[tuple[str, int]] = collections.Counter()
        self._errors: dict[tuple[str, int], str] = {}
        self._group: Group | None = None

    def started(self, group: Group) -> None:
        """Records a group; all processes but those of the first one are restarts."""
        if self._group:
            self.restarts += 1
            self._restarts.update(_place(one.task) for one in group.processes)
        self._group = group

    def restarted(self, task: Task) -> int:
        """Records that a process is started again alone; returns how often that was done."""
        self._restarts[_place(task)] += 1
        return self._restarts[_place(task)]

    def failed(self, task: Task, error: str) -> None:
        """Records a failure."""
        self._errors[_place(task)] = error

    def restarts_of(self, task: Task) -> int:
        """Returns how often a task's process was started again."""
        return self._restarts[_place(task)]

    def watch(self) -> None:
        """Records the step."""
        step = self._group.step if self._group and self.has_stepped else None
        if step is not None:
            self.best = max(step, self.best or 0)

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint; None: there is none, or the folder cannot be read now."""
        with contextlib.suppress(OSError):
            return max(steps_in(self._folder), default=None)
        return None

    @property
    def left(self) -> str:
        """What the end of the job leaves, as the end of a message: the newest checkpoint, and how many steps are lost.

        These are the steps of the last heartbeats; more may have been made since.
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
        """Returns how the job is doing."""
        group, job = self._group, self._placement.job
        beats = [one.monitor.beat for one in group.processes] if group else []
        self._last_step = next((beat.last_step for beat in beats if beat and beat.last_step), self._last_step)
        step = group.step if group else None
        return JobReport(
            version=VERSION,
            time=round(time.time(), 3),
            pid=os.getpid(),
            command=self._placement.command,
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
            role=task.role,
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
    return task.role, task.slot


_EVERY = 1.0  # seconds between two reports


class Reporter:
    """Writes and shows the report about once per second, and at once when the state changes.

    Args:
      records: of the job.
      screen: with the table.
      folder: for the file.
      lost: slots that are given up.
      beside: looks after what runs beside the job.
    """

    def __init__(
        self,
        records: Records,
        screen: Screen,
        folder: pathlib.Path,
        lost: Callable[[], Sequence[int]],
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        self._records, self._screen, self._folder, self._lost = records, screen, folder, lost
        self._beside = beside
        self._state: State = "starting"
        self._written = 0.0

    def set(self, state: State, exit_code: int | None = None) -> None:
        """Sets the state, and reports it at once."""
        self._state = state
        report = self._records.report(state, self._lost(), exit_code)
        report.write(self._folder)
        self._screen.update(report)
        self._written = time.monotonic()

    def tick(self) -> None:
        """Reports how the job is doing, if that is due."""
        self._beside()
        now = time.monotonic()
        if self._state == "starting" and self._records.has_stepped:
            self.set("training")
        if is_due := now - self._written >= _EVERY:
            self._written = now
        if is_due or self._screen.is_due:
            report = self._records.report(self._state, self._lost())
            self._screen.update(report)
            if is_due:
                report.write(self._folder)
