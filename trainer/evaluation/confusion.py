"""Draws the confusion matrix: a row per label, a column per prediction, and the names of the classes."""

from __future__ import annotations

from PIL import Image, ImageDraw

from pipeline.commands.text import count_of
from trainer.evaluation.drawing import FAINT, INK, fitted, font
from trainer.evaluation.grid import BAR, WRITTEN, Grid
from trainer.evaluation.report import Confusion, Report

_SIDE = 1200  # pixels of the matrix of many classes
_MOST_CELL, _LEAST_CELL = 60, 2  # pixels
_MOST_NAME, _LEAST_NAME = 180, 56  # pixels
_MARGIN = 28
_HEAD = 78
_AXIS = 22  # for the word at an axis
_LEAST_WIDTH = 560
_LISTED = 12  # confusions, where the cells have no numbers
_LINE = 20


def draw(report: Report, title: str) -> Image.Image:
    """Returns the picture."""
    count = len(report.class_names)
    cell = max(_LEAST_CELL, min(_MOST_CELL, _SIDE // count))
    size = max(10, min(15, cell - 2))
    longest = max(font(size).getlength(name) for name in report.class_names)
    names = 12 + int(min(_MOST_NAME, max(_LEAST_NAME, longest)))
    grid = Grid(report, _MARGIN + _AXIS + names, _HEAD + _AXIS + names, cell)
    listed = report.confusions(_LISTED) if cell < WRITTEN else []
    below = grid.top + grid.side + BAR + 16
    width = max(grid.left + grid.side + BAR + _MARGIN, _LEAST_WIDTH)
    list_height = 34 + _LINE * -(-len(listed) // 2) if listed else 0
    sheet = Image.new("RGB", (width, below + list_height + _MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    _draw_head(pen, report, title, width - 2 * _MARGIN)
    grid.draw(pen)
    _draw_names(sheet, grid, names, size)
    _draw_axes(sheet, grid, names)
    if listed:
        _draw_list(pen, report, listed, below, width - 2 * _MARGIN)
    return sheet


def _draw_head(pen: ImageDraw.ImageDraw, report: Report, title: str, room: int) -> None:
    pen.text((_MARGIN, 18), fitted(title, 18, room), INK, font(18))
    accuracy = f"accuracy {report.accuracy:.2%} of {count_of(report.num_examples, 'example')}"
    line = f"{accuracy}; colour: share of the row, blue right, red wrong"
    pen.text((_MARGIN, 46), fitted(line, 13, room), FAINT, font(13))


def _draw_names(sheet: Image.Image, grid: Grid, names: int, size: int) -> None:
    """Writes the names of the classes; of classes that lie closer than the lines of a text, every second or so."""
    pen = ImageDraw.Draw(sheet)
    columns = Image.new("L", (names, grid.side + 2 * size), 0)  # is turned
    turned = ImageDraw.Draw(columns)
    for number in range(0, len(grid.report.class_names), -(-(size + 1) // grid.cell)):
        name, middle = fitted(grid.report.class_names[number], size, names - 10), grid.middle(number)
        pen.text((grid.left - 8, grid.top + middle), name, INK, font(size), anchor="rm")
        turned.text((0, size + middle), name, 255, font(size), anchor="lm")
    sheet.paste(INK, (grid.left - size, grid.top - 8 - names), columns.transpose(Image.Transpose.ROTATE_90))


def _draw_axes(sheet: Image.Image, grid: Grid, names: int) -> None:
    pen, middle = ImageDraw.Draw(sheet), grid.side / 2
    pen.text((grid.left + middle, grid.top - names - 14), "prediction", FAINT, font(13), anchor="ms")
    word = Image.new("L", (60, 18), 0)
    ImageDraw.Draw(word).text((30, 9), "label", 255, font(13), anchor="mm")
    at = (_MARGIN - 10, int(grid.top + middle - 30))
    sheet.paste(FAINT, at, word.transpose(Image.Transpose.ROTATE_90))


def _draw_list(pen: ImageDraw.ImageDraw, report: Report, listed: list[Confusion], top: int, room: int) -> None:
    pen.text((_MARGIN, top), "most frequent mistakes", INK, font(14))
    rows = -(-len(listed) // 2)
    for i, confusion in enumerate(listed):
        label, prediction = report.class_names[confusion.label], report.class_names[confusion.prediction]
        line = f"{label} taken for {prediction}: {confusion.count:,} of {confusion.support:,}"
        at = (_MARGIN + i // rows * room // 2, top + 26 + _LINE * (i % rows))
        pen.text(at, fitted(line, 13, room // 2 - 12), INK, font(13))
