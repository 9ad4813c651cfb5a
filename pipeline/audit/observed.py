"""Checks what a run saw against the order: every row of every step that its logs have."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.contract import I64, Contract
from pipeline.audit.seen import NOT_LOGGED, Difference, Seen

_CLOSE = 1e-6  # relative, of a float32 weight


@dataclasses.dataclass(frozen=True)
class EpochReport:
    """What of one epoch was seen.

    Attributes:
      epoch: its number.
      steps: that are in the logs in full.
      once, repeated: records seen with a weight at one row, at more.
      missing: records that the logged rows should have had, seen nowhere in the epoch.
      elsewhere: rows with another record of the split than expected.
      unknown: rows with a key of no record of the split.
      weights: rows with a wrong weight.
    """

    epoch: int
    steps: int
    once: int
    repeated: int
    missing: int
    elsewhere: int
    unknown: int
    weights: int


@dataclasses.dataclass(frozen=True)
class Report:
    """What of a run was seen.

    Attributes:
      epochs: those that the logs touch.
      steps: global steps that are in the logs in full.
      unfinished: steps after the last of these, that a kill cut: no fault.
      again: rows that were logged again after a resume.
      first: the first difference, if any.
      differences: how many there are.
    """

    epochs: list[EpochReport]
    steps: I64
    unfinished: int
    again: int
    first: Difference | None
    differences: int


def compare(contract: Contract, seen: Seen) -> Report:
    """Returns how a run's rows agree with the contract."""
    steps = np.array(sorted(seen.records), np.int64)
    full = np.array([step for step in steps.tolist() if (seen.records[step] != NOT_LOGGED).all()], np.int64)
    found, count = list(seen.differences), len(seen.differences)
    gap, gaps = _gaps(seen, steps, full)
    found += gap
    epochs = steps // contract.steps_per_epoch
    reports = []
    for epoch in np.unique(epochs).tolist():
        report, differences = _epoch(contract, seen, epoch, steps[epochs == epoch], full)
        reports.append(report)
        found += differences
    count += gaps + sum(report.elsewhere + report.unknown + report.weights for report in reports)
    first = min(found, key=lambda d: (d.step, d.row), default=None)
    unfinished = int((steps > full[-1]).sum()) if full.size else len(steps)
    return Report(reports, full, unfinished, seen.again, first, count)


def _gaps(seen: Seen, steps: I64, full: I64) -> tuple[list[Difference], int]:
    """The first step before the last full one that the logs have not in full, and how many; of none full, the first."""
    if not steps.size:
        return [Difference(0, 0, "the logs have no step")], 1
    if not full.size:
        return [_gap(seen, int(steps[0]))], 1
    gaps = int(full[-1] - steps[0]) + 1 - len(full)
    if not gaps:
        return [], 0
    off = np.flatnonzero(full != steps[0] + np.arange(len(full)))
    return [_gap(seen, int(steps[0] + off[0]))], gaps


def _gap(seen: Seen, step: int) -> Difference:
    rows = seen.records.get(step)
    row = 0 if rows is None else int(np.flatnonzero(rows == NOT_LOGGED)[0])
    of = {workers: sum(1 for _, w in seen.workers if w == workers) for _, workers in seen.workers}
    lacking = [f"; there are logs of {n} of {workers} workers" for workers, n in of.items() if n < workers]
    return Difference(step, row, f"not in the logs{''.join(lacking[:1])}")


def _epoch(contract: Contract, seen: Seen, epoch: int, steps: I64, full: I64) -> tuple[EpochReport, list[Difference]]:
    batches = [contract.batch(step) for step in steps.tolist()]
    expected, real = np.stack([records for records, _ in batches]), np.stack([mask for _, mask in batches])
    records = np.stack([seen.records[step] for step in steps.tolist()])
    weights = np.stack([seen.weights[step] for step in steps.tolist()])
    logged = records != NOT_LOGGED
    other, unknown = logged & (records >= 0) & (records != expected), logged & (records < NOT_LOGGED)
    wrong_weight = logged & ~_weight_is_right(weights, real)
    differences = []
    for t, row in np.argwhere(other | unknown | wrong_weight)[:1].tolist():
        replica = f"replica {seen.replicas[int(steps[t])][row]}"
        keys = f"expected key {seen.keys[expected[t, row]]!r}, seen key {seen.key(int(records[t, row]))!r}"
        text = f"{replica}: {keys}, weight {weights[t, row]:g} of a {'real' if real[t, row] else 'padding'} row"
        differences.append(Difference(int(steps[t]), row, text))
    times = np.bincount(records[(records >= 0) & (weights != 0)], minlength=contract.num_records)
    report = EpochReport(
        epoch=epoch,
        steps=int(np.isin(steps, full).sum()),
        once=int((times == 1).sum()),
        repeated=int((times > 1).sum()),
        missing=int((times[expected[logged & real]] == 0).sum()),
        elsewhere=int(other.sum()),
        unknown=int(unknown.sum()),
        weights=int(wrong_weight.sum()),
    )
    return report, differences


def _weight_is_right(weights: NDArray[np.floating], real: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Says which weights (n, G) are right: 0 of padding; of real rows all 1, or all G / real rows (`mean`)."""
    mean = real.shape[1] / real.sum(1, keepdims=True)
    first = np.take_along_axis(weights, real.argmax(1)[:, None], axis=1)
    want = np.where(np.isclose(first, mean, rtol=_CLOSE, atol=0), mean, 1.0)
    return np.isclose(weights, np.where(real, want, 0.0), rtol=_CLOSE, atol=0)
