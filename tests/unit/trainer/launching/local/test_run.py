"""A job on this machine from its flags on, with shells for trainers; and what outlives a launcher that is killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from pipeline.errors import RerunError, UsageError
from tests.helpers.datasets import write_dataset
from tests.helpers.launches import is_running, left_within
from tests.unit.trainer.launching.local.puppets import PROGRAM, SECONDS
from trainer import launch
from trainer.launching.local import guardian
from trainer.launching.local.supervisor import JobFailedError


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Returns a function that runs the command, given the orders of its processes; it returns the status it leaves."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_dataset(tmp_path / "data", (24,), (4, 4, 1), test_counts=(4,))
    folder, pipes = tmp_path / "run" / "launch", []
    (folder / "heartbeats").mkdir(parents=True)

    def start(orders, *flags):
        for name, lines in orders.items():
            os.mkfifo(path := folder / "heartbeats" / f"{name}.json.orders")
            pipes.append(os.open(path, os.O_RDWR))
            os.write(pipes[-1], "".join(f"{line}\n" for line in lines).encode())
        trainer = (f"--data_dir={tmp_path}/data", f"--model_dir={tmp_path}/run", "--global_batch_size=12")
        try:
            launch.main(["--restart_delay=0.01", "--silent_timeout=5", *flags, "--", *trainer], (*PROGRAM, "puppet"))
        finally:
            start.status = (
                json.loads((folder / "status.json").read_text()) if (folder / "status.json").exists() else None
            )
        return start.status

    yield start
    for pipe in pipes:
        os.close(pipe)


def test_a_job_is_run_to_its_end(start, capfd):
    orders = {
        "worker-0": ["beat 3; sleep 0.2; rest", "echo $STEPFEED_JOB $*; exit 0"],
        "worker-1": ["beat 3; exit 75", "exit 0"],
    }
    status = start(orders, "--num_workers=2")
    assert (status["state"], status["exit_code"], status["restarts"], status["num_workers"]) == ("done", 0, 1, 2)
    out, err = capfd.readouterr()
    [line] = [line for line in out.splitlines() if line.startswith("worker 0 | ")]
    assert line.startswith(f"worker 0 | {status['job']} ")
    assert line.endswith("--global_batch_size=12 --strategy=multiworker")  # the flags that each process gets
    assert status["flags"]["order"]["global_batch_size"] == 12
    assert err.startswith("trainer.launch: 2 workers on CPUs; ")
    assert not any(is_running(one["pid"]) for one in status["processes"])


def test_a_job_that_fails_has_the_code_of_the_first_failure(start):
    with pytest.raises(JobFailedError) as error:
        start({"worker-0": ["beat 3; exit 1"]}, "--num_workers=1")
    assert (error.value.exit_code, start.status["state"], start.status["exit_code"]) == (1, "failed", 1)
    assert start.status["error"] == start.status["processes"][0]["last_error"]


def test_an_elastic_job_says_which_numbers_of_workers_cannot_share_a_batch(start, capfd):
    start({f"worker-{number}": ["exit 0"] for number in range(6)}, "--elastic=4:6")
    assert "never 5 workers" in capfd.readouterr().err
    assert start.status["elastic"] == [4, 6]


def test_a_job_that_is_stopped_says_so_in_its_status(start):
    with pytest.raises(RerunError):
        start({"worker-0": [f"beat 3; sleep 0.2; kill -TERM {os.getpid()}; rest"]}, "--num_workers=1")
    assert (start.status["state"], start.status["exit_code"]) == ("stopped", 75)


def test_a_cluster_of_ones_own_is_refused(start, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(UsageError):
        start({}, "--num_workers=1")
    assert start.status is None  # before anything is written


_LAUNCHER = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from trainer.launching.local.guardian import Guardian
with Guardian(float(sys.argv[2])) as guardian:
    for script in sys.argv[3:]:
        process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
        guardian.guard(process.pid)
        print(process.pid, flush=True)
    ended = subprocess.Popen(["true"], start_new_session=True)
    guardian.guard(ended.pid)
    ended.wait()
    guardian.release(ended.pid)
    time.sleep(1000)
"""


def test_the_processes_of_a_launcher_that_is_killed_end_too(tmp_path):
    """One that is stopped is woken, and saves if the system tells it to; one that does not end is killed."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(launch.__file__)))
    saves = f"trap 'touch {tmp_path}/saved; exit 75' CONT; kill -STOP $$; while :; do sleep 0.05; done"
    command = [sys.executable, "-S", "-c", _LAUNCHER, root, "1.0", saves, "trap '' TERM; while :; do sleep 0.05; done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        pids = [int(launcher.stdout.readline()) for _ in range(2)]
        time.sleep(0.3)
        launcher.send_signal(signal.SIGKILL)
    assert left_within(SECONDS, pids) == []
    assert (tmp_path / "saved").exists()


def test_a_process_that_has_ended_but_was_not_waited_for_does_not_run():
    process = subprocess.Popen(["true"])
    end = time.monotonic() + SECONDS
    while guardian._is_running(process.pid):
        assert time.monotonic() < end
    process.wait()
    assert guardian._is_running(os.getpid())
