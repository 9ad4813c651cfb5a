"""Writes docs/tutorial.ipynb: the tutorial up to the model's mistakes, for Jupyter. Run: python docs/notebook.py.

The text is the page's. A program becomes a cell that writes its file, a command a cell that runs it, and a picture a
cell that shows the reader's own.
"""

from __future__ import annotations

import json
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parent
END = "\n## 5. "  # what follows needs a second terminal
PICTURES = {
    "tutorial_card.png": "display.HTML(filename='data/card.html')",
    "tutorial_batch.png": "display.Image('batch.png')",
    "tutorial_evaluation.png": (
        "display.display(display.Image('evaluation/confusion.png'))\ndisplay.display(display.Image('evaluation/mistakes.png'))"
    ),
}
PART = re.compile(r"```(\w+)\n(.*?)```\n|^!\[.*?\]\((\S+)\)\n", re.DOTALL | re.MULTILINE)


def notebook() -> str:
    """Returns the file's text."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8").partition(END)[0]
    cells, end = [], 0
    for part in PART.finditer(page):
        cells.append(("markdown", page[end : part.start()]))
        language, block, picture = part.groups()
        if picture:
            cells.append(("code", f"from IPython import display\n\n{PICTURES[picture]}"))
        elif language == "python":
            cells.append(("code", re.sub(r"# (\S+)\n", r"%%writefile \1\n", block, count=1)))
        elif language == "sh":
            cells.append(("code", "\n".join(f"!{line}" for line in block.splitlines())))
        end = part.end()  # what a command printed is left out: the reader's own is there
    cells = [(kind, text.strip()) for kind, text in [*cells, ("markdown", page[end:])] if text.strip()]
    content = {
        "cells": [_cell(f"cell-{number}", kind, text) for number, (kind, text) in enumerate(cells)],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1) + "\n"


def _cell(identity: str, kind: str, text: str) -> dict[str, object]:
    outputs = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": identity, "metadata": {}, "source": text.splitlines(keepends=True), **outputs}


if __name__ == "__main__":
    (DOCS / "tutorial.ipynb").write_text(notebook(), encoding="utf-8")
