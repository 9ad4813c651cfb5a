"""Which of several processes failed first: the cause; the others followed, since they had lost it."""

from __future__ import annotations

import dataclasses
import re

from pipeline.errors import EXIT_RERUN
from trainer.launching.local.ending import Ending
from trainer.launching.local.process import Process, Task

# A line of a log: of absl, also within TensorFlow and gRPC (`E0000 00:00:1795.6 254 file.cc:52] ...`), but for F, which
# ends the process; of TensorFlow (`2026-11-23 20:15:00.1: W file.cc:9] ...`); of Python (`WARNING:tensorflow:...`).
_LOG = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: [IWE] \S+:\d+\]"
    r"|(DEBUG|INFO|WARNING|ERROR):\w"
    r"|WARNING: All log messages before absl::InitializeLog\(\)"
    r"|To enable the following instructions: "
    r"|\S+\.py:\d+: \w*Warning: "
)
_OF_COMMAND = "trainer.run: "  # the line that a trainer ends with
LOST = re.compile(r"trainer\.run: (lost |the job has ended: )")  # the line of a trainer that ends with another process


@dataclasses.dataclass(frozen=True)
class Cause:
    """The failure that made a group fail.

    Attributes:
      task: whose process it was.
      pid: of it.
      ending: how it ended.
      step: the last that it reported.
      at_start: whether the process had made no step.
      lines: the last ones of its stderr.
    """

    task: Task
    pid: int
    ending: Ending
    step: int | None
    at_start: bool
    lines: tuple[str, ...]

    @classmethod
    def of(cls, process: Process, ending: Ending) -> Cause:
        """Returns the failure of a process."""
        beat = process.listener.beat
        step, at_start = beat.step if beat else None, not process.listener.has_stepped
        return cls(process.task, process.pid, ending, step, at_start, tuple(process.err.last))

    @property
    def context(self) -> tuple[str, ...]:
        """What its last lines tell beyond the one that stands for it."""
        return self.lines if len(self.lines) > 1 or self.ending.code < 0 else ()

    @property
    def said(self) -> str | None:
        """The line that tells why it ended: the trainer's own, or the last that is no log's; None: there is none."""
        lines = [line for line in self.lines if not _LOG.match(line)]
        return next((line for line in reversed(lines) if line.startswith(_OF_COMMAND)), lines[-1] if lines else None)

    def __str__(self) -> str:
        """One line, with what the process has said itself."""
        step = "" if self.step is None or self.ending.silence else f" after step {self.step}"
        said = f": {self.said}" if self.said and self.ending.code > 0 else ""
        return f"{self.task.name} (process {self.pid}) {self.ending}{step}{said}"


def first(processes: list[Process], failed: list[Process]) -> Process:
    """Returns the process that failed first.

    A process that lost a peer says so, and ends with 75, or with the code of the one that ended the job. That one may
    have been killed, or ended with another code; or, if it is stopped or hangs, it may still be there and miss its
    heartbeats.

    Args:
      processes: of the group.
      failed: those that have ended with a failure, in the order in which that was seen.
    """
    own = [one for one in failed if not _followed(one)]
    return min(own, key=_rank_of_ending, default=None) or _silent(processes) or failed[0]


def is_awaited(processes: list[Process], failed: list[Process]) -> bool:
    """Whether the process that failed first is still to end: all that have ended followed another one."""
    return all(map(_followed, failed)) and _silent(processes) is None


def _rank_of_ending(process: Process) -> bool:
    assert process.ending is not None
    return process.ending.code == EXIT_RERUN


def _followed(process: Process) -> bool:
    """Whether it ended since another one did."""
    return any(map(LOST.search, process.err.last))


def _silent(processes: list[Process]) -> Process | None:
    late = [one for one in processes if one.ending is None and one.listener.is_late]
    return max(late, key=lambda one: one.listener.unheard, default=None)
