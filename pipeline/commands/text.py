"""Text for people: numbers with their nouns, and aligned columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def count_of(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 worker`, `1,024 workers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Returns one line per row, the header first, in columns of equal width: `left` ones left-aligned, others right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
