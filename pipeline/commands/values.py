"""Parses flag values with several parts: `224x224`, `a,b`, `image:image_raw,label:label`.

Every function raises UsageError, naming the flag and the value, if the text does not have the documented form.
"""

from __future__ import annotations

import re

from pipeline.errors import UsageError

_MAX_SIDE = 1 << 14  # in pixels


def sizes(flag: str, text: str, count: int) -> tuple[int, ...] | None:
    """Parses `count` sizes in 1..16384 from a text like 28x28; None for an empty text. For two, 28 means 28x28."""
    if not text:
        return None
    text = both_sides(text) if count == 2 else text
    example = "x".join(["224", "224", "3"][:count])
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", text) or text.count("x") != count - 1:
        raise UsageError(f"--{flag}={text}: must be {count} sizes, as in {example}")
    values = tuple(int(size) for size in text.split("x"))
    if not all(1 <= size <= _MAX_SIDE for size in values):
        raise UsageError(f"--{flag}={text}: every size must be in 1..{_MAX_SIDE}")
    return values


def both_sides(text: str) -> str:
    """Returns a size with both height and width: `28` becomes `28x28`."""
    return f"{text}x{text}" if text.isdecimal() else text


def names(flag: str, text: str) -> tuple[str, ...]:
    """Parses distinct names from a text like a,b; empty for an empty text."""
    if not text:
        return ()
    values = tuple(name.strip() for name in text.split(","))
    if not all(values) or len(set(values)) != len(values):
        raise UsageError(f"--{flag}={text}: must be names between commas, each once")
    return values


def pairs(flag: str, text: str) -> tuple[tuple[str, str], ...]:
    """Parses pairs with distinct first names from a text like image:image_raw,label:label; empty for an empty text."""
    if not text:
        return ()
    values = [tuple(part.strip().split(":", 1)) for part in text.split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in values) or len({pair[0] for pair in values}) != len(values):
        raise UsageError(f"--{flag}={text}: must be ours:theirs,..., each of ours once")
    return tuple((pair[0], pair[1]) for pair in values)
