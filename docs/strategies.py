"""Draws the pictures of docs/strategies.md: who waits for whom, and which process holds what.

python docs/strategies.py
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

FOLDER = pathlib.Path(__file__).resolve().parent
WORK, WAIT, LATE, LINE, INK, GREY = "#7fb38a", "#e9e9e9", "#e0a19b", "#3b6fb5", "#222222", "#555555"
VARIABLES, INPUT, SUM, CHECKPOINTS, CLIENT = "#fff1c9", "#e2f2e5", "#e3ecfb", "#f0e4f7", "#f4f4f4"
FAST, SLOW, LANE, BAR = 60, 150, 30, 20  # pixels: of a gradient on a fast and a slow worker, of a lane, of a bar
LEFT, WIDTH = 110, 880


def svg(width: int, height: int, elements: Iterable[str]) -> str:
    """Returns a picture on white, so that it can be read on any page."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">'
    tip = '<path d="M0 0 10 5 0 10z" fill="#555555"/>'
    place = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse"'
    marker = f'<defs><marker id="tip" {place}>{tip}</marker></defs>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', marker, *elements, "</svg>", ""])


def text(x: float, y: float, words: str, size: float = 13, extra: str = "", fill: str = INK) -> str:
    """Returns a text element."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" {extra}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, extra: str = 'stroke="#8a8a8a"') -> str:
    """Returns a rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" {extra}/>'


