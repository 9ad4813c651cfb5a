"""The picture of the floors is the one that the contracts give."""

import pathlib
import runpy

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


def test_the_picture_is_up_to_date():
    drawn = runpy.run_path(str(DOCS / "floors.py"))["draw"]()
    assert drawn == (DOCS / "floors.svg").read_text(encoding="utf-8"), "run: python docs/floors.py"


def test_architecture_names_files_that_exist():
    root, text = DOCS.parent, (DOCS / "architecture.md").read_text(encoding="utf-8")
    homes = ("", "beam_jobs", "pipeline", "pipeline/read", "pipeline/batch", "trainer", "trainer/launching")
    names = {
        w.split(":")[0] for w in text.split("`")[1::2] if ("/" in w or w.endswith(".py")) and not set(w) & set("<{ (")
    }
    assert len(names) >= 40
    assert {n for n in names if not any((root / home / n).exists() for home in homes)} == set()
