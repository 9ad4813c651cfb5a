"""Texts of settings that each apply from a step until the next given step: `0: a=1, b=0; 5000: a=1, b=1`.

The weights of a mixture (`--mixture_schedule`) and the phases of a training (`--phases`) are such texts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from pipeline.errors import UsageError

_START = re.compile(r"(?P<amount>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>|steps?|epochs?)")
_COMMA = re.compile(r",(?![^()]*\))")  # not between the arguments of a recipe
_MOST = 1 << 62  # most steps


class Segment(NamedTuple):
    """Settings that apply from a step on.

    Attributes:
      start: first step, as written: `5000`, `10 epochs`.
      parts: settings, each usually `name=value`.
    """

    start: str
    parts: tuple[str, ...]

    def first_step(self, steps_per_epoch: int, flag: str) -> int:
        """Returns its first step; a fraction of a step counts as a whole step.

        Raises:
          UsageError: `start` is neither a step nor an epoch.
        """
        if found := _START.fullmatch(self.start):
            amount, in_epochs = Fraction(found["amount"]), found["unit"].startswith("epoch")
            if in_epochs or amount.denominator == 1:
                return math.ceil(amount * (steps_per_epoch if in_epochs else 1))
        raise UsageError(f"{flag}: {self.start!r} must be a step or an epoch, such as 5000, or '10 epochs'")


def parse(text: str) -> list[Segment]:
    """Returns the segments of a text; empty for an empty text."""
    found = []
    for one in text.split(";"):
        if one.strip():
            start, _, parts = one.partition(":")
            found.append(Segment(start.strip(), tuple(part.strip() for part in _COMMA.split(parts))))
    return found


def held_at(text: str, step: int, steps_per_epoch: int, flag: str) -> tuple[int, dict[str, str]]:
    """Returns how many segments have begun at a step, and the settings there: {name: value}.

    A segment inherits settings that it does not give from the previous one.

    Raises:
      UsageError: a segment begins at neither a step nor an epoch.
    """
    begun, held = [one for one in parse(text) if one.first_step(steps_per_epoch, flag) <= step], dict[str, str]()
    for name, _, value in (part.partition("=") for one in begun for part in one.parts):
        held[name.strip()] = value.strip()
    return len(begun), held


def check_starts(steps: Sequence[int], what: str) -> None:
    """Raises UsageError unless the first steps of segments begin with 0 and increase."""
    if steps and (steps[0] or steps[-1] >= _MOST or any(b <= a for a, b in itertools.pairwise(steps))):
        raise UsageError(
            f"{what}: its first steps are {list(steps)}; they must begin with 0, increase, and be below 2^62"
        )
