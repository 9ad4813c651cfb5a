"""The picture of the floors is the one that the contracts give."""

import pathlib
import runpy

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


def test_the_picture_is_up_to_date():
    drawn = runpy.run_path(str(DOCS / "floors.py"))["draw"]()
    assert drawn == (DOCS / "floors.svg").read_text(encoding="utf-8"), "run: python docs/floors.py"


def test_architecture_names_files_that_exist():
    root, text = DOCS.parent, (DOCS / "architecture.md").read_text(encoding="utf-8")
    homes = {
        "row becomes": "beam_jobs",
        "record becomes": "pipeline",
        "step of": "trainer",
        "A job of": "trainer/launching",
        "A checkpoint,": "trainer",
    }
    for part, home in homes.items():
        section = next(s for s in text.split("\n## ") if part in s.splitlines()[0])
        names = {w.rstrip(".,;:").split(":")[0] for w in section.split("`")[1::2] if "/" in w or w.endswith(".py")}
        assert len(names) >= 8
        missing = {n for n in names if not (root / n).exists() and not (root / home / n).exists()}
        assert missing == set()
