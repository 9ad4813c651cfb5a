"""Draws the cells of a confusion matrix, recall at the right of each row and precision below each column."""

from __future__ import annotations

import dataclasses

import numpy as np
from PIL.ImageDraw import ImageDraw

from trainer.evaluation.drawing import FAINT, INK, RIGHT, WRONG, Color, font, mixed
from trainer.evaluation.report import Report

BAR = 68  # pixels at a side for the bars of the shares
WRITTEN = 26  # pixels of a cell that has room for a number
_FULL = BAR - 8  # length of a bar of 100%
_THICK = 22  # of a bar at most, where it is written on
_ABSENT = (241, 243, 245)  # row of a class without examples
_FRAME = (206, 212, 218)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The matrix in a picture.

    Attributes:
      report: with the numbers.
      left, top: of the first cell, pixels.
      cell: pixels on a side of each.
    """

    report: Report
    left: int
    top: int
    cell: int

    @property
    def side(self) -> int:
        """Pixels on a side of all cells."""
        return self.cell * len(self.report.class_names)

    @property
    def gap(self) -> int:
        """Pixels between two cells."""
        return 1 if self.cell >= 8 else 0

    def middle(self, number: int) -> float:
        """Returns the distance of a class's middle from the first cell's edge, pixels."""
        return (number + 0.5) * self.cell - 0.5

    def draw(self, pen: ImageDraw) -> None:
        """Draws it."""
        self._absent_rows(pen)
        for label, prediction in zip(*np.nonzero(self.report.matrix), strict=True):
            self._cell(pen, int(label), int(prediction))
        right, bottom = self.left + self.side - self.gap, self.top + self.side - self.gap
        pen.rectangle((self.left - 1, self.top - 1, right, bottom), outline=_FRAME)
        for number, (recall, precision) in enumerate(zip(self.report.recall, self.report.precision, strict=True)):
            self._recall(pen, number, float(recall))
            self._precision(pen, number, float(precision))
        pen.text((self.left + self.side + 8, self.top - 8), "recall", FAINT, font(13), anchor="ls")
        pen.text((self.left - 8, self.top + self.side + 12), "precision", FAINT, font(13), anchor="ra")

    def _absent_rows(self, pen: ImageDraw) -> None:
        for label in np.flatnonzero(self.report.support == 0).tolist():
            top = self.top + label * self.cell
            pen.rectangle((self.left, top, self.left + self.side - 1, top + self.cell - 1 - self.gap), _ABSENT)

    def _cell(self, pen: ImageDraw, label: int, prediction: int) -> None:
        count = int(self.report.matrix[label, prediction])
        fill = _fill(count / int(self.report.support[label]), label == prediction)
        left, top, size = self.left + prediction * self.cell, self.top + label * self.cell, self.cell - self.gap
        pen.rectangle((left, top, left + size - 1, top + size - 1), fill)
        if self.cell >= WRITTEN:
            ink = "white" if _is_dark(fill) else INK
            number = f"{count:,}"
            pen.text((left + size / 2, top + size / 2), number, ink, font(_size(number, self.cell)), anchor="mm")

    def _recall(self, pen: ImageDraw, number: int, share: float) -> None:
        start, middle, thick = self.left + self.side + 8, self.top + self.middle(number), min(self.cell - 2, _THICK)
        if not np.isnan(share):
            pen.rectangle((start, middle - thick / 2, start + _FULL * share, middle + thick / 2), mixed(0.25, RIGHT))
        self._share(pen, share, (start + 4, middle), "lm")

    def _precision(self, pen: ImageDraw, number: int, share: float) -> None:
        start, middle, thick = self.top + self.side + 8, self.left + self.middle(number), max(1, self.cell - 4)
        if not np.isnan(share):
            pen.rectangle((middle - thick / 2, start, middle + thick / 2, start + _FULL * share), mixed(0.25, RIGHT))
        self._share(pen, share, (middle, start + 4), "ma")

    def _share(self, pen: ImageDraw, share: float, at: tuple[float, float], anchor: str) -> None:
        if self.cell >= WRITTEN:
            text = "-" if np.isnan(share) else f"{share:.0%}" if self.cell < 44 else f"{share:.1%}"
            pen.text(at, text, INK, font(13), anchor=anchor)


def _fill(share: float, right: bool) -> Color:
    """Returns a cell's colour; of mistakes by the root of their share, so that rare ones are seen, too."""
    return mixed(share, RIGHT) if right else mixed(share**0.5, WRONG)


def _is_dark(color: Color) -> bool:
    """Says whether white is easier to read on a colour than black (its luma, ITU-R BT.601)."""
    red, green, blue = color
    return 0.299 * red + 0.587 * green + 0.114 * blue < 150


def _size(number: str, cell: int) -> int:
    """Returns the size of the font in which a number fits a cell, pixels."""
    sizes = range(min(16, cell // 2), 8, -1)
    return next((size for size in sizes if font(size).getlength(number) <= cell - 5), 8)
