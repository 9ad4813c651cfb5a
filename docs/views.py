"""Draws the picture of docs/views.md: how often each record is in an epoch, as the views compute it.

python docs/views.py
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from strategies import GREY, rect, svg, text  # noqa: E402

from pipeline.order.views import View  # noqa: E402

LABELS = np.array([0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0])
WEIGHTS = np.array([1, 0.5, 2, 0, 1.5, 1, 0.5, 2.5, 1, 0, 0.5, 1.5])
COLOURS = ("#bcd7f5", "#c9e6c4", "#ffe2a8")  # of the classes
CELL, LEFT, TOP = 34, 250, 60
VIEWS = (
    ("a plain split", View(), 0),
    ('where="label in (1, 2)"', View(where="label in (1, 2)"), 0),
    ("limit=5", View(limit=5), 0),
    ('balance="label", epoch 0', View(balance="label"), 0),
    ("epoch 1", View(balance="label"), 1),
    ('weigh="w", epoch 0', View(weigh="w"), 0),
    ("epoch 1", View(weigh="w"), 1),
)


class Drawn:
    """The columns of the picture."""

    used: dict[str, str] = {}  # noqa: RUF012, stays empty

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a column."""
        return {"label": LABELS, "w": WEIGHTS}[name]

    def names_of(self, name: str) -> tuple[str, ...]:
        """Returns no names."""
        return ()

    def is_text(self, name: str) -> bool:
        """There are only numbers."""
        return False

    def name_of(self, record: int) -> str:
        """Names a record."""
        return f"record {record}"


def row(y: float, title: str, times: list[int]) -> list[str]:
    """Returns a view's row: how often each record is in the epoch, and the rows of all together."""
    elements = [text(16, y + 20, title, 13)]
    for record, count in enumerate(times):
        border = 'stroke="#666666"' if count else 'stroke="#bbbbbb" stroke-dasharray="3 2" fill-opacity="0.15"'
        x = LEFT + record * CELL
        elements.append(rect(x + 1, y, CELL - 2, CELL - 6, COLOURS[LABELS[record]], border))
        if count:
            elements.append(text(x + CELL / 2, y + 19, f"{count}", 13, 'text-anchor="middle"', "#222222"))
    return [*elements, text(LEFT + len(times) * CELL + 12, y + 19, f"{sum(times)} rows", 13, fill=GREY)]


def draw() -> str:
    """Returns the picture."""
    count = len(LABELS)
    elements = [
        text(16, 24, "how often each of 12 records is in an epoch", 14, 'font-weight="bold"'),
        text(16, 48, "weights w of the records", 12, fill=GREY),
    ]
    for record, weight in enumerate(WEIGHTS.tolist()):
        elements.append(text(LEFT + (record + 0.5) * CELL, 48, f"{weight:g}", 12, 'text-anchor="middle"', GREY))
    for number, (title, view, epoch) in enumerate(VIEWS):
        times, _ = view.resolve(Drawn(), count, 0, "train")
        found = np.zeros(count, np.int64)
        found[times.ids(np.arange(times.num_chosen))] = times.of(epoch)
        elements += row(TOP + number * (CELL + 6), title, found.tolist())
    bottom = TOP + len(VIEWS) * (CELL + 6) + 18
    says = "colours: classes of 8, 3 and 1 records; balanced, each fills 8 rows of every epoch"
    return svg(740, bottom + 14, [*elements, text(16, bottom, says, 12, fill=GREY)])


if __name__ == "__main__":
    (FOLDER / "views.svg").write_text(draw(), encoding="utf-8")
    print("docs/views.svg", file=sys.stderr)
