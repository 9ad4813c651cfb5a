"""The known state of a run at one moment, for the page, for JSON, and for Prometheus."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.files.fields import finite
from trainer.journal import Event

LATE = 5.0  # seconds after which a heartbeat, sent about once per second, is missed
_LABEL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})  # escapes in Prometheus' text format


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of the job.

    Attributes that are not listed are those of `trainer.journal.ProcessReport` and `trainer.journal.Beat`.

    Attributes:
      state: `running`; `silent` if its heartbeats are missing; `gone` if its process is no longer running either; at
        the end `done`, `stopped` (rerun to resume), `failed`, or `ended` if its last heartbeat does not say how.
      heartbeat: writing time of its last heartbeat, in seconds since 1970; None before the first.
      seconds_per_step, waited_per_step, exchanged_per_step: times per step, as in `Beat`; an asynchronous worker's own
        steps count, and it exchanges nothing.
      steps: number of steps that an asynchronous worker has made; None for others.
    """

    name: str
    role: str
    index: int
    host: str = ""
    devices: tuple[str, ...] = ()
    pid: int | None = None
    state: str = "running"
    phase: str = ""
    step: int | None = None
    heartbeat: float | None = None
    restarts: int | None = None
    error: str | None = None
    examples_per_second: float | None = None
    seconds_per_step: float | None = None
    waited_per_step: float | None = None
    exchanged_per_step: float | None = None
    steps: int | None = None


@dataclasses.dataclass(frozen=True)
class Straggler:
    """The process that the others wait for, or that lags behind them.

    Attributes:
      name: name of the process.
      why: reason as text.
    """

    name: str
    why: str


@dataclasses.dataclass(frozen=True)
class EvaluationRow:
    """An evaluation.

    Attributes:
      step: global step.
      time: writing time, in seconds since 1970.
      values: loss and metrics of the split.
      rank: rank, 1 for the best; None if it is not ranked.
      kept: whether its checkpoint is in the folder for the best.
    """

    step: int
    time: float
    values: Mapping[str, float]
    rank: int | None
    kept: bool


@dataclasses.dataclass(frozen=True)
class WorkerReading:
    """The records of a data set that a worker reads in this epoch.

    Attributes:
      name: `worker 1`.
      rows: first row in each global batch and the row after the last; with a schedule, in each unit.
      shards: number of files that it opens.
      records: number of records that it reads in the epoch.
      seen: number of these read so far.
      bins: pair for each shard in the epoch's order, or each group of shards if there are many: share that the worker
        reads, and part of that share read so far.
    """

    name: str
    rows: tuple[int, int]
    shards: int
    records: int
    seen: int
    bins: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class DataReading:
    """The reading of a data set in this epoch, by worker.

    Attributes:
      name: data set and split, as text.
      epoch: number of the epoch, from 0.
      records: number of records in the split.
      seen: number of records of this epoch read so far.
      steps: number of steps of the epoch made so far, and in total; with a schedule, of the source's units.
      unit: number of rows in such a unit; None if these are the run's steps.
      rows: number of rows of this data set in the current step.
      files: number of its files.
      group: number of files in a group; 1 unless there are many.
      shards: file names in the epoch's order; for groups, the first file of each.
      workers: workers in order.
    """

    name: str
    epoch: int
    records: int
    seen: int
    steps: tuple[int, int]
    unit: int | None
    rows: int
    files: int
    group: int
    shards: tuple[str, ...]
    workers: tuple[WorkerReading, ...]


