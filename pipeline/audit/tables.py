"""The audit as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.audit.observed import Report
from pipeline.audit.reading import Reading
from pipeline.audit.topology import Topology
from pipeline.commands.text import count_of, range_of, size_of, sizes_of, table
from pipeline.order.order import Order
from pipeline.order.sharing import sharing_note
from pipeline.resolved import ResolvedRequest

GIVEN = "given  the shards hold what the manifest says: beam_jobs.validate checks that"
_MOST_WORKERS = 16  # listed, half of them from the end
_MOST_FILES = 3  # of a worker, listed
_MOST_EPOCHS = 20  # of a run, listed: the last


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


def reading_lines(reading: Reading, list_all: bool) -> list[str]:
    """Returns who reads what: one line per worker, and the sum."""
    workers, half = reading.topology.workers, _MOST_WORKERS // 2
    shown = [w for w in range(workers) if list_all or workers <= _MOST_WORKERS or not half <= w < workers - half]
    rows = [_worker_row(reading, worker, list_all) for worker in shown]
    if len(shown) < workers:
        hidden = f"{workers - len(shown):,} more: --list_all"
        rows.insert(half, [("worker", "..."), *[("", "")] * (len(rows[0]) - 2), ("shards", hidden)])
    once = ", once per run" if _is_kept(reading) else ""
    note = sharing_note(reading.source.spec, reading.source.order, workers)
    return [
        "",
        *table(rows, left=("shards",)),
        f"read amplification {reading.amplification:.2f}: all workers together read "
        f"{size_of(reading.worker_bytes.sum())} of a split of {size_of(reading.split_bytes)}; a "
        f"worker reads {sizes_of(reading.worker_bytes)}{once}",
        *([f"note: {note}"] if note else []),
        f"memory: 2 x shuffle_bytes x a worker's streams / K, at most {size_of(reading.memory.max())} of decoded "
        f"images; the two largest windows of each stream take {size_of(reading.windows_memory.max())}",
        f"padding: {int(reading.padding.sum()):,} of the last step's {reading.source.spec.global_batch_size:,} rows "
        f"have weight 0; a worker has {range_of(reading.padding)} of them",
    ]


def comparison_lines(readings: Sequence[Reading]) -> list[str]:
    """Returns how what is read differs between topologies."""
    rows = [
        [
            ("topology", str(r.topology)),
            ("rows per replica", f"{r.topology.global_batch_size // r.topology.replicas:,}"),
            ("streams per worker", range_of(np.diff(r.streams)[:, 0])),
            ("shards per worker", range_of(np.diff(r.worker_shards)[:, 0])),
            ("read per worker", sizes_of(r.worker_bytes)),
            ("read in all", size_of(r.worker_bytes.sum())),
            ("amplification", f"{r.amplification:.2f}"),
            ("memory per worker", sizes_of(r.memory)),
        ]
        for r in readings
    ]
    return ["", *table(rows)]


def report_lines(report: Report, steps_per_epoch: int) -> list[str]:
    """Returns what a run saw, one line per epoch."""
    listed = report.epochs[-_MOST_EPOCHS:]
    total = f" of {steps_per_epoch:,}"
    rows = [[(name, f"{n:,}{total if name == 'steps' else ''}") for name, n in epoch.items()] for epoch in listed]
    steps = f"{len(report.steps):,} steps" + (f", {report.steps[0]:,} to {report.steps[-1]:,}" if report.steps else "")
    return [
        "",
        f"observed: {steps}"
        + (f"; {report.unfinished:,} more were not finished" if report.unfinished else "")
        + (f"; {report.again:,} rows were done again after a resume, and are equal" if report.again else ""),
        *(
            [f"(the last {len(rows)} of {len(report.epochs):,} epochs; all were checked)"]
            if report.epochs != listed
            else []
        ),
        *table(rows),
    ]


def verdict(order: Order, topology: Topology, is_complete: bool) -> str:
    """Returns the line of a proof that holds; if not `is_complete`, of what was checked of it."""
    if not is_complete:
        return "no fault in what was checked; --exhaustive replays every window and counts every record"
    seen = min(order.num_records, order.steps_per_epoch * order.global_batch_size)
    each = f"each of {seen:,} records" if seen == order.num_records else f"{seen:,} of {order.num_records:,} records"
    return (
        f"proof holds: {each} once per epoch, by one replica; {order.steps_per_epoch:,} full steps on each of "
        f"{topology.replicas:,} replicas"
    )


def _worker_row(reading: Reading, worker: int, list_all: bool) -> list[tuple[str, str]]:
    files = [name.split("-of-")[0] for name in reading.shards_of(worker)]
    listed = files if list_all else files[:_MOST_FILES]
    more = f" and {len(files) - len(listed):,} more" if len(files) > len(listed) else ""
    return [
        ("worker", f"{worker:,}"),
        ("rows", _span(*reading.topology.worker_rows()[worker])),
        ("streams", _span(*reading.streams[worker])),
        ("records", f"{np.diff(reading.positions[worker])[0]:,}"),
        ("reads", size_of(reading.worker_bytes[worker])),
        ("of the split", f"{reading.worker_bytes[worker] / reading.split_bytes:.1%}"),
        ("memory", size_of(reading.memory[worker])),
        ("padding", f"{reading.padding[worker]:,}"),
        ("shards", f"{len(files):,}: {' '.join(listed)}{more}"),
    ]


def _is_kept(reading: Reading) -> bool:
    """Whether every worker has all streams in one window, which it keeps from epoch to epoch."""
    order = reading.source.order
    return order.windows == 1 and bool((np.diff(reading.streams) == order.streams).all())


def _span(first: int, stop: int) -> str:
    return f"{first:,}" if stop == first + 1 else f"{first:,}-{stop - 1:,}"
