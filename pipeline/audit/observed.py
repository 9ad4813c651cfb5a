"""Compares a run's key logs with the order, row by row, for every step that was logged."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline.audit.contract import Bools, Contract
from pipeline.commands.text import table
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import PathLike, folder
from pipeline.manifest.splits import Selection
from pipeline.order import key_log
from pipeline.order.key_log import SUFFIX, Entry, Header, Part, key_text
from pipeline.order.order import OrderSpec
from pipeline.records.tf_example import keys_of

_SHOW_AFTER = 2.0  # seconds until a progress bar appears
NOT_LOGGED = -1
_ROW = np.dtype([("record", np.int64), ("weight", np.float64), ("replica", np.int64), ("skipped", np.bool_)])
_MOST_EPOCHS = 20  # most epochs listed, from the end
_WRONG_ROWS = ("at another row", "unknown keys", "weights wrong")
_UNITS = (
    "note: the steps are units of a source under a schedule; which step of the run took each was not checked: for "
    "that, give all sources with their --mixture_schedule, or --model_dir"
)
_CLOSE = 1e-6  # relative tolerance, because logged weights are float32


def find(text: str) -> list[pathlib.Path]:
    """Returns the log files that a flag names, sorted: files, folders of *.jsonl and globs, separated by commas.

    Raises:
      UsageError: one of the names matches no file.
    """
    found: set[str] = set()
    for name in text.split(","):
        is_folder = os.path.isdir(name)
        matches = [name] if os.path.isfile(name) else glob.glob(f"{glob.escape(name)}/*{SUFFIX}" if is_folder else name)
        files = set(filter(os.path.isfile, matches))
        if not files:
            what = f"a folder without *{SUFFIX} files" if is_folder else "no such file, folder or glob"
            raise UsageError(f"--observed={name}: {what}; it must be logs that the trainer wrote with --log_keys")
        found |= files
    return sorted(map(pathlib.Path, found))


def read_keys(data_dir: PathLike, selection: Selection, key: str = "key") -> list[str]:
    """Returns the key of each record by its id, in the form used in key logs; `key` is the name of the key feature.

    Raises:
      DataError: a shard is missing, cut short or corrupt, or two records have the same key.
    """
    keys: list[str] = []
    with tqdm(total=selection.num_examples, unit=" keys", unit_scale=True, delay=_SHOW_AFTER, disable=None) as bar:
        for segment in selection.segments:
            keys += map(key_text, keys_of(folder(data_dir) / segment.shard.file, segment, key))
            bar.update(segment.num_examples)
    if len(set(keys)) < len(keys):
        seen: dict[str, int] = {}
        for record, name in enumerate(keys):
            if name in seen:
                one, other = (f"row {row} of {file}" for file, row in map(selection.locate, (seen[name], record)))
                raise DataError(f"key {name!r}: {one} and {other} both have it; a log cannot tell them apart")
            seen[name] = record
    return keys


class Difference(NamedTuple):
    """One difference between a run and the order.

    Attributes:
      step, row: step, and row of the global batch.
      text: description of the difference.
    """

    step: int
    row: int
    text: str


class Seen:
    """The rows that a run logged.

    Attributes:
      names: keys of the split by record id, followed by logged keys that are not in the split.
      steps: rows (G,) of each global step: `record`, an index into `names` or NOT_LOGGED, `weight`, `replica`, and
        `skipped`, whether the step was to be skipped.
      relogged: number of rows logged twice because of a resume.
      superseded: number of rows left out because a resume repeated their step without their unit.
      has_units: whether steps are units of a source because its schedule is not given.
      workers: (index, number of workers) of each header.
      differences: entries of the wrong size or in the wrong step of the schedule, and rows that a resumed run logged
        again with different records.
    """

    def __init__(
        self, spec: OrderSpec, keys: Sequence[str], step_of: Callable[[int], int | None] | None = None
    ) -> None:
        self._spec, self._size, self._step_of = spec, spec.global_batch_size, step_of
        self._ids = {key: record for record, key in enumerate(keys)}
        self.names = list(keys)
        self.steps: dict[int, NDArray[Any]] = {}
        self.relogged = self.superseded = 0
        self.has_units = False
        self.workers: set[tuple[int, int]] = set()
        self.differences: list[Difference] = []

    def add(self, where: str, header: Header, entry: Entry, is_superseded: bool = False) -> None:
        """Adds one replica's rows of a step, and a difference if an earlier line has other rows.

        Args:
          where: file and line of the entry.
          header: header in force for the entry.
          entry: rows to add.
          is_superseded: whether a resume repeated the step, possibly with another schedule or other skipped steps.
        """
        count = self._size // header.replicas
        start = entry.replica * count
        if len(entry.keys) != count:
            self._differs(entry, start, f"{len(entry.keys)} rows, not {count} ({where})")
            return
        taken = entry.step if entry.global_step is None else entry.global_step
        wanted = taken if self._step_of is None else self._step_of(entry.step)
        self.has_units |= self._step_of is None and entry.global_step is not None
        if wanted != taken:
            if is_superseded:
                self.superseded += count
                return
            by = "no step" if wanted is None else f"step {wanted}"
            self._differs(entry, start, f"the run took it in step {taken}, the schedule in {by} ({where})")
            return
        nothing = np.full(self._size, np.array((NOT_LOGGED, 0, 0, False), _ROW))
        before = self.steps.setdefault(entry.step, nothing)[start : start + count]
        rows = np.empty(count, _ROW)
        rows["record"], rows["weight"], rows["replica"] = [*map(self._id, entry.keys)], entry.weights, entry.replica
        rows["skipped"] = (header.spec if is_superseded else self._spec).is_skipped(entry.step)
        logged = before["record"] != NOT_LOGGED
        self.relogged += int(logged.sum())
        other_weight = (before["weight"] != rows["weight"]) & (before["skipped"] == rows["skipped"])
        wrong = logged & ((before["record"] != rows["record"]) | other_weight)
        for i in np.flatnonzero(wrong)[:1].tolist():
            first, later = (f"key {self.names[r['record']]!r}, weight {r['weight']:g}" for r in (before[i], rows[i]))
            self._differs(entry, start + i, f"done again with other rows: first {first}; later {later} ({where})")
        # The later rows may be in another worker's log, which was read first.
        before[:] = np.where(logged & is_superseded, before, rows)

    def _differs(self, entry: Entry, row: int, text: str) -> None:
        self.differences.append(Difference(entry.step, row, f"replica {entry.replica}: {text}"))

    def _id(self, key: str) -> int:
        if key not in self._ids:
            self._ids[key] = len(self.names)
            self.names.append(key)
        return self._ids[key]


def read_run(
    paths: Sequence[pathlib.Path],
    keys: Sequence[str],
    spec: OrderSpec,
    step_of: Callable[[int], int | None] | None = None,
) -> Seen:
    """Returns the rows of all logs of a run.

    Args:
      paths: log files, one per worker.
      keys: keys by record id.
      spec: order that all headers must have, except for the skipped steps, which are the last job's.
      step_of: function from a unit of this source in a schedule to the global step that takes it; None without a
        schedule.

    Raises:
      DataError: a log cannot be read, or belongs to different data or a different order.
    """
    seen = Seen(spec, keys, step_of)
    logs = [key_log.parts(path) for path in paths]
    jobs = _jobs(logs)
    for path, parts in zip(paths, logs, strict=True):
        again, since = iter(_done_again(parts, jobs)), math.inf
        for where, header, entry in key_log.read(path):
            if entry is not None:
                step = entry.step if entry.global_step is None else entry.global_step
                seen.add(where, header, entry, step >= since)
                continue
            since = next(again)
            differences = spec.differences(dataclasses.asdict(header.spec), 0).items()
            if differences:
                listed = ", ".join(f"{name}={there!r}, not {here!r}" for name, (here, there) in differences)
                raise DataError(f"{where}: a header of another order: {listed}; audit each run by itself")
            seen.workers.add((header.worker, header.workers))
    return seen


def _jobs(logs: Sequence[Sequence[Part]]) -> Sequence[Part]:
    """Returns the parts of the first worker's log, since every job has that worker; otherwise of the first log."""
    return next((parts for parts in logs if parts and parts[0].header.worker == 0), next(filter(None, logs), ()))


