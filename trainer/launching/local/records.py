"""What is remembered of each process over its restarts, and the report that follows."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import time
from collections.abc import Sequence

from pipeline.commands.text import count_of
from trainer.checkpoint.files import path_of, steps_in
from trainer.launching.local.group import Group
from trainer.launching.local.layout import Layout
from trainer.launching.local.process import Process, Task
from trainer.launching.local.report import VERSION, JobReport, ProcessReport, State


class Records:
    """Restarts and errors.

    Attributes:
      restarts: of the group.
      error: the first cause of its last failure.
      best: the highest step that was made; None: none was.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._folder = pathlib.Path(layout.job.model_dir)
        self.restarts, self.error = 0, ""
        self.best: int | None = None
        self._last_step: int | None = None
        self._restarts: collections.Counter[tuple[str, int]] = collections.Counter()
        self._errors: dict[tuple[str, int], str] = {}
        self._group: Group | None = None

    def started(self, group: Group) -> None:
        """Takes note of a group; all of its processes but those of the first one are restarts."""
        if self._group:
            self.restarts += 1
            self._restarts.update(_place(one.task) for one in group.processes)
        self._group = group

    def restarted(self, task: Task) -> int:
        """Takes note of a process that is started again alone; returns how often that was done."""
        self._restarts[_place(task)] += 1
        return self._restarts[_place(task)]

    def failed(self, task: Task, error: str) -> None:
        """Takes note of a failure."""
        self._errors[_place(task)] = error

    def restarts_of(self, task: Task) -> int:
        """Returns how often a task's process was started again."""
        return self._restarts[_place(task)]

    def watch(self) -> None:
        """Takes note of the step."""
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
        """What the end of the job leaves, to be added to a message: the newest checkpoint, and how many steps are lost.

        Steps are those of the last heartbeats; more may have been made since.
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
        group, job = self._group, self._layout.job
        beats = [one.listener.beat for one in group.processes] if group else []
        self._last_step = next((beat.last_step for beat in beats if beat and beat.last_step), self._last_step)
        return JobReport(
            VERSION,
            round(time.time(), 3),
            os.getpid(),
            self._layout.command,
            state,
            exit_code,
            (group.step if group else None) if state != "waiting" else self.best,
            self._last_step,
            self.saved,
            len(group.slots) if group else job.num_workers,
            job.elastic,
            tuple(lost),
            self.restarts,
            job.max_restarts,
            self.error or None,
            tuple(self._of(one) for one in group.processes) if group else (),
        )

    def _of(self, process: Process) -> ProcessReport:
        task, beat = process.task, process.listener.beat
        return ProcessReport(
            task.name,
            task.role,
            task.index,
            task.slot,
            self._layout.gpus_of(task),
            process.pid,
            "running" if process.ending is None else "ended",
            beat.phase if beat else "starting",
            beat.step if beat else None,
            beat.examples_per_second if beat else None,
            beat.input_wait if beat else None,
            self._restarts[_place(task)],
            self._errors.get(_place(task)),
            str(process.out.path),
            str(process.err.path),
        )


def _place(task: Task) -> tuple[str, int]:
    return task.role, task.slot