def arrow(points: Sequence[tuple[float, float]], both: bool = False) -> str:
    """Returns a line with a tip at its end, or at both."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1.6" marker-end="url(#tip)"{start}/>'


# Who waits for whom: a bar is a gradient that a worker computes; worker 2 is slow.


def heading(y: float, title: str, says: str) -> list[str]:
    """Returns the title of a part, and what it shows."""
    return [text(12, y + 18, title, 15, 'font-weight="bold"'), text(12, y + 38, says, 13, fill=GREY)]


def lanes(y: float) -> list[str]:
    """Returns the names of three workers."""
    return [text(12, y + 15 + LANE * i, f"worker {i}{' (slow)' if i == 2 else ''}", 13) for i in range(3)]


def bar(worker: int, y: float, start: float, length: float, fill: str, label: str = "") -> list[str]:
    """Returns what a worker does for so long."""
    x, top = LEFT + start, y + LANE * worker
    named = [text(x + length / 2, top + 15, label, 12, 'text-anchor="middle"')] if label else []
    return [rect(x + 1, top, length - 2, BAR, fill, "" if fill == WAIT else 'stroke="#8a8a8a"'), *named]


def update(y: float, at: float, label: str) -> list[str]:
    """Returns a line across all workers: they continue from new weights together."""
    x, end = LEFT + at, y + 3 * LANE
    line = f'<line x1="{x:g}" y1="{y - 6:g}" x2="{x:g}" y2="{end:g}" stroke="{LINE}" stroke-width="2"/>'
    return [line, text(x, end + 13, label, 12, 'text-anchor="middle"', LINE)]


def synchronous(y: float) -> list[str]:
    """Returns the part in which everybody waits for the slowest."""
    elements = lanes(y)
    for step in range(5):
        start = SLOW * step
        for worker in (0, 1):
            elements += bar(worker, y, start, FAST, WORK, str(step))
            elements += bar(worker, y, start + FAST, SLOW - FAST, WAIT, "waits")
        elements += bar(2, y, start, SLOW, WORK, str(step))
        elements += update(y, start + SLOW, f"step {step + 1}")
    return elements


def backup(y: float) -> list[str]:
    """Returns the part in which the first two gradients of three make a step."""
    elements = lanes(y)
    for step in range(12):
        for worker in (0, 1):
            elements += bar(worker, y, FAST * step, FAST, WORK, str(step))
        elements += update(y, FAST * (step + 1), str(step + 1))
    start = 0.0
    while start + SLOW <= 12 * FAST + 30:
        step = int(start // FAST)
        elements += bar(2, y, start, SLOW, LATE, f"{step}: late, dropped")
        start += SLOW
    return elements


def asynchronous(y: float) -> list[str]:
    """Returns the part in which each gradient is a step by itself."""
    elements, ends = lanes(y), []
    for worker, length, offset in ((0, FAST, 0), (1, FAST, 30), (2, SLOW, 0)):
        start = float(offset)
        while start + length <= 5 * SLOW:
            ends.append((start + length, worker, start, length))
            start += length
    for step, (_, worker, start, length) in enumerate(sorted(ends)):
        based = sum(other[0] <= start for other in ends)
        elements += bar(worker, y, start, length, WORK if step - based < 3 else LATE, f"{based} → {step + 1}")
    return elements


def waiting() -> str:
    """Returns the picture of synchronous and asynchronous training."""
    parts = (
        (
            "synchronous",
            "a step is the mean of all gradients: each step takes as long as its slowest worker",
            synchronous,
        ),
        (
            "synchronous with a backup worker: --sync --replicas_to_aggregate=2",
            "a step is the mean of the first 2 gradients of 3; a later one is dropped, and its rows are computed again",
            backup,
        ),
        (
            "asynchronous",
            "each gradient is a step: “5 → 11” began with the weights of step 5 and made step 11, after 5 other steps",
            asynchronous,
        ),
    )
    elements: list[str] = []
    for i, (title, says, draw) in enumerate(parts):
        top = 8 + i * 186
        elements += [*heading(top, title, says), *draw(top + 58)]
    return svg(WIDTH, 3 * 186 - 20, elements)


# Which process holds what.


def holds(x: float, y: float, width: float, rows: Sequence[tuple[str, str]]) -> list[str]:
    """Returns rows of what is held, one below the other: a colour and words each."""
    return [
        element
        for i, (fill, words) in enumerate(rows)
        for element in (rect(x, y + 29 * i, width, 25, fill), text(x + 9, y + 17 + 29 * i, words, 12.5))
    ]


def process(
    x: float, y: float, width: float, name: str, rows: Sequence[tuple[str, str]], height: float = 0
) -> list[str]:
    """Returns a process and what it holds."""
    height = height or 42 + 29 * len(rows)
    outline = rect(x, y, width, height, CLIENT, 'stroke="#444444" stroke-width="1.6"')
    return [outline, text(x + 12, y + 22, name, 14, 'font-weight="bold"'), *holds(x + 12, y + 34, width - 24, rows)]


def device(x: float, y: float, width: float, name: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    """Returns a device of a process, and what is on it."""
    outline = rect(x, y, width, 36 + 29 * len(rows), "#ffffff", 'stroke="#8a8a8a" stroke-dasharray="4 3"')
    return [outline, text(x + 10, y + 20, name, 13), *holds(x + 10, y + 29, width - 20, rows)]


def mirrored() -> str:
    """Returns the picture of one client for several devices."""
    elements = process(12, 12, 776, "one process: the client of both devices", [], 284)
    for i in (0, 1):
        rows = [
            (VARIABLES, "a copy of all variables"),
            (INPUT, f"rows {64 * i} to {64 * i + 63} of each batch"),
            (SUM, "its gradient, then the sum of both"),
        ]
        elements += device(40 + 400 * i, 48, 320, f"replica {i}: GPU {i} (or a logical CPU)", rows)
    elements.append(arrow([(362, 148), (438, 148)], both=True))
    elements += [text(400, 133, "all-reduce", 12.5, 'text-anchor="middle"')]
    shared = [(INPUT, "the input: reads and augments the rows of both replicas"), (CHECKPOINTS, "checkpoints, logs")]
    elements += holds(40, 196, 720, shared)
    says = "in-graph: one step function for both devices. central_storage has one copy of the variables, on the CPU"
    elements.append(text(40, 280, says, 12.5, fill=GREY))
    return svg(800, 308, elements)


def multiworker() -> str:
    """Returns the picture of a client per worker."""
    elements: list[str] = []
    for i in (0, 1):
        rows = [
            (VARIABLES, "a copy of all variables, on each of its GPUs"),
            (INPUT, f"the input of rows {64 * i} to {64 * i + 63} of each batch"),
            (SUM, "its gradient, then the sum of both"),
            (CHECKPOINTS, "checkpoints, logs" if i == 0 else "nothing: it reads the checkpoint to resume"),
        ]
        name = "worker 0, the chief: a client" if i == 0 else "worker 1: a client"
        elements += process(12 + 420 * i, 12, 340, name, rows)
    elements.append(arrow([(354, 117), (430, 117)], both=True))
    elements += [text(392, 102, "all-reduce", 12.5, 'text-anchor="middle"')]
    says = "between-graph: each process builds the same step function and takes the same steps; they meet in the sum"
    elements.append(text(12, 196, says, 12.5, fill=GREY))
    return svg(784, 212, elements)


def parameter_server() -> str:
    """Returns the picture of a coordinator, workers and parameter servers."""
    chief = [
        (CLIENT, "schedules the steps"),
        (CHECKPOINTS, "checkpoints, logs"),
    ]
    elements = process(12, 92, 208, "chief: the client", chief)
    for i in (0, 1):
        rows = [
            (INPUT, "the rows of its steps"),
            (SUM, "the gradient of its rows"),
        ]
        elements += process(316, 12 + 160 * i, 220, f"worker {i}", rows)
        elements.append(arrow([(222, 130 + 20 * i), (268, 130 + 20 * i), (268, 62 + 160 * i), (314, 62 + 160 * i)]))
    servers = [
        (VARIABLES, "variables, optimizer's slots"),
        (VARIABLES, "global step, ledger"),
    ]
    elements += process(652, 92, 236, "ps 0 (and others)", servers)
    for i in (0, 1):
        middle = 594
        there, back = 62 + 160 * i, 130 + 20 * i
        elements.append(arrow([(538, there), (middle, there), (middle, back), (650, back)], both=True))
    elements.append(text(266, 54, "steps", 12.5, 'text-anchor="middle"'))
    elements.append(text(598, 52, "weights, gradients", 12.5, 'text-anchor="middle"'))
    says = "one client for several workers: they run graphs that the chief has made, with the weights as they find them"
    elements.append(text(12, 290, says, 12.5, fill=GREY))
    return svg(900, 306, elements)


# Why stale gradients overshoot: one weight, a loss whose minimum is 0, gradient descent.

RUNS = (  # rate x curvature, delay, colour, dashes
    (0.3, 0, "#7fb38a", ""),
    (0.3, 2, "#3b6fb5", ""),
    (0.3, 5, "#c4625a", ""),
    (0.06, 5, "#c4625a", "6 4"),
)


def descent(rate: float, delay: int, updates: int) -> list[float]:
    """Returns a weight that begins at 1, where each gradient is that of the weight `delay` updates ago."""
    weights = [1.0]
    for step in range(updates):
        weights.append(weights[-1] - rate * weights[max(step - delay, 0)])
    return weights


def stale() -> str:
    """Returns the picture of a weight after each update, for several delays."""
    left, top, wide, high, updates = 56, 44, 12, 82, 48
    middle = top + 1.5 * high
    elements = [text(12, 22, "one weight, by the number of updates; its best value is 0", 15, 'font-weight="bold"')]
    for value in (1, 0, -1):
        y = middle - high * value
        width = 1.4 if value == 0 else 0.6
        end = left + wide * updates
        elements.append(f'<line x1="{left}" y1="{y:g}" x2="{end}" y2="{y:g}" stroke="{GREY}" stroke-width="{width}"/>')
        elements.append(text(left - 10, y + 4, f"{value}", 12, 'text-anchor="end"', GREY))
    for i, (rate, delay, colour, dashes) in enumerate(RUNS):
        points = " ".join(
            f"{left + wide * step},{middle - high * weight:.1f}"
            for step, weight in enumerate(descent(rate, delay, updates))
        )
        style = f'fill="none" stroke="{colour}" stroke-width="2.4" stroke-dasharray="{dashes or "none"}"'
        elements.append(f'<polyline points="{points}" {style}/>')
        x, y = left + wide * updates + 24, top + 24 * i + 30
        elements.append(f'<polyline points="{x},{y - 4} {x + 32},{y - 4}" {style}/>')
        elements.append(text(x + 40, y, f"a = {rate:g}, gradients {delay} updates old", 13))
    return svg(WIDTH + 40, 300, elements)


PICTURES = {
    "waiting.svg": waiting,
    "stale.svg": stale,
    "mirrored.svg": mirrored,
    "multiworker.svg": multiworker,
    "parameter_server.svg": parameter_server,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        print(f"docs/{name}", file=sys.stderr)