@dataclasses.dataclass(frozen=True)
class Change:
    """Flags that a resume has changed.

    Attributes:
      step: global step that the run was resumed from.
      time: seconds since 1970.
      flags: changed flags as (name, old value, new value).
    """

    step: int
    time: float
    flags: tuple[tuple[str, str, str], ...]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A run at one moment. Unknown values are None.

    Attributes:
      run: folder of the run.
      time: moment of this snapshot, seconds since 1970.
      state: `starting`, `training`, `waiting` (before a restart), `stopping`, `done`, `stopped`, `failed`; `silent`
        without signs of life or of an end; `gone` if a process died without a message; `nothing` if there is no run
        yet; `unknown` if the files contain something that the page cannot show.
      kind: strategy of the run.
      step, last_step, saved_step, restarts, max_restarts, error, elastic, lost: values of these names in
        `trainer.journal.JobReport`.
      epoch, epochs: number of passes over the training data, so far and in total.
      loss, accuracy: means over the epoch so far.
      examples_per_second, input_wait: speed, and share of the time spent waiting for batches, over the last seconds.
      seconds_left: seconds until the last step at this speed.
      members: processes of the job.
      straggler: process that the others wait for; None if there is none.
      ledger: tally of an asynchronous job's steps, up to its last pause.
      evaluations: evaluation results, by step.
      ranked_by: metric that ranks them.
      checkpoints: steps of the checkpoints in the run's folder.
      data: reading of the data sets in this epoch.
      data_note: reason why the reading is unknown, or a note about it.
      flags: flag values as text, by name.
      changes: flags changed by resumes.
      events: events in order.
      images, images_step: number of augmented images in TensorBoard's files, and their step.
      problems: text on files that are missing, partial or damaged.
    """

    run: str
    time: float
    state: str
    kind: str | None = None
    step: int | None = None
    last_step: int | None = None
    saved_step: int | None = None
    epoch: float | None = None
    epochs: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    examples_per_second: float | None = None
    input_wait: float | None = None
    seconds_left: float | None = None
    restarts: int | None = None
    max_restarts: int | None = None
    error: str | None = None
    elastic: tuple[int, int] | None = None
    lost: tuple[int, ...] = ()
    members: tuple[Member, ...] = ()
    straggler: Straggler | None = None
    ledger: Mapping[str, int] = dataclasses.field(default_factory=dict)
    evaluations: tuple[EvaluationRow, ...] = ()
    ranked_by: str | None = None
    checkpoints: tuple[int, ...] = ()
    data: tuple[DataReading, ...] = ()
    data_note: str = ""
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    events: tuple[Event, ...] = ()
    images: int = 0
    images_step: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether the run may still continue."""
        return self.state in ("starting", "training", "waiting", "stopping")


def as_json(snapshots: Sequence[Snapshot]) -> str:
    """Returns the runs as JSON: an object with the list `runs`; numbers that JSON lacks become null."""
    return json.dumps({"version": 1, "runs": finite([dataclasses.asdict(one) for one in snapshots])}, indent=1)


def straggler_of(members: Sequence[Member], is_synchronous: bool) -> Straggler | None:
    """Returns the process that holds up a job, if any.

    In a synchronous job all workers wait for the slowest, so they all have the same speed. They differ in how long they
    wait for their own input and for all-reduces: the slowest waits least for all-reduces. (This holds for the
    all-reduces of weights and gradients together: a worker that gets one result later than another begins the next step
    that much later, and is waited for there.) An asynchronous worker is slow on its own.
    """
    silent = [one for one in members if one.state == "silent"]
    if silent and len(members) > 1:
        first = min(silent, key=lambda one: one.heartbeat or 0.0)
        return Straggler(first.name, "gives no sign of life" + ("; the others wait for it" if is_synchronous else ""))
    running = [one for one in members if one.state == "running"]
    if is_synchronous:
        of_input, of_sums = _last_of(running, "waited_per_step", 1), _last_of(running, "exchanged_per_step", -1)
        if of_input and (not of_sums or of_sums.name == of_input.name or of_sums.lag < of_input.lag):
            name, lag, text = *of_input, "waits for its input {} longer than the next"
        elif of_sums:
            name, lag, text = *of_sums, "has its gradients {} later than the next"
        else:
            return None
        return Straggler(name, f"{text.format(f'{lag * 1e3:,.1f} ms per step')}; the others wait for it")
    speeds = [(one.seconds_per_step, one) for one in running if one.steps and one.seconds_per_step]
    if len(speeds) > 1:
        slow, slowest = max(speeds, key=lambda pair: pair[0])
        fast = min(speed for speed, _ in speeds)
        if slow > 1.2 * fast:
            return Straggler(slowest.name, f"needs {slow / fast:.1f} times as long for a step as the fastest worker")
    return None


