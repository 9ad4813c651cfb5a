"""What the pictures share: fonts, inks, text that fits."""

from __future__ import annotations

import functools

from PIL import ImageFont
from PIL.ImageFont import FreeTypeFont

INK = (33, 37, 41)
FAINT = (134, 142, 150)
RIGHT = (24, 100, 171)  # what is right is blue, what is wrong is red: told apart by all who see two colours
WRONG = (201, 42, 42)

Color = tuple[int, int, int]


@functools.cache
def font(size: int) -> FreeTypeFont:
    """Returns Pillow's own font, of a size in pixels."""
    found = ImageFont.load_default(size)
    assert isinstance(found, FreeTypeFont)
    return found


def fitted(text: str, size: int, width: float) -> str:
    """Returns a text, cut so that it is no wider than `width` pixels."""
    if font(size).getlength(text) <= width:
        return text
    while text and font(size).getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def mixed(share: float, color: Color, ground: Color = (255, 255, 255)) -> Color:
    """Returns a colour between the ground, at 0, and `color`, at 1."""
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(ground, color, strict=True))
    return red, green, blue
