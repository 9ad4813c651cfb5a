"""Tables of which worker reads what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.commands.text import range_of, size_of, sizes_of, table
from pipeline.order.order import sharing_note
from pipeline.order.reading import Reading

_MOST_WORKERS = 16  # listed, half of them from the end
_MOST_FILES = 3  # of a worker, listed


def reading_lines(reading: Reading, list_all: bool) -> list[str]:
    """Returns the table of what each worker reads, and the sums below it.

    Args:
      reading: of a topology.
      list_all: whether to list every worker and every shard.
    """
    workers, half = reading.topology.workers, _MOST_WORKERS // 2
    shown = [w for w in range(workers) if list_all or workers <= _MOST_WORKERS or not half <= w < workers - half]
    rows = [_worker_row(reading, worker, list_all) for worker in shown]
    if len(shown) < workers:
        hidden = f"{workers - len(shown):,} more: --list_all"
        rows.insert(half, [("worker", "..."), *[("", "")] * (len(rows[0]) - 2), ("shards", hidden)])
    order = reading.order
    # A worker that has all streams, each in one window, keeps them from epoch to epoch.
    is_kept = order.windows == 1 and bool((np.diff(reading.streams) == order.streams).all())
    once = ", once per run" if is_kept else ""
    note = sharing_note(reading.spec, order, workers)
    return [
        "",
        *table(rows, left=("shards",)),
        f"read amplification {reading.amplification:.2f}: all workers together read "
        f"{size_of(reading.worker_bytes.sum())} of a split of {size_of(reading.split_bytes)}; a "
        f"worker reads {sizes_of(reading.worker_bytes)}{once}",
        *([f"note: {note}"] if note else []),
        f"memory: 2 x shuffle_bytes x a worker's streams / K, at most {size_of(reading.memory.max())} of decoded "
        f"images; the two largest windows of each stream take {size_of(reading.windows_memory.max())}",
        f"padding: {int(reading.padding.sum()):,} of the last step's {reading.spec.global_batch_size:,} rows "
        f"have weight 0; a worker has {range_of(reading.padding)} of them",
    ]


def comparison_lines(readings: Sequence[Reading]) -> list[str]:
    """Returns the table that compares topologies, one line each."""
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


def _span(first: int, stop: int) -> str:
    return f"{first:,}" if stop == first + 1 else f"{first:,}-{stop - 1:,}"
