"""The picture of the floors shows the modules of the contracts, and the pages name files that exist."""

import pathlib
import runpy
import xml.etree.ElementTree as ElementTree

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


def test_the_picture_shows_every_module_on_its_floor():
    script = runpy.run_path(str(DOCS / "floors.py"))
    texts = [
        (element.text, float(element.get("x")), float(element.get("y")))
        for element in ElementTree.parse(DOCS / "floors.svg").iter("{http://www.w3.org/2000/svg}text")
        if element.get("font-weight") == "bold"
    ]
    titles = [i for i, (text, *_) in enumerate(texts) if text.removesuffix("/") in script["COLORS"]]
    assert len(titles) == len(script["COLORS"])
    for title, end in zip(titles, [*titles[1:], None], strict=True):
        shown: dict[float, set[str]] = {}
        for text, _, y in texts[title + 1 : end]:
            shown.setdefault(y, set()).add(text.removesuffix("/").removesuffix(".py"))
        package = texts[title][0].removesuffix("/")
        floors = [shown[y] for y in sorted(shown)]
        assert floors == [set(floor) for floor in script["floors"](package)], "run: python docs/floors.py"


def test_architecture_names_files_that_exist():
    root, text = DOCS.parent, (DOCS / "architecture.md").read_text(encoding="utf-8")
    homes = ("", "beam_jobs", "pipeline", "pipeline/read", "pipeline/batch", "trainer", "trainer/launching")
    names = {
        w.split(":")[0] for w in text.split("`")[1::2] if ("/" in w or w.endswith(".py")) and not set(w) & set("<{ (")
    }
    assert len(names) >= 40
    assert {n for n in names if not any((root / home / n).exists() for home in homes)} == set()