def _done_again(parts: Sequence[Part], jobs: Sequence[Part]) -> list[float]:
    """Returns, for each part of a log, the first global step that a later job repeated; infinity if none did."""
    worker, later = parts[0].header.worker if parts else 0, list(parts)
    numbers = list(range(len(parts)))
    # A job with fewer workers has no part in the logs of the others.
    own = [number for number, job in enumerate(jobs) if job.header.workers > worker]
    if [_topology(part) for part in parts] == [_topology(jobs[number]) for number in own]:
        numbers, later = own, list(jobs)
    return [min((p.start for p in later[n + 1 :] if p.start is not None), default=math.inf) for n in numbers]


def _topology(part: Part) -> tuple[int, int]:
    return part.header.workers, part.header.replicas


def header_of_run(paths: Sequence[pathlib.Path]) -> Header:
    """Returns the header of a run's first job, with the skipped steps of its last job.

    Raises:
      DataError: a log cannot be read, or none has a header.
    """
    jobs = _jobs([key_log.parts(path) for path in paths])
    if not jobs:
        raise DataError("no header: the run ended before it wrote one", path=paths[0])
    first, last = jobs[0].header, jobs[-1].header
    return dataclasses.replace(first, spec=dataclasses.replace(first.spec, skip_steps=last.spec.skip_steps))


