"""Checks what a run saw against the order: every row of every step that its logs have."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.contract import Bools, Contract
from pipeline.audit.seen import NOT_LOGGED, Difference, Seen

_WRONG_ROWS = ("at another row", "unknown keys", "weights wrong")
_CLOSE = 1e-6  # relative, of a float32 weight


@dataclasses.dataclass(frozen=True)
class Report:
    """What of a run was seen.

    Attributes:
      epochs: counts by name, of each epoch that the logs touch.
      steps: global steps that are in the logs in full.
      unfinished: steps after the last of these, that a kill cut: no fault.
      again: rows that were logged again after a resume.
      first: the first difference, if any.
      differences: how many there are.
    """

    epochs: list[dict[str, int]]
    steps: list[int]
    unfinished: int
    again: int
    first: Difference | None
    differences: int


def compare(contract: Contract, seen: Seen) -> Report:
    """Returns how a run's rows agree with the contract."""
    steps = sorted(seen.steps)
    full = [step for step in steps if (seen.steps[step]["record"] != NOT_LOGGED).all()]
    gap, gaps = _gaps(seen, steps, full)
    found, count = [*seen.differences, *gap], len(seen.differences) + gaps
    epochs = []
    for epoch, of_epoch in itertools.groupby(steps, lambda step: step // contract.steps_per_epoch):
        counts, differences = _epoch(contract, seen, list(of_epoch))
        epochs.append({"epoch": epoch, **counts})
        found += differences
        count += sum(counts[name] for name in _WRONG_ROWS)
    unfinished = sum(step > full[-1] for step in steps) if full else len(steps)
    return Report(epochs, full, unfinished, seen.again, min(found, key=lambda d: d[:2], default=None), count)


def _gaps(seen: Seen, steps: Sequence[int], full: Sequence[int]) -> tuple[list[Difference], int]:
    """Returns the first step before the last full one that the logs do not have in full, and how many there are."""
    if not steps:
        return [Difference(0, 0, "the logs have no step")], 1
    last = full[-1] if full else steps[0]
    gaps = last + 1 - steps[0] - len(full)
    first = next(wanted for wanted, step in zip(itertools.count(steps[0]), [*full, None]) if step != wanted)
    return [_gap(seen, first)] if gaps else [], gaps


def _gap(seen: Seen, step: int) -> Difference:
    rows = seen.steps.get(step)
    row = 0 if rows is None else int((rows["record"] == NOT_LOGGED).argmax())
    of = {workers: sum(1 for _, w in seen.workers if w == workers) for _, workers in seen.workers}
    lacking = [f"; there are logs of {n} of {workers} workers" for workers, n in of.items() if n < workers]
    return Difference(step, row, f"not in the logs{''.join(lacking[:1])}")


def _epoch(contract: Contract, seen: Seen, steps: Sequence[int]) -> tuple[dict[str, int], list[Difference]]:
    """Returns what the logs have of an epoch, and its first difference.

    `records once` and `repeated` are the records that have a weight at one row, at several; `missing` are those that
    should be in the logged rows but are nowhere in the epoch.
    """
    expected, real = (np.stack(parts) for parts in zip(*map(contract.batch, steps), strict=True))
    rows = np.stack([seen.steps[step] for step in steps])
    records, weights, logged = rows["record"], rows["weight"], rows["record"] != NOT_LOGGED
    unknown = records >= contract.num_records
    wrong = (
        logged & ~unknown & (records != expected),
        unknown,
        logged & ~_weight_is_right(weights, real),
    )
    differences = []
    for t, row in np.argwhere(np.any(wrong, axis=0))[:1].tolist():
        want, found = (seen.names[ids[t, row]] for ids in (expected, records))
        kind = "real" if real[t, row] else "padding"
        text = f"expected key {want!r}, seen key {found!r}, weight {weights[t, row]:g} of a {kind} row"
        differences.append(Difference(steps[t], row, f"replica {rows['replica'][t, row]}: {text}"))
    times = np.bincount(records[logged & ~unknown & (weights != 0)], minlength=contract.num_records)
    counts = {
        "steps": logged.all(axis=1),
        "records once": times == 1,
        "repeated": times > 1,
        "missing": times[expected[logged & real]] == 0,
        **dict(zip(_WRONG_ROWS, wrong, strict=True)),
    }
    return {name: int(mask.sum()) for name, mask in counts.items()}, differences


def _weight_is_right(weights: NDArray[Any], real: Bools) -> Bools:
    """Says which weights (n, G) are right: 0 of padding; of real rows all 1, or all G / real rows (`mean`)."""
    mean = real.shape[1] / real.sum(1, keepdims=True)
    first = np.take_along_axis(weights, real.argmax(1)[:, None], axis=1)
    want = np.where(np.isclose(first, mean, rtol=_CLOSE, atol=0), mean, 1.0)
    return np.isclose(weights, np.where(real, want, 0.0), rtol=_CLOSE, atol=0)
