import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from beam_jobs.runs import lifeline
from beam_jobs.runs.lifeline import Lifeline
from tests.engines.commands import wait_for
from tests.helpers.forked import ROOT

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
from tests.helpers.forked import ROOT
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(Lifeline().port)], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)
"""
FLINK_COMMAND = """
import subprocess, sys, time
from beam_jobs.runs.lifeline import Lifeline
line = Lifeline()
subprocess.Popen(line.command("flink", sys.argv[1], "mine"))
while not line._workers:
    time.sleep(0.01)
print("watched", flush=True)
time.sleep(60)
"""


def start(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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


def supervise(line, folder, *program):
    folder.mkdir()
    return subprocess.Popen(line.command("program", str(folder), *program), cwd=ROOT)


def text_of(path):
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
    program = int(text_of(folder / lifeline.OUTPUT))
    time.sleep(0.1)
    line.cut()
    assert process.wait(5) == 1
    assert ended(program)
    assert not folder.exists()


def test_a_program_that_ends_by_itself_says_how_until_the_line_is_cut(tmp_path):
    line = Lifeline()
    process = supervise(line, tmp_path / "folder", "sh", "-c", "echo no such cluster; exit 7")
    assert text_of(tmp_path / "folder" / lifeline.ENDED) == "7"
    assert (tmp_path / "folder" / lifeline.OUTPUT).read_text() == "no such cluster\n"
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


class JobManager(http.server.ThreadingHTTPServer):
    """On a cluster whose jobs are cancelled only at the third check."""

    def __init__(self, states):
        super().__init__(("127.0.0.1", 0), Answer)
        self.states = states  # {name: state}
        self.looks, self.cancelled = 0, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(http.server.BaseHTTPRequestHandler):
    def answer(self, code, content=b"{}"):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        assert self.path == "/v1/jobs/overview"
        for name in self.server.cancelled:
            self.server.looks += 1
            self.server.states[name] = "CANCELLING" if self.server.looks < 3 else "CANCELED"
        jobs = [{"jid": f"id-{name}", "name": name, "state": state} for name, state in self.server.states.items()]
        self.answer(200, json.dumps({"jobs": jobs}).encode())

    def do_PATCH(self):
        assert self.path.startswith("/v1/jobs/id-")
        assert self.path.endswith("?mode=cancel")
        self.server.cancelled.append(self.path[len("/v1/jobs/id-") : -len("?mode=cancel")])
        self.answer(202)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def cluster():
    with JobManager({"mine": "RUNNING", "another": "RUNNING"}) as server:
        yield server
        server.shutdown()


def test_only_the_named_job_is_cancelled_and_its_end_awaited(cluster):
    lifeline.cancel_flink_job(cluster.url, "mine")
    assert cluster.cancelled == ["mine"]
    assert cluster.states == {"mine": "CANCELED", "another": "RUNNING"}


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def test_a_job_that_has_ended_is_left_alone(cluster, state):
    cluster.states["mine"] = state
    lifeline.cancel_flink_job(cluster.url, "mine")
    assert cluster.cancelled == []


def test_a_cluster_that_is_gone_is_nothing_to_wait_for():
    lifeline.cancel_flink_job("http://127.0.0.1:1", "mine")


def test_the_job_of_a_killed_command_is_cancelled(cluster):
    program = [sys.executable, "-c", FLINK_COMMAND, cluster.url]
    command = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert command.stdout.readline() == "watched\n"
    assert cluster.cancelled == []
    command.kill()
    command.wait()
    assert wait_for(lambda: cluster.states["mine"] == "CANCELED", 10)
    assert cluster.cancelled == ["mine"]


class Ended(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def exits(monkeypatch):
    """The codes with which this process would have ended."""
    codes = []

    def exit_with(code):
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", exit_with)
    return codes


def test_what_must_be_done_at_the_end_is_done_also_where_the_command_is_gone(exits):
    line, done = Lifeline(), []
    line.cut()
    with pytest.raises(Ended):
        lifeline.hold(line.port, lambda: done.append("removed"))
    assert (done, exits) == (["removed"], [1])
    with pytest.raises(Ended):
        lifeline.hold(line.port, lambda: 1 / 0)
    assert exits == [1, 1]  # whatever it raised


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_command_waits_for_what_is_done_at_the_end(exits):
    line, done = Lifeline(), threading.Event()

    def remove():
        time.sleep(0.2)
        done.set()

    lifeline.hold(line.port, remove)
    assert wait_for(lambda: line._workers, 10)
    line.cut()
    assert done.is_set()
    assert wait_for(lambda: exits == [1], 10)


def test_a_job_that_does_not_end_is_not_awaited_for_ever(cluster, monkeypatch):
    monkeypatch.setattr(lifeline, "_CANCEL_SECONDS", 0.0)
    lifeline.cancel_flink_job(cluster.url, "mine")
    assert cluster.cancelled == ["mine"]
    assert cluster.states["mine"] == "RUNNING"  # nobody has looked again
