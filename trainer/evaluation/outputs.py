"""Outputs of an evaluation: lines, JSON, and a folder with pictures (confusion matrix, worst mistakes)."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pipeline.commands.text import count_of
from pipeline.errors import named
from pipeline.files.write import replaced
from pipeline.images import as_rgb, fitted, width_of, written
from trainer.evaluation.judging import Confusion, Judgement, Mistake, Report, summary
from trainer.inference import Trained


def to_json(trained: Trained, judgement: Judgement) -> dict[str, Any]:
    """Returns all results in JSON-compatible types."""
    evaluation, report = judgement.evaluation, judgement.report
    shown = ("split", "num_examples", "num_skipped", "loss", "metrics")
    sources = [{name: getattr(part, name) for name in shown} for part in evaluation.parts]
    return {
        "checkpoint": str(trained.record.path),
        "step": trained.record.step,
        "weights": "ema" if trained.averaged else "raw",
        "data_dir": trained.config.data.evaluated,
        "eval_copies": evaluation.copies,
        **{name: getattr(evaluation, name) for name in shown},
        **({"sources": sources} if sources else {}),
        "report": report and report.to_json(),
    }


def say(trained: Trained, judgement: Judgement) -> None:
    """Prints the results with their tables."""
    print(trained)
    print(*judgement.evaluation.lines, sep="\n", flush=True)
    if judgement.report:
        print("", *summary(judgement.report), sep="\n", flush=True)


def say_line(trained: Trained, judgement: Judgement) -> None:
    """Prints the results in one line, plus a line for each source if there are several."""
    for line in judgement.evaluation.lines:
        print(f"step {trained.record.step}, {line}", flush=True)


def say_json(trained: Trained, judgement: Judgement, more: Mapping[str, Any]) -> None:
    """Prints the results as a line of JSON that includes the fields in `more`."""
    print(json.dumps({**to_json(trained, judgement), **more}), flush=True)


def write(trained: Trained, judgement: Judgement, folder: str, more: Mapping[str, Any]) -> list[str]:
    """Writes the report, with the fields in `more`, and pictures if there are classes; returns the files' paths.

    Raises:
      DataError: the folder cannot be written to.
    """
    into, text = pathlib.Path(folder), json.dumps({**to_json(trained, judgement), **more}, indent=1)
    writers: dict[str, Callable[[IO[bytes]], Any]] = {"report.json": lambda file: file.write(text.encode())}
    for name, picture in pictures(trained, judgement).items():
        writers[f"{name}.png"] = functools.partial(picture.save, format="PNG")
    with named(f"--output={folder}", "cannot be written to"):
        for name, writer in writers.items():
            with replaced(into / name, sync=False) as file:
                writer(file)
    return [str(into / name) for name in writers]


def pictures(trained: Trained, judgement: Judgement) -> dict[str, Image.Image]:
    """Returns the pictures by name; empty if there are no classes."""
    report = judgement.report
    if report is None:
        return {}
    datasets = ", ".join(split.manifest.dataset for split in trained.splits.values())
    title = f"{datasets} {judgement.evaluation.split}: {trained}"
    return {"confusion": confusion_matrix(report, title), "mistakes": worst_mistakes(report, judgement.images, title)}


_Color = tuple[int, int, int]
_INK = (33, 37, 41)
_FAINT = (134, 142, 150)
RIGHT = (24, 100, 171)  # blue for right, red for wrong: distinguishable with any colour blindness
WRONG = (201, 42, 42)

# Confusion matrix.
_BAR = 68  # pixels per side for the bars of recall and precision
_WRITTEN = 26  # pixels: smallest cell with room for a number
_FULL = _BAR - 8  # length of a bar of 100%
_THICK = 22  # largest thickness of a bar with text on it
_ABSENT = (241, 243, 245)  # row colour of a class without examples
_FRAME = (206, 212, 218)
_SIDE = 1200  # pixels on a side of the matrix for many classes
_MOST_CELL, _LEAST_CELL = 60, 2  # pixels
_MOST_NAME, _LEAST_NAME = 180, 56  # pixels
_MARGIN = 28
_MATRIX_HEAD = 78
_AXIS = 22  # for the axis label
_LEAST_WIDTH, _MOST_OF_TITLE = 560, 780  # pixels: few classes make a small matrix, but the title must not be cut
_LISTED = 12  # number of confusions listed if cells have no numbers
_LINE = 20

# Mistakes.
_TILE = 132  # pixels on a side of a drawn image
_CAPTION = 58
_GAP = 14
_COLUMNS = 6
_MISTAKES_HEAD = 64


def confusion_matrix(report: Report, title: str) -> Image.Image:
    """Returns a picture of the confusion matrix: a row per label, a column per prediction, and class names."""
    count = len(report.class_names)
    cell = max(_LEAST_CELL, min(_MOST_CELL, _SIDE // count))
    size = max(10, min(15, cell - 2))
    longest = max(width_of(name, size) for name in report.class_names)
    names = 12 + int(min(_MOST_NAME, max(_LEAST_NAME, longest)))
    grid = _Grid(report, _MARGIN + _AXIS + names, _MATRIX_HEAD + _AXIS + names, cell)
    listed = report.confusions(_LISTED) if cell < _WRITTEN else []
    below = grid.top + grid.side + _BAR + 16
    headed = min(_MOST_OF_TITLE, 1 + int(width_of(title, 18)) + 2 * _MARGIN)
    width = max(grid.left + grid.side + _BAR + _MARGIN, _LEAST_WIDTH, headed)
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
    written(pen, (_MARGIN, 18), fitted(title, 18, room), _INK, 18)
    accuracy = f"accuracy {report.accuracy:.2%} of {count_of(report.num_examples, 'example')}"
    line = f"{accuracy}; colour: share of the row, blue right, red wrong"
    written(pen, (_MARGIN, 46), fitted(line, 13, room), _FAINT, 13)


def _draw_names(sheet: Image.Image, grid: _Grid, names: int, size: int) -> None:
    """Writes the class names, but skips some if rows are lower than a line of text."""
    pen = ImageDraw.Draw(sheet)
    columns = Image.new("L", (names, grid.side + 2 * size), 0)  # rotated below
    turned = ImageDraw.Draw(columns)
    for number in range(0, len(grid.report.class_names), -(-(size + 1) // grid.cell)):
        name, middle = fitted(grid.report.class_names[number], size, names - 10), grid.middle(number)
        written(pen, (grid.left - 8, grid.top + middle), name, _INK, size, "rm")
        written(turned, (0, size + middle), name, 255, size, "lm")
    sheet.paste(_INK, (grid.left - size, grid.top - 8 - names), columns.transpose(Image.Transpose.ROTATE_90))


def _draw_axes(sheet: Image.Image, grid: _Grid, names: int) -> None:
    pen, middle = ImageDraw.Draw(sheet), grid.side / 2
    written(pen, (grid.left + middle, grid.top - names - 14), "prediction", _FAINT, 13, "ms")
    word = Image.new("L", (60, 18), 0)
    written(ImageDraw.Draw(word), (30, 9), "label", 255, 13, "mm")
    at = (_MARGIN - 10, int(grid.top + middle - 30))
    sheet.paste(_FAINT, at, word.transpose(Image.Transpose.ROTATE_90))


def _draw_list(pen: ImageDraw.ImageDraw, report: Report, listed: list[Confusion], top: int, room: int) -> None:
    written(pen, (_MARGIN, top), "most frequent mistakes", _INK, 14)
    rows = -(-len(listed) // 2)
    for i, confusion in enumerate(listed):
        label, prediction = report.class_names[confusion.label], report.class_names[confusion.prediction]
        line = f"{label} taken for {prediction}: {confusion.count:,} of {confusion.support:,}"
        at = (_MARGIN + i // rows * room // 2, top + 26 + _LINE * (i % rows))
        written(pen, at, fitted(line, 13, room // 2 - 12), _INK, 13)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """The cells of a confusion matrix, with recall to the right of each row and precision below each column.

    Attributes:
      report: report with the numbers.
      left, top: corner of the first cell in pixels.
      cell: pixels on a side of each cell.
    """

    report: Report
    left: int
    top: int
    cell: int

    @property
    def side(self) -> int:
        return self.cell * len(self.report.class_names)

    @property
    def gap(self) -> int:
        return 1 if self.cell >= 8 else 0

    def middle(self, number: int) -> float:
        """Returns the distance in pixels between a class's middle and the first cell's edge."""
        return (number + 0.5) * self.cell - 0.5

    def draw(self, pen: ImageDraw.ImageDraw) -> None:
        for label in np.flatnonzero(self.report.support == 0).tolist():  # classes without examples
            top = self.top + label * self.cell
            pen.rectangle((self.left, top, self.left + self.side - 1, top + self.cell - 1 - self.gap), _ABSENT)
        for label, prediction in zip(*np.nonzero(self.report.matrix), strict=True):
            self._cell(pen, int(label), int(prediction))
        right, bottom = self.left + self.side - self.gap, self.top + self.side - self.gap
        pen.rectangle((self.left - 1, self.top - 1, right, bottom), outline=_FRAME)
        for number, (recall, precision) in enumerate(zip(self.report.recall, self.report.precision, strict=True)):
            self._recall(pen, number, float(recall))
            self._precision(pen, number, float(precision))
        written(pen, (self.left + self.side + 8, self.top - 8), "recall", _FAINT, 13, "ls")
        written(pen, (self.left - 8, self.top + self.side + 12), "precision", _FAINT, 13, "ra")

    def _cell(self, pen: ImageDraw.ImageDraw, label: int, prediction: int) -> None:
        count = int(self.report.matrix[label, prediction])
        share = count / int(self.report.support[label])
        # A mistake's colour grows with the root of its share, so that rare ones are visible.
        fill = _mixed(share, RIGHT) if label == prediction else _mixed(share**0.5, WRONG)
        left, top, size = self.left + prediction * self.cell, self.top + label * self.cell, self.cell - self.gap
        pen.rectangle((left, top, left + size - 1, top + size - 1), fill)
        if self.cell >= _WRITTEN:
            red, green, blue = fill
            luma = 0.299 * red + 0.587 * green + 0.114 * blue  # as in ITU-R BT.601
            ink = "white" if luma < 150 else _INK
            number = f"{count:,}"
            written(pen, (left + size / 2, top + size / 2), number, ink, _size(number, self.cell), "mm")

    def _recall(self, pen: ImageDraw.ImageDraw, number: int, share: float) -> None:
        start, middle, thick = self.left + self.side + 8, self.top + self.middle(number), min(self.cell - 2, _THICK)
        if not np.isnan(share):
            pen.rectangle((start, middle - thick / 2, start + _FULL * share, middle + thick / 2), _mixed(0.25, RIGHT))
        self._share(pen, share, (start + 4, middle), "lm")

    def _precision(self, pen: ImageDraw.ImageDraw, number: int, share: float) -> None:
        start, middle, thick = self.top + self.side + 8, self.left + self.middle(number), max(1, self.cell - 4)
        if not np.isnan(share):
            pen.rectangle((middle - thick / 2, start, middle + thick / 2, start + _FULL * share), _mixed(0.25, RIGHT))
        self._share(pen, share, (middle, start + 4), "ma")

    def _share(self, pen: ImageDraw.ImageDraw, share: float, at: tuple[float, float], anchor: str) -> None:
        if self.cell >= _WRITTEN:
            text = "-" if np.isnan(share) else f"{share:.0%}" if self.cell < 44 else f"{share:.1%}"
            written(pen, at, text, _INK, 13, anchor)


def _size(number: str, cell: int) -> int:
    """Returns the largest font size, in pixels, at which a number fits into a cell."""
    sizes = range(min(16, cell // 2), 8, -1)
    return next((size for size in sizes if width_of(number, size) <= cell - 5), 8)


def worst_mistakes(report: Report, images: Sequence[NDArray[np.generic]], title: str) -> Image.Image:
    """Returns a picture of the worst mistakes: each image, its prediction and its label.

    Args:
      report: report with the mistakes.
      images: one per mistake, (height, width, channels) each, uint8 or float.
      title: line above them.
    """
    rows = max(1, -(-len(images) // _COLUMNS))
    width, height = _COLUMNS * (_TILE + _GAP) + _GAP, _MISTAKES_HEAD + rows * (_TILE + _CAPTION + _GAP)
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    written(pen, (_GAP, 12), fitted(title, 17, width - 2 * _GAP), _INK, 17)
    written(pen, (_GAP, 37), _subtitle(report, len(images)), _FAINT, 13)
    for i, (mistake, image) in enumerate(zip(report.mistakes, images, strict=True)):
        left, top = _GAP + i % _COLUMNS * (_TILE + _GAP), _MISTAKES_HEAD + i // _COLUMNS * (_TILE + _CAPTION + _GAP)
        tile = _tile(image)
        sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2))
        _caption(pen, report, mistake, left, top + _TILE + 5)
    return sheet


def _subtitle(report: Report, shown: int) -> str:
    if not shown:
        return f"no mistakes in {count_of(report.num_examples, 'example')}"
    total = count_of(report.num_mistakes, "mistake")
    which = f"the {shown} worst of {total}" if shown < report.num_mistakes else f"{total}, the worst first"
    return f"{which} (by loss); red: prediction, blue: label"


def _caption(pen: ImageDraw.ImageDraw, report: Report, mistake: Mistake, left: int, top: int) -> None:
    answers = ((mistake.prediction, mistake.probability, WRONG), (mistake.label, mistake.label_probability, RIGHT))
    for line, (number, probability, color) in enumerate(answers):
        share = _percent(probability)
        room = _TILE - width_of(share, 14) - 6
        y = top + 18 * line
        written(pen, (left, y), fitted(report.class_names[number], 14, room), color, 14)
        written(pen, (left + _TILE, y), share, color, 14, "ra")
    name = mistake.key or f"record {mistake.record}"
    written(pen, (left, top + 38), fitted(name, 11, _TILE), _FAINT, 11)


def _percent(share: float) -> str:
    """Returns a percentage that never rounds to certainty: 99.9% rather than 100%, <0.1% rather than 0%."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{min(share, 0.999) if share < 1 else 1:.1%}"


def _tile(image: NDArray[np.generic]) -> Image.Image:
    """Returns an image scaled to a tile, keeping its shape; floats are stretched to black..white."""
    pixels = as_rgb(image)
    scale = _TILE / max(pixels.shape[:2])
    size = max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale))
    smooth = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    return Image.fromarray(np.ascontiguousarray(pixels)).resize(size, smooth)


def _mixed(share: float, color: _Color, ground: _Color = (255, 255, 255)) -> _Color:
    """Returns a mix of colours: `ground` at 0, `color` at 1."""
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(ground, color, strict=True))
    return red, green, blue
