"""Draws the worst mistakes: each image, what it was taken for and what it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pipeline.commands.text import count_of
from pipeline.inspect.pixels import as_rgb
from trainer.evaluation.drawing import FAINT, INK, RIGHT, WRONG, fitted, font
from trainer.evaluation.report import Mistake, Report

_TILE = 132  # pixels on a side of a drawn image
_CAPTION = 58
_GAP = 14
_COLUMNS = 6
_HEAD = 64


def draw(report: Report, images: Sequence[NDArray[np.generic]], title: str) -> Image.Image:
    """Returns the picture.

    Args:
      report: with the mistakes.
      images: of the mistakes, (height, width, channels) each, uint8 or float.
      title: above them.
    """
    rows = max(1, -(-len(images) // _COLUMNS))
    width, height = _COLUMNS * (_TILE + _GAP) + _GAP, _HEAD + rows * (_TILE + _CAPTION + _GAP)
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_GAP, 12), fitted(title, 17, width - 2 * _GAP), INK, font(17))
    pen.text((_GAP, 37), _subtitle(report, len(images)), FAINT, font(13))
    for i, (mistake, image) in enumerate(zip(report.mistakes, images, strict=True)):
        left, top = _GAP + i % _COLUMNS * (_TILE + _GAP), _HEAD + i // _COLUMNS * (_TILE + _CAPTION + _GAP)
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
    answers = (
        (mistake.prediction, mistake.probability, WRONG),
        (mistake.label, mistake.label_probability, RIGHT),
    )
    for line, (number, probability, color) in enumerate(answers):
        share = _percent(probability)
        room = _TILE - font(14).getlength(share) - 6
        y = top + 18 * line
        pen.text((left, y), fitted(report.class_names[number], 14, room), color, font(14))
        pen.text((left + _TILE, y), share, color, font(14), anchor="ra")
    name = mistake.key or f"record {mistake.record}"
    pen.text((left, top + 38), fitted(name, 11, _TILE), FAINT, font(11))


def _percent(share: float) -> str:
    """Returns 99.9% rather than 100% of what is not certain, and <0.1% of what is not impossible."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{min(share, 0.999) if share < 1 else 1:.1%}"


def _tile(image: NDArray[np.generic]) -> Image.Image:
    """Returns an image scaled to a tile, its shape kept; floats are stretched to black..white."""
    pixels = as_rgb(image)
    scale = _TILE / max(pixels.shape[:2])
    size = max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale))
    smooth = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    return Image.fromarray(np.ascontiguousarray(pixels)).resize(size, smooth)