class _Last(NamedTuple):
    """The slowest process, and the seconds per step by which it lags behind the next."""

    name: str
    lag: float


def _last_of(running: Sequence[Member], field: str, sign: int) -> _Last | None:
    """Returns the process with the most (for sign -1, the least) of some time, if the lead over the next is large.

    It compares shares of a step: steps take equally long in all processes, which average over different seconds.
    """
    shares = sorted(
        (sign * getattr(one, field) / one.seconds_per_step, one.name, one.seconds_per_step)
        for one in running
        if getattr(one, field) is not None and one.seconds_per_step
    )
    if len(shares) < 2:
        return None
    (second, *_), (last, name, seconds) = shares[-2:]
    # Less than a tenth of the step is noise.
    return _Last(name, (last - second) * seconds) if last - second > 0.1 else None


_GAUGES = (
    ("step", "step", "Global step that the run has reached."),
    ("last_step", "last_step", "Global step at which training ends."),
    ("saved_step", "saved_step", "Global step of the newest checkpoint."),
    ("epoch", "epoch", "Passes over the training data."),
    ("loss", "loss", "Mean training loss over the epoch so far."),
    ("accuracy", "accuracy", "Mean training accuracy over the epoch so far."),
    ("examples_per_second", "examples_per_second", "Speed of the whole job."),
    ("input_wait_ratio", "input_wait", "Share of the time in which steps wait for their input."),
    ("restarts", "restarts", "Restarts of the group of all processes."),
)
_OF_MEMBERS = (
    ("member_step", "step", "Global step that a process has reached."),
    ("member_heartbeat_timestamp_seconds", "heartbeat", "When a process wrote its last heartbeat."),
    ("member_restarts", "restarts", "How often a process was started again."),
    ("member_seconds_per_step", "seconds_per_step", "Seconds of a step, as a process measures them."),
    ("member_waited_per_step_seconds", "waited_per_step", "The part of them in which it waits for its own input."),
    (
        "member_exchanged_per_step_seconds",
        "exchanged_per_step",
        "The part of them in which it waits for the all-reduce of all workers, partly while it computes.",
    ),
    ("member_steps", "steps", "Steps that an asynchronous worker has made by itself."),
)


def as_metrics(snapshots: Sequence[Snapshot]) -> str:
    """Returns the runs in Prometheus' text format, version 0.0.4."""
    return "".join(f"{line}\n" for line in _metric_lines(snapshots))


def _metric_lines(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    for name, field, text in _GAUGES:
        yield from _gauge(name, text, (({"run": one.run}, getattr(one, field)) for one in snapshots))
    states = (({"run": one.run, "state": one.state}, 1) for one in snapshots)
    yield from _gauge("state", "1 for the state that the run is in.", states)
    each = [(one, member) for one in snapshots for member in one.members]
    labels = [{"run": one.run, "member": member.name, "host": member.host} for one, member in each]
    running = (int(member.state == "running") for _, member in each)
    yield from _gauge("member_up", "Whether a process runs and gives signs of life.", zip(labels, running, strict=True))
    for name, field, text in _OF_MEMBERS:
        values = (getattr(member, field) for _, member in each)
        yield from _gauge(name, text, zip(labels, values, strict=True))
    evaluated = [
        ({"run": one.run, "metric": name}, value)
        for one in snapshots
        for name, value in (one.evaluations[-1].values.items() if one.evaluations else ())
    ]
    yield from _gauge("evaluation", "Loss and metrics of the last evaluation.", evaluated)


def _gauge(name: str, text: str, values: Iterable[tuple[Mapping[str, str], float | None]]) -> Iterator[str]:
    lines = []
    for labels, value in values:
        if value is not None:
            inside = ",".join(f'{label}="{of.translate(_LABEL)}"' for label, of in labels.items())
            number = repr(float(value)) if math.isfinite(value) else "NaN"
            lines.append(f"stepfeed_{name}{{{inside}}} {number}")
    if lines:
        yield from (f"# HELP stepfeed_{name} {text}", f"# TYPE stepfeed_{name} gauge", *lines)
