import os
import subprocess
import sys
import tempfile

import pytest

from beam_jobs.runs import temporary
from tests.forked import ROOT

KEEP = """
import tempfile, time
from beam_jobs.runs import temporary
with temporary.folder() as folder:
    tempfile.mkdtemp(prefix="beam-pipeline-temp")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start(place):
    environment = os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", KEEP], stdout=subprocess.PIPE, env=environment, text=True)
    return process, process.stdout.readline().strip()


def test_what_a_run_leaves_goes_with_it(place):
    with temporary.folder() as folder:
        left = tempfile.mkdtemp(prefix="beam-pipeline-temp")
        assert os.path.dirname(left) == str(folder)
    assert tempfile.gettempdir() == str(place)
    assert list(place.iterdir()) == []


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(place):
    killed, left = start(place)
    running, kept = start(place)
    killed.kill()
    killed.wait()
    assert len(os.listdir(left)) == 1
    (place / "stepfeed-run-file").touch()
    (place / "other").mkdir()
    with temporary.folder() as mine:
        assert set(place.iterdir()) == {
            mine,
            place / os.path.basename(kept),
            place / "other",
            place / "stepfeed-run-file",
        }
        assert len(os.listdir(kept)) == 1
    running.kill()
    running.wait()