@dataclasses.dataclass(frozen=True)
class Report:
    """Comparison of a run's key logs with the order.

    Attributes:
      epochs: {name: count} for each epoch that has a logged step.
      steps: global steps whose rows are all logged.
      unfinished: number of trailing steps cut off by a kill, which is not an error.
      seen: rows that the run logged.
      first: first difference, if any.
      differences: number of differences.
    """

    epochs: list[dict[str, int]]
    steps: list[int]
    unfinished: int
    seen: Seen
    first: Difference | None
    differences: int


def compare(contract: Contract, seen: Seen) -> Report:
    """Compares a run's rows with the contract."""
    steps = sorted(seen.steps)
    full = [step for step in steps if (seen.steps[step]["record"] != NOT_LOGGED).all()]
    gap, gaps = _gaps(seen, steps, full)
    found, count = [*seen.differences, *gap], len(seen.differences) + gaps
    epochs = []
    contract = dataclasses.replace(contract, skip_steps=())  # the logged rows have their own flag for that
    for epoch, of_epoch in itertools.groupby(steps, lambda step: step // contract.steps_per_epoch):
        counts, differences = _compare_epoch(contract, seen, list(of_epoch))
        epochs.append({"epoch": epoch, **counts})
        found += differences
        count += sum(counts[name] for name in _WRONG_ROWS)
    unfinished = sum(step > full[-1] for step in steps) if full else len(steps)
    first = min(found, key=lambda d: d[:2], default=None)
    return Report(epochs, full, unfinished, seen, first, count)


def _gaps(seen: Seen, steps: Sequence[int], full: Sequence[int]) -> tuple[list[Difference], int]:
    """Returns the first step that lacks rows although a later one is complete, and the number of such steps."""
    if not steps:
        return [Difference(0, 0, "the logs have no step")], 1
    last = full[-1] if full else steps[0]
    gaps = last + 1 - steps[0] - len(full)
    if not gaps:
        return [], 0
    step = next(wanted for wanted, step in zip(itertools.count(steps[0]), [*full, None]) if step != wanted)
    rows = seen.steps.get(step)
    row = 0 if rows is None else int((rows["record"] == NOT_LOGGED).argmax())
    # Usually because a worker's log was not given.
    logs = {workers: sum(1 for _, w in seen.workers if w == workers) for _, workers in seen.workers}
    lacking = [f"; there are logs of {n} of {workers} workers" for workers, n in logs.items() if n < workers]
    return [Difference(step, row, f"not in the logs{''.join(lacking[:1])}")], gaps


def _compare_epoch(contract: Contract, seen: Seen, steps: Sequence[int]) -> tuple[dict[str, int], list[Difference]]:
    """Returns counts of an epoch's logged rows and records, and the first difference, if any.

    `records once` and `repeated` count records that have a weight in one row and in several rows; `missing` counts
    records that should be in the logged rows but occur nowhere in the epoch.
    """
    expected, real = (np.stack(parts) for parts in zip(*map(contract.batch, steps), strict=True))
    rows = np.stack([seen.steps[step] for step in steps])
    records, weights, logged = rows["record"], rows["weight"], rows["record"] != NOT_LOGGED
    unknown, real, unskipped = records >= contract.num_stored, real & ~rows["skipped"], real
    wrong = (
        logged & ~unknown & (records != expected),
        unknown,
        logged & ~_weight_is_right(weights, unskipped, rows["skipped"]),
    )
    differences = []
    for t, row in np.argwhere(np.any(wrong, axis=0))[:1].tolist():
        want, found = (seen.names[ids[t, row]] for ids in (expected, records))
        kind = "real" if real[t, row] else "padding"
        text = f"expected key {want!r}, seen key {found!r}, weight {weights[t, row]:g} of a {kind} row"
        differences.append(Difference(steps[t], row, f"replica {rows['replica'][t, row]}: {text}"))
    times = np.bincount(records[logged & ~unknown & (weights != 0)], minlength=contract.num_stored)
    counts = {
        "steps": logged.all(axis=1),
        "records once": times == 1,
        "repeated": times > 1,
        "missing": times[expected[logged & real]] == 0,
        **dict(zip(_WRONG_ROWS, wrong, strict=True)),
    }
    return {name: int(mask.sum()) for name, mask in counts.items()}, differences


def _weight_is_right(weights: NDArray[Any], real: Bools, skipped: Bools) -> Bools:
    """Returns a mask of correct weights (n, G): 0 for padding and skipped rows, all 1 or all G / real rows for others.

    G / real rows is the weight under `mean`. A resume may skip a step whose rows, trained on before, are in a log.
    """
    mean = real.shape[1] / real.sum(1, keepdims=True)
    trained = real & ~skipped
    first = np.take_along_axis(weights, trained.argmax(1)[:, None], axis=1)
    want = np.where(np.isclose(first, mean, rtol=_CLOSE, atol=0), mean, 1.0)
    return np.isclose(weights, np.where(trained, want, 0.0), rtol=_CLOSE, atol=0)


def report_lines(report: Report, steps_per_epoch: int) -> list[str]:
    """Returns lines that describe what a run saw: totals, and a table with a row per epoch."""
    listed, seen = report.epochs[-_MOST_EPOCHS:], report.seen
    total = f" of {steps_per_epoch:,}"
    rows = [[(name, f"{n:,}{total if name == 'steps' else ''}") for name, n in epoch.items()] for epoch in listed]
    steps = f"{len(report.steps):,} steps" + (f", {report.steps[0]:,} to {report.steps[-1]:,}" if report.steps else "")
    return [
        "",
        f"observed: {steps}"
        + (f"; {report.unfinished:,} more were not finished" if report.unfinished else "")
        + (f"; {seen.relogged:,} rows were done again after a resume, and are equal" if seen.relogged else "")
        + (f"; {seen.superseded:,} rows left out, of a schedule that has changed" if seen.superseded else ""),
        *(
            [f"(the last {len(rows)} of {len(report.epochs):,} epochs; all were checked)"]
            if report.epochs != listed
            else []
        ),
        *table(rows),
        *([_UNITS] if seen.has_units else []),
    ]
