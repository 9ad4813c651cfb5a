"""Counts every record of an epoch, batch by batch: what the proof says without looking, looked at."""

from __future__ import annotations

import sys

import numpy as np
from tqdm import tqdm

from pipeline.audit.claims import Claim, Fault, check_all
from pipeline.audit.topology import Topology
from pipeline.resolved import ResolvedRequest

_BLOCK = 1 << 18  # rows that are counted together
_SHOW_AFTER = 2.0  # seconds until there is a bar


def count_epoch(source: ResolvedRequest, epoch: int, topology: Topology) -> list[Claim]:
    """Returns the claim that each record was counted once, with the first that was not.

    It takes 16 bytes a record of memory.
    """
    return check_all([("every record counted: once, by one replica", lambda: _count(source, epoch, topology))])


def _count(source: ResolvedRequest, epoch: int, topology: Topology) -> str:
    order, size = source.order, source.order.global_batch_size
    by_position = order.records_by_position(epoch)
    seen = np.full(order.num_records, -1, np.int64)  # row of the epoch, t * G + row, at which a record was seen
    block = max(1, _BLOCK // size)
    with tqdm(
        total=order.steps_per_epoch * size, unit=" rows", unit_scale=True, delay=_SHOW_AFTER, disable=_is_quiet()
    ) as bar:
        for first in range(0, order.steps_per_epoch, block):
            steps = range(first, min(first + block, order.steps_per_epoch))
            positions, real = (np.concatenate(arrays) for arrays in zip(*map(order.positions, steps), strict=True))
            rows = first * size + np.flatnonzero(real)
            _mark(seen, by_position, positions[real], rows, topology)
            bar.update(len(real))
    _check_batches(source, epoch, by_position)
    return _missing(source, seen)


def _mark(
    seen: np.ndarray, by_position: np.ndarray, positions: np.ndarray, rows: np.ndarray, topology: Topology
) -> None:
    outside = np.flatnonzero((positions < 0) | (positions >= len(by_position)))
    if outside.size:
        raise Fault(f"{_row(int(rows[outside[0]]), topology)}: position {positions[outside[0]]} is outside the epoch")
    records = by_position[positions]
    outside = np.flatnonzero((records < 0) | (records >= len(seen)))
    if outside.size:
        raise Fault(f"{_row(int(rows[outside[0]]), topology)}: record {records[outside[0]]} is outside the split")
    before = seen[records]
    seen[records] = rows
    again = np.flatnonzero((before >= 0) | (seen[records] != rows))
    if again.size:
        i = int(again[0])
        other = int(before[i]) if before[i] >= 0 else int(seen[records[i]])
        raise Fault(f"record {records[i]}: at {_row(int(rows[i]), topology)}, and at {_row(other, topology)}")


def _check_batches(source: ResolvedRequest, epoch: int, by_position: np.ndarray) -> None:
    """Checks that `Order.batch`, which finds its epoch by itself, gives what was counted: first and last step."""
    order = source.order
    for step in sorted({0, order.steps_per_epoch - 1}):
        positions, real = order.positions(step)
        records, batch_real = order.batch(epoch * order.steps_per_epoch + step)
        wrong = np.flatnonzero((records != by_position[positions]) | (real != batch_real))
        if wrong.size:
            i = int(wrong[0])
            raise Fault(f"step {step}, row {i}: batch gives record {records[i]}, not {by_position[positions[i]]}")


def _missing(source: ResolvedRequest, seen: np.ndarray) -> str:
    order = source.order
    missing = np.flatnonzero(seen < 0)
    dropped = order.num_records - order.steps_per_epoch * order.global_batch_size if order.remainder == "drop" else 0
    if len(missing) != dropped:
        file, row = source.selection.locate(int(missing[0]))
        raise Fault(
            f"record {missing[0]} (row {row} of {file}): at no step, as {len(missing)} in all; {dropped} may be"
        )
    return f"{len(seen) - len(missing):,} records once" + (f", {dropped:,} dropped" if dropped else "")


def _row(row: int, topology: Topology) -> str:
    step, row = divmod(row, topology.global_batch_size)
    return f"step {step}, row {row}, {topology.name(row * topology.replicas // topology.global_batch_size)}"


def _is_quiet() -> bool:
    return not sys.stderr.isatty()
