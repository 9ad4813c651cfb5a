import os
import pathlib
import subprocess
import sys
import time

import pytest

from beam_jobs.runs import supervisor
from beam_jobs.runs.lifeline import Lifeline

ROOT = pathlib.Path(__file__).parents[4]


def supervise(line, folder, *program):
    folder.mkdir()
    command = [sys.executable, "-m", "beam_jobs.runs.supervisor", str(line.port), str(folder), *program]
    return subprocess.Popen(command, cwd=ROOT)


def wait_for(path):
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_cut_line_ends_the_program_and_removes_its_files(tmp_path):
    line = Lifeline()
    script = "import os, time; print(os.getpid(), flush=True); open('left', 'w').close(); time.sleep(60)"
    folder = tmp_path / "folder"
    process = supervise(line, folder, "sh", "-c", f'cd {folder} && exec {sys.executable} -c "{script}"')
    program = int(wait_for(folder / supervisor.OUTPUT))
    time.sleep(0.1)
    line.cut()
    assert process.wait(5) == 1
    assert ended(program)
    assert not folder.exists()


def test_a_program_that_ends_by_itself_says_how_until_the_line_is_cut(tmp_path):
    line = Lifeline()
    process = supervise(line, tmp_path / "folder", "sh", "-c", "echo no such cluster; exit 7")
    assert wait_for(tmp_path / "folder" / supervisor.ENDED) == "7"
    assert (tmp_path / "folder" / supervisor.OUTPUT).read_text() == "no such cluster\n"
    assert process.poll() is None
    line.cut()
    assert process.wait(5) == 1
    assert not (tmp_path / "folder").exists()


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs /proc")
def test_it_starts_nothing_that_outlives_a_command_that_is_gone(tmp_path):
    line = Lifeline()
    line.cut()
    process = supervise(line, tmp_path / "folder", "sleep", "60")
    assert process.wait(20) == 1
    assert not (tmp_path / "folder").exists()
