"""--transform with any number of workers, on any runner: the same bytes."""

import pytest

from pipeline import manifest
from tests import forked
from tests.engines import commands
from tests.integration.test_engines import BUNDLES, IN_MEMORY, WORKER_PROCESSES

CODE = """
import numpy as np

def halves(rows):
    kept = {name: values[rows["label"] != "3"] for name, values in rows.items()}
    sides = kept["image"][:, :, :14], kept["image"][:, :, 14:]
    keys = [f"{key}/{side}" for side in ("left", "right") for key in kept["key"]]
    return {"image": np.concatenate(sides), "label": [*kept["label"]] * 2, "key": keys}
"""


def convert(folder, out, *flags):
    done = forked.run(
        ["-m", "beam_jobs.convert", *commands.DIGITS, "--transform=mine:halves", f"--data_dir={out}", *flags],
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return commands.digests(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the user's module, and the data set made by one worker in it."""
    folder = tmp_path_factory.mktemp("halves")
    (folder / "mine.py").write_text(CODE)
    convert(folder, folder / "one", "--direct_num_workers=1")
    return folder


@pytest.mark.parametrize(
    "flags",
    [WORKER_PROCESSES, *(pytest.param(flags, marks=pytest.mark.slow) for flags in (IN_MEMORY, BUNDLES))],
    ids=["processes", "threads", "bundles"],
)
def test_any_number_of_workers_writes_the_same_bytes_on_any_runner(flags, folder, tmp_path):
    assert convert(folder, tmp_path / "out", *flags) == commands.digests(folder / "one")
    made = manifest.load(folder / "one")
    assert [split.num_examples for split in made.splits.values()] == [2 * (368 - 38), 2 * (1429 - 145)]
    assert made.class_names == tuple("012456789")
