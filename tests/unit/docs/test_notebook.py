"""docs/tutorial.ipynb is the tutorial's; in the slow lane it is run from its first cell to its last."""

import json
import os
import pathlib
import re
import runpy
import sys

import PIL.Image
import pytest

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


def test_the_notebook_is_that_of_the_page():
    written = runpy.run_path(str(DOCS / "notebook.py"))["notebook"]()
    assert (DOCS / "tutorial.ipynb").read_text(encoding="utf-8") == written, "run: python docs/notebook.py"
    code = ["".join(cell["source"]) for cell in json.loads(written)["cells"] if cell["cell_type"] == "code"]
    assert [cell.split()[0] for cell in code] == [
        "%%writefile", "!python", "!stepfeed", "from", "!stepfeed", "from", "!stepfeed", "!stepfeed", "from"
    ]  # fmt: skip


def test_the_picture_of_a_batch_has_as_many_pieces_as_the_page_says():
    """A row of the sheet is 223 pixels high, with 8 pieces; its title takes the first 22."""
    picture = PIL.Image.open(DOCS / "tutorial_batch.png")
    assert 8 * ((picture.height - 22) // 223) == 32
    assert "![thirty-two pieces as stored" in (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_binder_installs_what_the_tutorial_asks_for():
    """`.binder` is what repo2docker reads; without it, it would build the root's Dockerfile, which has no Jupyter."""
    extra = re.search(r"pip install -e '(\.\[\w+\])'", (DOCS / "tutorial.md").read_text(encoding="utf-8")).group(1)
    folder = DOCS.parent / ".binder"
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["-c ../constraints.txt", extra]
    python = (folder / "runtime.txt").read_text(encoding="utf-8").strip().removeprefix("python-")
    assert python in (DOCS / "commands.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs Jupyter: pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="needs Jupyter: pip install nbclient ipykernel")
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    book = nbformat.reads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"), as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = ["".join(one.get("text", "") for one in cell.outputs) for cell in book.cells if cell.cell_type == "code"]
    assert "208 examples to 2 shards" in said[2]
    assert "validation accuracy = " in said[6]
    assert "checkpoint: run/ckpt-240" in said[6]
    shown = [kind for cell in book.cells for one in cell.get("outputs", []) for kind in one.get("data", {})]
    assert shown.count("image/png") == 3
    assert shown.count("text/html") == 1
