"""How a job is doing, for people and programs: `launch/status.json` in its folder, whose fields are `JobReport`'s."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from typing import Literal, TypeAlias

from pipeline.files.write import replace

VERSION = 1  # of the format
FILE = "status.json"

State: TypeAlias = Literal["starting", "training", "waiting", "stopping", "done", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class ProcessReport:
    """A process of the job.

    Attributes:
      name: `worker 1`, as before its lines.
      role: worker, chief or ps.
      index: in its role, as in TF_CONFIG.
      slot: its place on this machine, which it keeps while the number of workers changes.
      gpus: that it may use, as CUDA_VISIBLE_DEVICES names them.
      pid: of the newest process; null: there was none.
      state: running or ended.
      phase: what it does: `compiling the step`, `training`.
      step: global step.
      examples_per_second: of the whole job, as this process measures it.
      input_wait: share of the time that its steps wait for batches.
      restarts: how often it was started again.
      last_error: how it failed last; null: it did not.
      stdout: file of its output.
      stderr: file of its errors.
    """

    name: str
    role: str
    index: int
    slot: int
    gpus: tuple[str, ...]
    pid: int | None
    state: Literal["running", "ended"]
    phase: str
    step: int | None
    examples_per_second: float | None
    input_wait: float | None
    restarts: int
    last_error: str | None
    stdout: str
    stderr: str


@dataclasses.dataclass(frozen=True)
class JobReport:
    """The job.

    Attributes:
      version: of this format.
      time: seconds since 1970 at which this was written; while the job runs, about once per second.
      pid: of the launcher.
      command: of each process.
      state: starting (no step was made since the last start), training, waiting (before a restart), stopping, or the
        end: done, stopped (rerun to resume), failed.
      exit_code: null until the end.
      step: global step.
      last_step: at which training ends; null: not known yet.
      saved_step: of the newest checkpoint; null: there is none.
      num_workers: now.
      elastic: the fewest and the most workers; null: their number is fixed.
      lost: slots that are given up, and tried again later.
      restarts: of the group of all processes.
      max_restarts: of it, without a new checkpoint.
      error: the first cause of the last failure; null: there was none.
      processes: now, or at the end.
    """

    version: int
    time: float
    pid: int
    command: tuple[str, ...]
    state: State
    exit_code: int | None
    step: int | None
    last_step: int | None
    saved_step: int | None
    num_workers: int
    elastic: tuple[int, int] | None
    lost: tuple[int, ...]
    restarts: int
    max_restarts: int
    error: str | None
    processes: tuple[ProcessReport, ...]

    def write(self, folder: pathlib.Path) -> None:
        """Writes the file as a whole: a reader sees the old one or the new one."""
        with contextlib.suppress(OSError):  # a full disk: the job goes on without
            replace(folder / FILE, json.dumps(dataclasses.asdict(self), indent=1) + "\n", ".new")
