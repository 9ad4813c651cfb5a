import os
import pathlib
import subprocess
import sys
import time

import pytest

from beam_jobs.runs.lifeline import Lifeline

ROOT = pathlib.Path(__file__).parents[4]
HOLD = """
import sys, time
from beam_jobs.runs import lifeline
lifeline.hold(int(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""
COMMAND = """
import subprocess, sys, time
from beam_jobs.runs.lifeline import Lifeline
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(Lifeline().port)], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)
"""


def start(program, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_cut_line_ends_every_worker_before_it_returns():
    line = Lifeline()
    workers = [start(HOLD, str(line.port)) for _ in range(2)]
    assert [worker.stdout.readline() for worker in workers] == ["held\n"] * 2
    line.cut()
    assert [worker.wait(1) for worker in workers] == [1, 1]


def test_a_worker_that_comes_too_late_ends_at_once():
    line = Lifeline()
    line.cut()
    assert start(HOLD, str(line.port)).wait(20) == 1


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_command_ends_its_workers():
    command = start(COMMAND, HOLD)
    worker = int(command.stdout.readline())
    assert alive(worker)
    command.kill()
    command.wait()
    deadline = time.monotonic() + 5
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(worker)
