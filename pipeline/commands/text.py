"""Text for people: numbers with their nouns, sizes, ranges, and aligned columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun: `1 worker`, `1,024 workers`; `plural` is for nouns that do not just add an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def range_of(values: Iterable[float], digits: int = 0) -> str:
    """Returns the smallest and the largest of some numbers: `9 to 11`, or `9` where these are equal."""
    ordered = sorted(values)
    low, high = (f"{value:,.{digits}f}" for value in (ordered[0], ordered[-1]))
    return low if low == high else f"{low} to {high}"


def scale_of(num_bytes: int) -> tuple[int, str]:
    """Returns the unit to show so many bytes in: its bytes and its name."""
    power = min(len(_UNITS) - 1, max(0, int(num_bytes).bit_length() - 1) // 10)
    return 1 << 10 * power, _UNITS[power]


def size_of(num_bytes: int) -> str:
    """Returns a number of bytes in the unit that fits it: `740 bytes`, `8.4 MiB`."""
    scale, unit = scale_of(num_bytes)
    return f"{num_bytes / scale:,.{0 if scale == 1 else 1}f} {unit}"


def sizes_of(values: Iterable[int]) -> str:
    """Returns the smallest and the largest of some numbers of bytes: `9.0 to 11.5 MiB`, or one where equal."""
    ordered = sorted(values)
    low, high = size_of(ordered[0]), size_of(ordered[-1])
    if low == high:
        return low
    number, unit = low.split()
    return f"{number if high.endswith(unit) else low} to {high}"


def table(rows: Sequence[Sequence[tuple[str, str]]], left: Collection[str] = ()) -> list[str]:
    """Returns a line with the names of the columns and one line per row, in columns of equal width.

    Args:
      rows: (name of the column, cell), the same columns in each row; of no rows there are no lines.
      left: columns that are left-aligned, besides the first; the others are right-aligned.
    """
    if not rows:
        return []
    names = [name for name, _ in rows[0]]
    lines = [names, *([cell for _, cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    align = [str.ljust if i == 0 or name in left else str.rjust for i, name in enumerate(names)]
    return [
        "  ".join(pad(cell, width) for pad, cell, width in zip(align, line, widths, strict=True)).rstrip()
        for line in lines
    ]
