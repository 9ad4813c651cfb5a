"""A claim, what it was checked by, and the first thing that contradicts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from pipeline.order.order import I64


class Fault(Exception):  # noqa: N818, no error of the program: what an audit finds
    """The first record, position or row that contradicts a claim."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim that was checked.

    Attributes:
      text: what is claimed.
      evidence: what was checked, or what contradicts it.
      holds: whether it does.
    """

    text: str
    evidence: str
    holds: bool = True


def check_all(checks: Iterable[tuple[str, Callable[[], str]]]) -> list[Claim]:
    """Returns the claims up to the first that does not hold: those after it rest on it.

    Args:
      checks: (claim, function that returns its evidence or raises Fault).
    """
    claims: list[Claim] = []
    for text, check in checks:
        try:
            claims.append(Claim(text, check()))
        except Fault as fault:
            return [*claims, Claim(text, str(fault), holds=False)]
    return claims


def check_tiling(
    first: I64,
    stop: I64,
    begin: int,
    end: int,
    owner: Callable[[int], str],
    place: Callable[[int], str],
) -> None:
    """Checks that intervals [first, stop), int64 (n,), cover begin..end-1, each number once, in order.

    Args:
      owner: names the interval i.
      place: names a number.

    Raises:
      Fault: the first gap or overlap, with the first number in it.
    """
    before = np.concatenate([[begin], stop])
    after = np.concatenate([first, [end]])
    wrong = np.flatnonzero((before != after) | np.concatenate([first > stop, [False]]))
    if not wrong.size:
        return
    i = int(wrong[0])
    low, high = int(before[i]), int(after[i])
    if low == high:
        raise Fault(f"{owner(i)} ends at {int(stop[i])}, before it begins at {low}")
    sides = [owner(j) for j in (i - 1, i) if 0 <= j < len(first)]
    if low < high:
        raise Fault(f"{place(low)} to {high - 1}: {high - low} in no interval; beside it: {' and '.join(sides)}")
    where = "outside the range" if len(sides) == 1 else "in both"
    raise Fault(f"{place(high)} to {low - 1}: {low - high} {where}: {' and '.join(sides)}")
