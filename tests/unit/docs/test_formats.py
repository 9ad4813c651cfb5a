"""docs/formats.md names what lies in the folder of a run."""

import inspect
import pathlib

from trainer.run_folder import RunFolder

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_every_place_in_a_runs_folder_is_described():
    folder = RunFolder(pathlib.Path())
    places = {
        str(getattr(folder, name)) for name, _ in inspect.getmembers(RunFolder, lambda of: isinstance(of, property))
    }
    assert len(places) == 12
    assert {place for place in places if f"`{place}`" not in PAGE and f"`{place}/`" not in PAGE} == set()
