"""The audit as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.audit.claims import Claim
from pipeline.audit.observed import Report
from pipeline.audit.reading import Reading
from pipeline.audit.topology import Topology
from pipeline.commands.text import count_of, table
from pipeline.order.order import Order
from pipeline.resolved import ResolvedRequest

_MOST_WORKERS = 16  # listed, half of them from the end
_MOST_FILES = 3  # of a worker, listed
_MOST_EPOCHS = 20  # of a run, listed: the last
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_LABELS = {True: "holds", False: "FAILS", None: "open "}
_STORED = "the shards hold what the manifest says: beam_jobs.validate checks that"


def heading(source: ResolvedRequest, epoch: int, topology: Topology) -> list[str]:
    """Returns what is audited."""
    spec, order, segments = source.spec, source.order, source.selection.segments
    kind = f"training, seed {spec.seed}, epoch {epoch}" if spec.training else f"evaluation, epoch {epoch}"
    streams = f"{count_of(spec.streams, 'stream')} of {count_of(order.rows_per_stream, 'row')}"
    return [
        f"{source.manifest.dataset}, split {spec.split}: {count_of(order.num_records, 'record')} in "
        f"{count_of(len(segments), 'shard')}",
        f"order: {kind}, global batch {spec.global_batch_size:,}, {streams}, shuffle_bytes {spec.shuffle_bytes:,}, "
        f"remainder {spec.remainder}",
        f"topology: {topology}",
    ]


def claim_lines(claims: Sequence[Claim]) -> list[str]:
    """Returns the claims, each with what was checked, and what they rest on."""
    lines = [""]
    for claim in claims:
        lines += [f"{_LABELS[claim.holds]}  {claim.text}", f"       {claim.evidence}"]
    return [*lines, f"given  {_STORED}"]


def reading_lines(reading: Reading, list_all: bool) -> list[str]:
    """Returns who reads what: a line a worker, and the sum."""
    scale, unit = scale_of(reading.split_bytes)
    memory_scale, memory_unit = scale_of(int(reading.memory.max()))
    header = [
        "worker",
        "rows",
        "streams",
        "records",
        unit,
        "of the split",
        f"memory {memory_unit}",
        "padding",
        "shards",
    ]
    workers = reading.topology.workers
    shown = [w for w in range(workers) if list_all or _is_shown(w, workers)]
    rows = [_worker_row(reading, w, list_all, scale, memory_scale) for w in shown]
    if len(shown) < workers:
        rows.insert(_MOST_WORKERS // 2, ["...", *[""] * (len(header) - 2), f"{workers - len(rows):,} more: --list_all"])
    return [
        "",
        *table(header, rows, left=(0, len(header) - 1)),
        f"read amplification {reading.amplification:.2f}: all workers together read "
        f"{reading.worker_bytes.sum() / scale:,.1f} {unit} of a split of {reading.split_bytes / scale:,.1f} {unit}; a "
        f"worker reads {_range(reading.worker_bytes / scale)} {unit}{', once in a run' if _is_kept(reading) else ''}",
        f"memory: 2 x shuffle_bytes x a worker's streams / K, at most {reading.memory.max() / memory_scale:,.1f} "
        f"{memory_unit} of decoded images; the two largest windows of each stream take "
        f"{reading.windows_memory.max() / memory_scale:,.1f} {memory_unit}",
        f"padding: {int(reading.padding.sum()):,} of the last step's {reading.source.spec.global_batch_size:,} rows "
        f"have weight 0; a worker has {_range(reading.padding, 0)} of them",
    ]


def comparison_lines(readings: Sequence[Reading]) -> list[str]:
    """Returns how what is read differs between topologies."""
    scale, unit = scale_of(readings[0].split_bytes)
    memory_scale, memory_unit = scale_of(max(int(r.memory.max()) for r in readings))
    header = ["topology", "rows a replica", "streams a worker", "shards a worker", f"{unit} a worker", f"{unit} in all"]
    header += ["amplification", f"memory {memory_unit} a worker"]
    rows = [
        [
            str(r.topology),
            f"{r.topology.global_batch_size // r.topology.replicas:,}",
            _range(r.streams[:, 1] - r.streams[:, 0], 0),
            _range(r.worker_shards[:, 1] - r.worker_shards[:, 0], 0),
            _range(r.worker_bytes / scale),
            f"{r.worker_bytes.sum() / scale:,.1f}",
            f"{r.amplification:.2f}",
            _range(r.memory / memory_scale),
        ]
        for r in readings
    ]
    return ["", *table(header, rows)]


def scale_of(num_bytes: int) -> tuple[int, str]:
    """Returns the unit to show so many bytes in: its bytes and its name."""
    power = min(len(_UNITS) - 1, max(0, num_bytes.bit_length() - 1) // 10)
    return 1 << 10 * power, _UNITS[power]


def report_lines(report: Report, steps_per_epoch: int) -> list[str]:
    """Returns what a run saw, a line an epoch."""
    header = [
        "epoch",
        "steps",
        "records once",
        "repeated",
        "missing",
        "at another row",
        "unknown keys",
        "weights wrong",
    ]
    rows = [
        [
            f"{e.epoch:,}",
            f"{e.steps:,} of {steps_per_epoch:,}",
            *(f"{count:,}" for count in (e.once, e.repeated, e.missing, e.elsewhere, e.unknown, e.weights)),
        ]
        for e in report.epochs[-_MOST_EPOCHS:]
    ]
    hidden = len(report.epochs) - len(rows)
    steps = f"{len(report.steps):,} steps" + (
        f", {report.steps[0]:,} to {report.steps[-1]:,}" if report.steps.size else ""
    )
    return [
        "",
        f"observed: {steps}"
        + (f"; {report.unfinished:,} more were not finished" if report.unfinished else "")
        + (f"; {report.again:,} rows were done again after a resume, and are equal" if report.again else ""),
        *([f"(the last {len(rows)} of {len(report.epochs):,} epochs; all were checked)"] if hidden else []),
        *(table(header, rows) if rows else []),
    ]


def verdict(order: Order, topology: Topology, is_complete: bool) -> str:
    """Returns the line of a proof that holds; if not `is_complete`, of the windows that were replayed."""
    if not is_complete:
        return "no fault in the windows that were replayed; --exhaustive replays all of them and counts every record"
    seen = min(order.num_records, order.steps_per_epoch * order.global_batch_size)
    each = f"each of {seen:,} records" if seen == order.num_records else f"{seen:,} of {order.num_records:,} records"
    return (
        f"proof holds: {each} once an epoch, by one replica; {order.steps_per_epoch:,} full steps on each of "
        f"{topology.replicas:,} replicas"
    )


def _is_shown(worker: int, workers: int) -> bool:
    if workers <= _MOST_WORKERS:
        return True
    return worker < _MOST_WORKERS // 2 or worker >= workers - _MOST_WORKERS // 2


def _worker_row(reading: Reading, worker: int, list_all: bool, scale: int, memory_scale: int) -> list[str]:
    rows, streams = reading.topology.worker_rows()[worker].tolist(), reading.streams[worker].tolist()
    positions = reading.positions[worker].tolist()
    files = [name.split("-of-")[0] for name in reading.shards_of(worker)]
    listed = files if list_all else files[:_MOST_FILES]
    more = f" and {len(files) - len(listed):,} more" if len(files) > len(listed) else ""
    return [
        f"{worker:,}",
        _span(rows),
        _span(streams),
        f"{positions[1] - positions[0]:,}",
        f"{reading.worker_bytes[worker] / scale:,.1f}",
        f"{reading.worker_bytes[worker] / reading.split_bytes:.1%}",
        f"{reading.memory[worker] / memory_scale:,.1f}",
        f"{reading.padding[worker]:,}",
        f"{len(files):,}: {' '.join(listed)}{more}",
    ]


def _is_kept(reading: Reading) -> bool:
    """Whether every worker has all streams in one window, which it keeps from epoch to epoch."""
    order = reading.source.order
    return order.windows == 1 and bool((np.diff(reading.streams) == order.streams).all())


def _span(bounds: Sequence[int]) -> str:
    first, stop = bounds
    return f"{first:,}" if stop == first + 1 else f"{first:,}-{stop - 1:,}"


def _range(values: object, digits: int = 1) -> str:
    low, high = (f"{value:,.{digits}f}" for value in (values.min(), values.max()))  # type: ignore[attr-defined]
    return low if low == high else f"{low} to {high}"
