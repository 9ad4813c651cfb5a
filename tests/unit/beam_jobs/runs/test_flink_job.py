import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from beam_jobs.runs import flink_job
from tests.engines.commands import wait_for
from tests.forked import ROOT

COMMAND = """
import sys, time
from beam_jobs.runs import flink_job
from beam_jobs.runs.lifeline import Lifeline
line = Lifeline()
flink_job.watch(line.port, sys.argv[1], "mine")
while not line._workers:
    time.sleep(0.01)
print("watched", flush=True)
time.sleep(60)
"""


class JobManager(http.server.ThreadingHTTPServer):
    """Of a cluster whose jobs take three looks to be cancelled."""

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
    flink_job.cancel(cluster.url, "mine")
    assert cluster.cancelled == ["mine"]
    assert cluster.states == {"mine": "CANCELED", "another": "RUNNING"}


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def test_a_job_that_has_ended_is_left_alone(cluster, state):
    cluster.states["mine"] = state
    flink_job.cancel(cluster.url, "mine")
    assert cluster.cancelled == []


def test_a_cluster_that_is_gone_is_nothing_to_wait_for():
    flink_job.cancel("http://127.0.0.1:1", "mine")


def test_the_job_of_a_killed_command_is_cancelled(cluster):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", COMMAND, cluster.url]
    command = subprocess.Popen(program, stdout=subprocess.PIPE, env=environment, text=True)
    assert command.stdout.readline() == "watched\n"
    assert cluster.cancelled == []
    command.kill()
    command.wait()
    assert wait_for(lambda: cluster.states["mine"] == "CANCELED", 10)
    assert cluster.cancelled == ["mine"]
