"""A contestant between its rounds is stopped with all that it has started, and ends with all of it."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.contestant import Contestant, Measured, in_turns
from benchmarks.rounds import Round
from pipeline.errors import DataError

ROOT = pathlib.Path(__file__).parents[3]
PROGRAM = """
import json, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], stdout=subprocess.DEVNULL)
print("ready", flush=True)
for line in sys.stdin:
    if line == "end\\n":
        break
    print(json.dumps({"heard": line.strip(), "child": child.pid}), flush=True)
"""


@pytest.fixture
def contestant():
    started = Contestant("one", [sys.executable, "-c", PROGRAM])
    yield started
    started.end()


def state_of(pid):
    """Returns the letter of a process's state; empty if it has ended."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
    return "" if state == "Z" else state


def wait_for(pid, states):
    deadline = time.monotonic() + 10
    while state_of(pid) not in states and time.monotonic() < deadline:
        time.sleep(0.01)
    return state_of(pid)


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_it_runs_in_its_turns_only(contestant):
    assert contestant.line() == "ready\n"
    for number in ("1", "2"):
        answer = contestant.ask(number)
        assert answer["heard"] == number
        assert wait_for(answer["child"], ["T"]) == "T"
    contestant._signal(signal.SIGCONT)
    assert wait_for(answer["child"], ["R", "S"]) in ("R", "S")
    contestant.end()
    assert wait_for(answer["child"], [""]) == ""


def test_one_that_has_ended_is_an_error(contestant):
    contestant.line()
    with pytest.raises(DataError, match="one: ended; its error is above"):
        contestant.ask("end")


def test_one_that_ends_is_left_out_and_the_others_go_on(capfd):
    ready = "import json, sys; print(json.dumps({}), flush=True)\n"
    rounds = 'for line in sys.stdin: print(json.dumps({"rate": float(line), "cpu": 2.0}), flush=True)'
    programs = {"good": ready + rounds, "early": "print('no', file=__import__('sys').stderr)", "late": ready}
    found = in_turns({name: [sys.executable, "-c", program] for name, program in programs.items()}, 2, 0.5)
    assert found == {"good": Measured({}, [Round(0.5, 2.0), Round(0.5, 2.0)])}
    said = ["early: skipped, early: ended; its error is above", "late: ended; its error is above"]
    assert capfd.readouterr().out.splitlines() == said


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_its_peak_is_the_largest_memory_that_it_and_its_children_have_had():
    program = """
import subprocess, sys
from benchmarks import processes
before, held = processes.peak(), b"x" * (200 << 20)
del held
after = processes.peak()
child = subprocess.Popen([sys.executable, "-c", "print(len(b'x' * (100 << 20)), flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(after - before >> 20, processes.peak() - after >> 20, processes.memory() >> 20)
child.kill()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    own, child, now = map(int, done.stdout.split())
    assert 195 <= own < 205
    assert 100 <= child < 120
    assert now < 60
