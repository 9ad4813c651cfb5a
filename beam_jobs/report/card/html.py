"""HTML that no text can break: elements are made of text, which is escaped, and of other elements."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_VOID = ("img", "meta")  # have no end tag
_JOINERS = "\u200c\u200d"  # not printable by Python's rule, but parts of words (Persian, Hindi) and emoji
_LONGEST = 20_000  # characters of one text


class Html(str):
    """Markup, as `element` makes it. Any other string is text."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | int | None) -> Html:
    """Returns an element.

    Args:
      tag: its name.
      children: `Html`, or text to escape.
      attributes: by name (`class_` for class, `stroke_width` for stroke-width); None leaves one out.
    """
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{joined(children)}</{tag}>")


def joined(children: Iterable[str], separator: str = "") -> Html:
    """Returns `Html` and text, which is escaped, one after the other."""
    return Html(separator.join(child if isinstance(child, Html) else escaped(child) for child in children))


def escaped(text: str) -> Html:
    """Returns text as markup: what cannot be seen (controls, marks of direction, bad Unicode) as Python writes it."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"
    visible = "".join(c if c.isprintable() or c in _JOINERS or c == "\n" else repr(c)[1:-1] for c in shown)
    return Html(html.escape(visible))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> Html:
    """Returns a table that scrolls sideways where it is wider than the page.

    Args:
      header: the columns' heads; none for a table without.
      rows: the cells of each row; one cell alone spans all columns.
      numbers: the columns that are aligned as numbers.
    """
    aligned = set(numbers)
    heads = [element("th", text, class_="n" if i in aligned else None, scope="col") for i, text in enumerate(header)]
    body = [_row(row, aligned, len(header)) for row in rows]
    head = element("thead", element("tr", *heads)) if header else Html()
    return element("div", element("table", head, element("tbody", *body)), class_="wide")


def _row(row: Sequence[str], aligned: set[int], columns: int) -> Html:
    if len(row) == 1 and columns > 1:
        return element("tr", element("td", row[0], colspan=columns, class_="gap"))
    return element("tr", *(element("td", cell, class_="n" if i in aligned else None) for i, cell in enumerate(row)))


def bar(part: float) -> Html:
    """Returns a bar, as long as `part` (0 to 1) of its place."""
    rect = element("rect", width=f"{100 * part:.2f}", height=10)
    return element("svg", rect, class_="bar", viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")


def profile(values: Sequence[int], steps: int = 240) -> Html:
    """Returns the outline of many values, in their order, as a filled step curve of at most so many steps."""
    count, top = min(len(values), steps), max(values, default=0) or 1
    means = []
    for i in range(count):
        piece = values[i * len(values) // count : (i + 1) * len(values) // count]
        means.append(sum(piece) / len(piece) / top)
    path = "M0 100" + "".join(f"V{100 - 100 * mean:.1f}H{100 * (i + 1) / count:.2f}" for i, mean in enumerate(means))
    curve = element("path", d=f"{path}V100Z")
    return element(
        "svg", curve, class_="profile", viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true"
    )
