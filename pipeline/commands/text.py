"""Text for people: numbers with nouns, sizes, tables. Text from people: calls such as `crop(size=24)`."""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from pipeline.errors import UsageError

_JOINERS = "\u200c\u200d"  # unprintable by Python's rule, but part of words (Persian, Hindi) and emoji
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """Returns a text with line breaks and invisible characters (controls, bad Unicode) escaped."""
    if text.isprintable():
        return text
    is_shown = lambda c: c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs"  # noqa: E731
    return "".join(c if is_shown(c) else repr(c)[1:-1] for c in text)


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun: `1 worker`, `1,024 workers`; `plural` is for irregular nouns."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def shape_of(sizes: Iterable[int | None]) -> str:
    """Returns the shape of an array as text: `28x28x1`, or `?x?x3` if some sizes vary."""
    return "x".join("?" if size is None else str(size) for size in sizes)


def some_of(names: Sequence[str], most: int) -> str:
    """Returns the first names, at most `most`: `a, b`, or `a, b, c, ...` if there are more."""
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def range_of(values: Iterable[float], digits: int = 0) -> str:
    """Returns the range of some numbers: `9 to 11`, or `9` if they are equal."""
    ordered = sorted(values)
    low, high = (f"{value:,.{digits}f}" for value in (ordered[0], ordered[-1]))
    return low if low == high else f"{low} to {high}"


def scale_of(num_bytes: int) -> tuple[int, str]:
    """Returns the unit suited to a number of bytes: its size in bytes and its name."""
    power = min(len(_UNITS) - 1, max(0, int(num_bytes).bit_length() - 1) // 10)
    return 1 << 10 * power, _UNITS[power]


def size_of(num_bytes: int) -> str:
    """Returns a number of bytes in a suitable unit: `740 bytes`, `8.4 MiB`."""
    scale, unit = scale_of(num_bytes)
    return f"{num_bytes / scale:,.{0 if scale == 1 else 1}f} {unit}"


def sizes_of(values: Iterable[int]) -> str:
    """Returns the range of some numbers of bytes: `9.0 to 11.5 MiB`, or `9.0 MiB` if equal."""
    ordered = sorted(values)
    low, high = size_of(ordered[0]), size_of(ordered[-1])
    if low == high:
        return low
    number, unit = low.split()
    return f"{number if high.endswith(unit) else low} to {high}"


def table(rows: Sequence[Sequence[tuple[str, str]]], left: Collection[str] = ()) -> list[str]:
    """Returns the lines of a table with aligned columns: the column names, then the rows, all `printable`.

    Args:
      rows: (column name, cell) pairs, with the same columns in each row; without rows there are no lines.
      left: columns to align left, like the first; all others are aligned right.
    """
    if not rows:
        return []
    names = [name for name, _ in rows[0]]
    lines = [list(map(printable, line)) for line in (names, *([cell for _, cell in row] for row in rows))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    align = [str.ljust if i == 0 or name in left else str.rjust for i, name in enumerate(names)]
    return [
        "  ".join(pad(cell, width) for pad, cell, width in zip(align, line, widths, strict=True)).rstrip()
        for line in lines
    ]


def parse_call(text: str, flag: str, what: str) -> tuple[str, dict[str, object]]:
    """Parses a call into its name and arguments.

    Args:
      text: name, or a name with keyword arguments that are literals.
      flag: name of the flag or argument with the text, for errors.
      what: kind of thing that the text should name, for errors.

    Raises:
      UsageError: the text is not such a call.
    """
    problem = UsageError(f"{flag}: {text!r} is not {what}; write a name or name(argument=value)")
    calls = _calls(text)
    if calls is None or len(calls) != 1:
        raise problem
    return calls[0]


def parse_calls(text: str, flag: str, what: str) -> list[tuple[str, dict[str, object]]]:
    """Parses one or more calls, such as `a | b(c=1)`; otherwise like `parse_call`."""
    calls = _calls(text)
    if calls is None:
        raise UsageError(f"{flag}: {text!r} is not {what}; write name(argument=value), and | between several")
    return calls


def _calls(text: str) -> list[tuple[str, dict[str, object]]] | None:
    try:
        return [_call(node) for node in _operands(ast.parse(text.strip(), mode="eval").body)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _operands(tree: ast.expr) -> list[ast.expr]:
    operands: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        operands.append(tree.right)
        tree = tree.left
    return [tree, *reversed(operands)]


def _call(tree: ast.expr) -> tuple[str, dict[str, object]]:
    """Returns a call's name and arguments; raises ValueError if it is not a call."""
    if isinstance(tree, ast.Constant) and tree.value is None:  # Python reads `None`, people mean `none`
        return "none", {}
    if isinstance(tree, ast.Name):
        return tree.id, {}
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        raise ValueError
    if any(keyword.arg is None for keyword in tree.keywords):
        raise ValueError
    return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
