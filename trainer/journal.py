"""Files in which a job's processes report their state, for the launcher, `trainer.watch` and other programs.

Each process replaces its last `Beat`, and the launcher its `JobReport`, about once per second; the launcher appends an
`Event` for each thing that happens. Files of other releases are read as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, TypeVar

from pipeline.files.fields import from_json
from pipeline.files.reading import content_of, opened
from pipeline.files.write import replace

VERSION = 1  # version of the format of `JobReport`
STATUS = "status.json"  # file of the launcher's report in the run's folder `launch`
JOB = "STEPFEED_JOB"  # variable with the id of the job, which identifies a launcher's processes

Expected: TypeAlias = Literal["steps", "end", "nothing"]  # next sign of progress
Kind: TypeAlias = Literal["job", "failure", "end"]  # kind of the launcher's events
State: TypeAlias = Literal["starting", "training", "waiting", "stopping", "done", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class ProcessReport:
    """A process of the job, as status.json shows it.

    Attributes:
      name: `worker 1`, as in the prefix of its lines.
      role: `worker`, `chief` or `ps`.
      index: index in its role, as in TF_CONFIG.
      slot: place on this machine, which it keeps while the number of workers changes.
      gpus: GPUs that it may use, as CUDA_VISIBLE_DEVICES names them.
      pid: process id of the newest process; null before the first.
      state: `running` or `ended`.
      phase: current activity, such as `compiling the step` or `training`.
      step: global step.
      examples_per_second: speed of the whole job, as this process measures it.
      input_wait: share of the step time spent waiting for batches.
      restarts: number of restarts.
      last_error: error of its last failure; null if it has not failed.
      stdout: file with its output.
      stderr: file with its errors.
    """

    name: str
    role: str = ""
    index: int = 0
    slot: int = 0
    gpus: tuple[str, ...] = ()
    pid: int | None = None
    state: str = "running"
    phase: str = ""
    step: int | None = None
    examples_per_second: float | None = None
    input_wait: float | None = None
    restarts: int | None = None
    last_error: str | None = None
    stdout: str = ""
    stderr: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobReport:
    """The job, as status.json shows it.

    Attributes:
      version: version of this format.
      time: time of writing, in seconds since 1970; while the job runs, about once per second.
      pid: process id of the launcher.
      job: id of the job, unique to a launcher; empty in files of earlier releases.
      command: command line that each process runs.
      flags: flags of the run, by group; null in files of earlier releases.
      state: `starting` (no step since the last start), `training`, `waiting` (before a restart), `stopping`; at the end
        `done`, `stopped` (rerun to resume) or `failed`.
      exit_code: exit code of the launcher; null until the end.
      step: global step.
      last_step: step at which training ends; null while unknown.
      saved_step: step of the newest checkpoint; null if there is none.
      num_workers: number of workers in the running group.
      elastic: minimum and maximum number of workers; null if the number is fixed.
      lost: slots that are given up for now and retried later.
      restarts: number of restarts of the whole group.
      max_restarts: maximum number of these restarts without a new checkpoint in between.
      error: first cause of the last failure; null if there was none.
      processes: processes that run now, or ran at the end.
    """

    version: int = VERSION
    time: float
    pid: int | None = None
    job: str = ""
    command: tuple[str, ...] = ()
    flags: dict[str, dict[str, Any]] | None = None
    state: str = ""
    exit_code: int | None = None
    step: int | None = None
    last_step: int | None = None
    saved_step: int | None = None
    num_workers: int | None = None
    elastic: tuple[int, int] | None = None
    lost: tuple[int, ...] = ()
    restarts: int | None = None
    max_restarts: int | None = None
    error: str | None = None
    processes: tuple[ProcessReport, ...]


@dataclasses.dataclass(frozen=True)
class Beat:
    """The status of a process.

    Attributes:
      pid: process id.
      time: time of writing, seconds since 1970.
      job: id of the job, as in `JobReport`; empty without a launcher.
      beats: number of earlier beats.
      phase: current phase: `loading TensorFlow`, `training`.
      step: global step; None if not known yet.
      last_step: step at which training ends.
      made: number of updates that this process has made.
      achieved: number of times the process has shown progress: a new phase, steps, batches evaluated.
      expects, quiet: attributes of the phase; see `Phase`. While it is quiet, beats may stop.
      patience: while steps are expected, the seconds that may pass until the next achievement, judging by earlier ones.
      examples_per_second: speed of the whole job over the last seconds.
      input_wait: share of the time that steps spent waiting for batches.
      seconds_per_step: mean duration of a step over the last seconds.
      waited_per_step: part of it that this process spent waiting for its batches.
      exchanged_per_step: part of it that this worker spent in all-reduces with the others, partly while computing; it
        is shortest for the slowest worker. None without other workers.
      lost: names of the job's processes whose end ended this one.
      started: start time of the process, seconds since 1970.
      host: name of the machine.
      devices: devices that the process uses: `CPU:0`; empty if not known yet.
      exit_code: exit code of the process, in its last beat.
      error: error that ended the process, in one line.
    """

    pid: int
    time: float
    job: str = ""
    beats: int = 0
    phase: str = "starting"
    step: int | None = None
    last_step: int | None = None
    made: int = 0
    achieved: int = 0
    expects: Expected = "end"
    patience: float = 0.0
    quiet: float = 0.0
    examples_per_second: float | None = None
    input_wait: float | None = None
    seconds_per_step: float | None = None
    waited_per_step: float | None = None
    exchanged_per_step: float | None = None
    lost: tuple[str, ...] = ()
    started: float = 0.0
    host: str = ""
    devices: tuple[str, ...] = ()
    exit_code: int | None = None
    error: str | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Beat | None:
        """Returns the last beat in a file; None if there is no beat yet."""
        try:
            return told(cls, content_of(path))
        except (OSError, ValueError):
            return None


def write(report: JobReport | Beat, path: pathlib.Path) -> None:
    """Replaces a file atomically; if it cannot be written, e.g. on a full disk, the job continues without it."""
    indent, end = (1, "\n") if isinstance(report, JobReport) else (None, "")
    with contextlib.suppress(OSError):
        replace(path, json.dumps(dataclasses.asdict(report), indent=indent) + end, ".new")


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to the job.

    Attributes:
      time: seconds since 1970.
      kind: `start`, `job`, `failure`, `checkpoint`, `best` or `end`.
      text: line of text.
    """

    time: float
    kind: str = "job"
    text: str = ""

    def append(self, path: pathlib.Path) -> None:
        """Adds the event to a file; if that cannot be written, the job continues without it."""
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(dataclasses.asdict(self))}\n")


def events_in(path: pathlib.Path) -> Iterator[Event]:
    """Yields the events in a file, skipping other lines, such as a partial one. Raises OSError."""
    with opened(path) as file:
        for line in file:
            with contextlib.suppress(ValueError):
                if (event := told(Event, line)).text:
                    yield event


_Told = TypeVar("_Told")


def told(kind: type[_Told], text: bytes) -> _Told:
    """Parses the JSON text of a `Beat`, `JobReport` or `Event` from this or another release.

    Raises:
      ValueError: the text is something else; the message says why.
    """
    found: _Told = from_json(kind, parsed(text), is_exact=False)
    return found


def parsed(text: bytes) -> Any:
    """Parses a JSON text; integers of more than 64 bits become floats.

    Raises:
      ValueError: the text is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_int=_int_of)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _int_of(digits: str) -> int | float:
    number = int(digits) if len(digits) <= 20 else math.inf  # Python refuses to convert thousands of digits
    return number if abs(number) < 1 << 64 else float(digits)
