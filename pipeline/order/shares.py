"""Each source's share of the rows of a step, independent of the number of replicas, and its changes over time."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError

_LOOKED_AT = 4096  # batch sizes to try on either side, so that an error can suggest one that works
_LARGEST = 1 << 20  # largest batch size that an error suggests

Weights: TypeAlias = Sequence[tuple[str, float]]  # (source, weight) pairs
Segments: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]  # (first step, rows of each source), from step 0 on


@dataclasses.dataclass(frozen=True)
class Shares:
    """The rows of a step that each source fills; a single data set fills all rows of every step.

    A source is a separate input, whose steps are its *units*. A step takes the next units of each source.

    Attributes:
      segments: (first step, rows of each source), from step 0 on; one segment if the rows never change.
      units: number of rows in a unit of each source.
    """

    segments: Segments
    units: tuple[int, ...]

    @property
    def take_turns(self) -> bool:
        """Whether one source fills all rows of any step."""
        return all(sum(map(bool, rows)) == 1 for _, rows in self.segments)

    def rows_at(self, step: int) -> tuple[int, ...]:
        """Returns the number of rows of each source in a global step."""
        return [rows for first, rows in self.segments if first <= step][-1]

    def units_before(self, source: int, step: int) -> int:
        """Returns the number of units of a source that are taken before a global step."""
        stops, unit = [first for first, _ in self.segments[1:]] + [step], self.units[source]
        each = zip(self.segments, stops, strict=True)
        return sum(max(0, min(stop, step) - first) * rows[source] // unit for (first, rows), stop in each)

    def units_at(self, step: int) -> list[tuple[int, int]]:
        """Returns (source, unit number) for the units that a step takes, in the order of a block's rows."""
        return [
            (source, self.units_before(source, step) + i)
            for source, count in enumerate(self.rows_at(step))
            for i in range(count // self.units[source])
        ]

    def step_of_unit(self, source: int, number: int) -> int | None:
        """Returns the global step that takes a unit of a source; None if the source ends before that unit."""
        first, rows = [one for one in self.segments if self.units_before(source, one[0]) <= number][-1]
        each = rows[source] // self.units[source]
        return first + (number - self.units_before(source, first)) // each if each else None

    def between(self, start: int, stop: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """Returns (first step, end, units of each source per step) for the segments in a range of steps."""
        stops = [first for first, _ in self.segments[1:]] + [stop]
        found = [
            (max(first, start), min(end, stop), tuple(n // unit for n, unit in zip(rows, self.units, strict=True)))
            for (first, rows), end in zip(self.segments, stops, strict=True)
        ]
        # If nothing is left to feed, the last segment determines the form of the elements.
        return [one for one in found if one[0] < one[1]] or [(start, start, found[-1][2])]

    def place(self, source: int, unit: int, row: int) -> tuple[int, int] | None:
        """Returns the global step that takes a unit of a source, and the row of the global batch for one of its rows.

        Returns None if the source ends before that unit.
        """
        step = self.step_of_unit(source, unit)
        if step is None:
            return None
        units = self.units_at(step)
        rows = rows_in_blocks([self.units[number] for number, _ in units])
        return step, int(rows[units.index((source, unit))][row])


def shares_of(rows: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Distributes rows by weight with the largest remainder method; ties go to the earlier weight."""
    exact = _as_written(weights)
    quotas = [rows * weight / sum(exact) for weight in exact]
    shares = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: shares[i] - quotas[i])
    for i in by_remainder[: rows - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


def rows_in_blocks(shares: Sequence[int]) -> list[NDArray[np.int64]]:
    """Returns the rows of the joint batch that each source fills, int64 (share,) each, in the source's order.

    The batch consists of equal blocks, as many as the greatest common divisor of the shares. Each block has the next
    rows of the first source, then of the second, and so on.
    """
    blocks = math.gcd(*shares)
    each = np.array(shares, np.int64) // blocks
    firsts, starts = np.cumsum(each) - each, np.arange(blocks)[:, None] * each.sum()
    return [(starts + first + np.arange(count)).reshape(-1) for first, count in zip(firsts, each, strict=True)]


def checked_shares(rows: int, sources: Weights) -> tuple[int, ...]:
    """Returns the number of rows of each (source, weight), like `shares_of`.

    Raises:
      UsageError: a source with a weight above 0 has no row.
    """
    weights = [weight for _, weight in sources]
    shares = shares_of(rows, weights)
    for (name, _), weight, share in zip(sources, _as_written(weights), shares, strict=True):
        if not share and weight:
            total = sum(_as_written(weights), Fraction())
            least = math.ceil(total / weight)
            advice = f"with global_batch_size={least} it has one" if least <= _LARGEST else "give it a larger weight"
            raise UsageError(
                f"source {name!r}: its weight, {_short(weight)} of {_short(total)}, gives it none of the "
                f"global_batch_size={rows} rows; {advice}"
            )
    return shares


def _as_written(weights: Sequence[float]) -> list[Fraction]:
    """Returns the weights as decimal fractions, whose sums neither round nor overflow."""
    return [Fraction(repr(float(weight))) for weight in weights]


def _short(number: Fraction) -> str:
    return f"{float(min(number, Fraction(sys.float_info.max))):g}"


def check_divided(rows: int, sources: Weights, parts: int, what: str = "replicas") -> None:
    """Raises UsageError, with the nearest weights and rows that work, if `parts` does not divide every share.

    Args:
      rows: G, the global batch size.
      sources: (source, weight) pairs.
      parts: R or V, the number of parts.
      what: name of the parts, for the error.
    """
    shares = checked_shares(rows, sources)
    if not any(share % parts for share in shares):
        return
    given = ", ".join(f"{name} {share}" for (name, _), share in zip(sources, shares, strict=True))
    weights, working = [weight for _, weight in sources], []
    near = shares_of(rows // parts, weights)
    if rows % parts == 0 and all(share or not weight for share, weight in zip(near, weights, strict=True)):
        working.append(f"the weights {' and '.join(str(parts * share) for share in near)}")
    if sizes := _nearest_rows(rows, weights, parts):
        working.append(f"global_batch_size={' and '.join(map(str, sizes))}")
    nearest = f"; nearest that work: {', or '.join(working)}" if working else ""
    raise UsageError(
        f"global_batch_size={rows} gives the sources {given} rows, of which {parts} {what} need equal parts{nearest}"
    )


def _nearest_rows(rows: int, weights: Sequence[float], parts: int) -> list[int]:
    """Returns the nearest smaller and larger global batch in which every share is a multiple of `parts`."""

    def works(size: int) -> bool:
        shares = zip(shares_of(size, weights), weights, strict=True)
        return all(share % parts == 0 and bool(share or not weight) for share, weight in shares)

    first = rows // parts * parts
    below = range(first, max(0, first - parts * _LOOKED_AT), -parts)
    above = range(first + parts, first + parts * _LOOKED_AT, parts)
    return [size for sizes in (below, above) for size in [next(filter(works, sizes), None)] if size]


def unit_of(segments: Segments) -> int:
    """Returns U, the rows of a unit: the greatest common divisor of all sources' rows in all segments."""
    return math.gcd(*(count for _, rows in segments for count in rows))


def with_unit(segments: Segments, unit: int, step: int) -> Segments | None:
    """Returns segments changed as little as possible, from a step on, to give the schedule a certain unit.

    Returns None if rounding to multiples of the unit does not give it.
    """
    rows = sum(segments[0][1])
    near = tuple(
        (first, own if first < step else tuple(unit * n for n in shares_of(rows // unit, own)))
        for first, own in segments
    )
    changes = (
        (a > 0) != (b > 0)
        for (_, one), (_, other) in zip(segments, near, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    is_like = not any(changes)
    return near if is_like and rows % unit == 0 and unit_of(near) == unit else None


def segments_text(segments: Segments) -> str:
    """Returns segments as text, the rows of each source from each step on: `0:115+13,10000:64+64`, or `none`."""
    return ",".join(f"{first}:{'+'.join(map(str, rows))}" for first, rows in segments) or "none"
