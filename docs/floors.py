"""Draws docs/floors.svg: the floors of the three packages, as the contracts in pyproject.toml have them.

    python docs/floors.py

Each box is a folder or a file, with the first sentence of its docstring. It may import from the floors below, never
from its own or from those above.
"""

from __future__ import annotations

import ast
import pathlib
import sys
import textwrap
import tomllib
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "floors.svg"
COLORS = {"trainer": "#fdecea", "beam_jobs": "#e8f0fe", "pipeline": "#e9f5ec"}
WIDTH, MARGIN, GAP = 1240, 16, 8  # pixels
BOX_HEIGHT, TITLE_HEIGHT = 62, 34
LINES = 3  # of a box's sentence


def floors(package: str) -> list[list[str]]:
    """Returns the modules of each floor of a package, from the top, as its contract lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract.get("containers") == [package]:
            return [[name.strip() for name in layer.replace(":", "|").split("|")] for layer in contract["layers"]]
    raise LookupError(f"pyproject.toml: no layers contract for {package}")


def sentence(package: str, module: str) -> str:
    """Returns the first sentence of a module's docstring."""
    path = ROOT / package / module
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("`", "").rstrip(".")


def text(x: float, y: float, words: str, size: float, extra: str = "") -> str:
    """Returns an SVG text element."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="#222" {extra}>{escape(words)}</text>'


def box(package: str, module: str, x: float, y: float, width: float) -> list[str]:
    """Returns the elements of a box at (x, y)."""
    name = module + ("/" if (ROOT / package / module).is_dir() else ".py")
    letters = max(8, int((width - 12) / 5.3))
    lines = textwrap.wrap(sentence(package, module), letters)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], lines[LINES - 1][: letters - 1].rstrip() + "…"]
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{BOX_HEIGHT}" rx="6"'
    return [
        f'{shape} fill="{COLORS[package]}" stroke="#8a8a8a"/>',
        text(x + 7, y + 16, name, 12.5, 'font-weight="bold"'),
        *(text(x + 7, y + 31 + 12.5 * i, line, 10) for i, line in enumerate(lines)),
    ]


def column(package: str, x: float, y: float, width: float) -> tuple[list[str], float]:
    """Returns the elements of a package, its top floor at y, and where it ends."""
    elements = [text(x, y + 20, f"{package}/", 17, 'font-weight="bold"')]
    y += TITLE_HEIGHT
    for floor in floors(package):
        wide = (width - GAP * (len(floor) - 1)) / len(floor)
        for i, module in enumerate(floor):
            elements += box(package, module, x + i * (wide + GAP), y, wide)
        y += BOX_HEIGHT + GAP
    return elements, y


def draw() -> str:
    """Returns the picture as SVG."""
    half = (WIDTH - 3 * MARGIN) / 2
    left, left_end = column("beam_jobs", MARGIN, MARGIN, half)
    right, right_end = column("trainer", 2 * MARGIN + half, MARGIN, half)
    below, end = column("pipeline", MARGIN, max(left_end, right_end) + MARGIN, WIDTH - 2 * MARGIN)
    size = f'viewBox="0 0 {WIDTH} {end:g}" width="{WIDTH}" height="{end:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *left, *right, *below, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT), file=sys.stderr)
