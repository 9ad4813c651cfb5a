"""Draws the picture of docs/order.md: where the records of an epoch go. Where they go is computed by the contract.

python docs/order.py
"""

from __future__ import annotations

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from strategies import GREY, LINE, rect, svg, text  # noqa: E402

from pipeline.audit.contract import Contract  # noqa: E402

CONTRACT = Contract(
    counts=(7, 5, 6, 4), global_batch_size=6, streams=2, windows=2, remainder="pad", seed=0, training=True
)
REPLICAS = 3
COLOURS = ("#bcd7f5", "#c9e6c4", "#ffe2a8", "#f3c5c0")  # of the shards
CELL, GAP, LEFT = 30, 12, 16


def cell(x: float, y: float, record: int, real: bool = True) -> list[str]:
    """Returns a record in the colour of its shard; padding is dashed."""
    shard = sum(record >= sum(CONTRACT.counts[: i + 1]) for i in range(len(CONTRACT.counts)))
    border = 'stroke="#666666"' if real else 'stroke="#666666" stroke-dasharray="3 2" fill-opacity="0.35"'
    label = text(x + CELL / 2, y + 19, str(record), 13, 'text-anchor="middle"', "#222222" if real else GREY)
    return [rect(x + 1, y, CELL - 2, CELL - 4, COLOURS[shard], border), label]


def row(y: float, title: str, groups: list[tuple[str, list[int]]]) -> list[str]:
    """Returns groups of records side by side, under a title; each group has a name below it."""
    elements, x = [text(LEFT, y, title, 14, 'font-weight="bold"')], float(LEFT)
    for name, records in groups:
        for i, record in enumerate(records):
            elements += cell(x + CELL * i, y + 12, record)
        elements.append(text(x + 2, y + 54, name, 12, fill=GREY))
        x += CELL * len(records) + GAP
    return elements


def steps(y: float) -> list[str]:
    """Returns the global batches of the epoch, a column each, and whose rows they are."""
    says = f"3 to 5. steps: q = {CONTRACT.rows_per_stream} rows of each stream, and 2 rows for each of 3 replicas"
    elements = [text(LEFT, y, says, 14, 'font-weight="bold"')]
    left, top, size = LEFT + 120, y + 36, CONTRACT.global_batch_size
    elements.append(text(LEFT, top - 8, "step of the epoch", 12, fill=GREY))
    for step in range(CONTRACT.steps_per_epoch):
        records, real = CONTRACT.batch(step)
        x = left + step * (CELL + GAP)
        elements.append(text(x + CELL / 2, top - 8, f"{step}", 12, 'text-anchor="middle"', GREY))
        for i in range(size):
            elements += cell(x, top + CELL * i, int(records[i]), bool(real[i]))
    end = left + CONTRACT.steps_per_epoch * (CELL + GAP)
    for k in range(CONTRACT.streams):
        middle = top + CELL * CONTRACT.rows_per_stream * (k + 0.5)
        elements.append(text(LEFT, middle + 3, f"stream {k}", 13))
    for r in range(REPLICAS):
        first, stop = CONTRACT.replica_rows(r, REPLICAS)
        line = f'x1="{end}" y1="{top + CELL * first + 2}" x2="{end}" y2="{top + CELL * stop - 6}"'
        elements.append(f'<line {line} stroke="{LINE}" stroke-width="3"/>')
        elements.append(text(end + 10, top + CELL * (first + stop) / 2 + 3, f"replica {r}", 13))
    says = ("dashed: padding,", "a record again,", "with weight 0")
    return [
        *elements,
        *(text(end + 100, top + CELL * 5 + 17 * (i - 1), words, 12, fill=GREY) for i, words in enumerate(says)),
    ]


def draw() -> str:
    """Returns the picture."""
    contract, epoch = CONTRACT, CONTRACT.epoch(0)
    firsts = [sum(contract.counts[:shard]) for shard in range(len(contract.counts))]
    shards = [(f"shard {s}", list(range(firsts[s], firsts[s] + n))) for s, n in enumerate(contract.counts)]
    windows = []
    for stream in range(contract.streams):
        begin, _ = contract.stream_bounds(stream)
        for window in range(contract.windows):
            first, stop = (at - begin for at in contract.window_bounds(stream, window))
            records, _ = epoch.stream(stream, first, stop)
            windows.append((f"stream {stream}, window {window}", [int(record) for record in records]))
    elements = [
        *row(24, "a split: 22 records in 4 shards", shards),
        *row(104, "1. an epoch lays the shards end to end, permuted", [shards[s] for s in epoch.shard_order]),
        *row(184, "2. streams own parts of it, cut into windows; each window is permuted", windows),
        *steps(266),
    ]
    return svg(760, 500, elements)


if __name__ == "__main__":
    (FOLDER / "order.svg").write_text(draw(), encoding="utf-8")
    print("docs/order.svg", file=sys.stderr)
