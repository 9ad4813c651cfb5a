"""Draws masks, boxes and points on their images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pipeline.manifest.manifest import BOXES, MASK, POINTS
from pipeline.records.annotation import WEIGHT

_COLOURS = {MASK: (255, 220, 0), BOXES: (255, 40, 40), POINTS: (0, 230, 255)}
_RADIUS = 2  # of a point, in pixels


def marked(image: NDArray[Any], row: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Returns an image with the outlines of its mask's classes, its boxes and its points.

    Args:
      image: pixels, uint8 or float (height, width, 1 or 3); floats are stretched from black to white.
      row: `mask`, `boxes` and `points` of the image with their weights, as `input_fn` feeds them; all are optional.

    Returns:
      uint8 (height, width, 3).
    """
    pixels = image
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        pixels = ((image - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3].copy()
    if MASK in row:
        classes = np.pad(row[MASK][..., 0], 1, mode="edge")
        own = classes[1:-1, 1:-1]
        shifted = (classes[:-2, 1:-1], classes[2:, 1:-1], classes[1:-1, :-2], classes[1:-1, 2:])
        pixels[np.any([(other != own) & (own > 0) for other in shifted], axis=0)] = _COLOURS[MASK]
    made = Image.fromarray(np.ascontiguousarray(pixels))
    pen, sides = ImageDraw.Draw(made), np.array(image.shape[:2])
    for top, left, bottom, right in _visible(row, BOXES) * np.tile(sides, 2):
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=_COLOURS[BOXES])
    for y, x in _visible(row, POINTS) * sides:
        pen.ellipse((x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS), fill=_COLOURS[POINTS])
    return np.asarray(made)


def _visible(row: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    if name not in row:
        return np.zeros((0, 4 if name == BOXES else 2), np.float32)
    found: NDArray[np.float32] = row[name][row[name + WEIGHT] > 0]
    return found
