"""A job from start to end, over its restarts, with shells for trainers."""

import json
import os
import signal
import threading
import time

import pytest

from pipeline.errors import RerunError
from tests.launches import is_running
from trainer.launching.local.attempt import Attempt, Stopping
from trainer.launching.local.restarts import AsynchronousWorkers, WorkerPool
from trainer.launching.local.supervisor import JobFailedError, Supervisor


@pytest.fixture
def run():
    """Returns a function that runs a job, whose workers have orders for each of their starts; it returns its groups.

    `on_start` is called with the number of each start, before it.
    """

    def run(launch, orders, counts=None, on_start=lambda number: None):
        for name, lines in orders.items():
            launch.order(name, *lines)
        job, groups = launch.job, run.groups
        pool = WorkerPool(counts or [job.num_workers], job.restarts.max_restarts, job.restarts.regrow_delay)
        with Stopping() as stopping:
            supervisor = Supervisor(job, pool, launch.records, launch.reporter, launch.screen, stopping)

            def start(slots):
                on_start(len(groups))
                groups.append(launch.start(slots))
                return groups[-1]

            def attempt(group):
                workers = AsynchronousWorkers(job, group, launch.records, launch.screen)
                return Attempt(group, workers, launch.records, launch.reporter, launch.screen, stopping, 10.0)

            try:
                supervisor.run(start, attempt)
            finally:
                assert not any(is_running(one.pid) for group in groups for one in group.processes)

    run.groups = []
    return run


def launch_of(puppets, *flags):
    return puppets("--restart_delay=0.01", "--regrow_delay=0.05", "--silent_timeout=5", *flags)


def status(launch):
    return json.loads((launch.placement.folder / "status.json").read_text())


def test_all_processes_start_again_until_they_are_done(puppets, run):
    launch = launch_of(puppets, "--num_workers=2")
    run(launch, {"worker 0": ["beat 3; rest", "beat 4; exit 0"], "worker 1": ["beat 3; exit 75", "exit 0"]})
    assert [[one.exit_status.code for one in group.processes] for group in run.groups] == [[75, 75], [0, 0]]
    found = status(launch)
    assert (found["restarts"], [one["restarts"] for one in found["processes"]]) == (1, [1, 1])
    assert launch.records.best == 4


@pytest.mark.parametrize(("order", "code"), [("beat 3; exit 1", 1), ("beat 3; exit 2", 2), ("exit 75", 75)])
def test_what_would_fail_again_is_not_started_again(puppets, run, order, code):
    launch = launch_of(puppets, "--num_workers=1")
    with pytest.raises(JobFailedError) as error:
        run(launch, {"worker 0": [order]})
    assert (error.value.exit_code, len(run.groups)) == (code, 1)


def test_restarts_without_a_new_checkpoint_are_counted(puppets, run):
    launch = launch_of(puppets, "--num_workers=1", "--max_restarts=2")
    with pytest.raises(JobFailedError) as error:
        run(launch, {"worker 0": ["beat 3; kill -9 $$"] * 5})
    assert (error.value.exit_code, len(run.groups)) == (128 + 9, 3)


def test_a_new_checkpoint_forgives_the_restarts_before_it(puppets, run):
    launch = launch_of(puppets, "--num_workers=1", "--max_restarts=1")
    saves = {1: 4, 3: 4, 4: 9}  # before the second, the fourth and the fifth start: a second step 4 is not a new one

    def save(number):
        if number in saves:
            (launch.job.folder.path / f"ckpt-{saves[number]}.index").touch()

    with pytest.raises(JobFailedError) as error:
        run(launch, {"worker 0": ["beat 3; kill -9 $$"] * 9}, on_start=save)
    assert len(run.groups) == 3  # of the first 2 starts the first failure is forgiven, then one more
    assert "ckpt-4" in str(error.value)


def test_an_elastic_job_goes_on_with_fewer_and_grows_again(puppets, run):
    launch = launch_of(puppets, "--elastic=1:2")

    orders = {
        "worker 0": ["beat 3; rest", "beat 4; rest", "beat 4; rest", "beat 5; rest", "exit 0"],
        "worker 1": ["beat 3; exit 75", "exit 75", "exit 75", "exit 0"],  # twice at start-up: its slot is lost
    }
    run(launch, orders, counts=[1, 2])
    assert [group.slots for group in run.groups] == [[0, 1], [0, 1], [0, 1], [0], [0, 1]]
    assert launch.records.restarts == 4


def test_an_elastic_job_ends_where_too_few_workers_are_left(puppets, run):
    launch = launch_of(puppets, "--elastic=2:2", "--max_restarts=0")
    with pytest.raises(JobFailedError) as error:
        run(launch, {"worker 1": ["beat 3; exit 75"]})
    assert (error.value.exit_code, len(run.groups)) == (75, 1)
    assert "--elastic=2:2" in str(error.value)


def in_a_moment(*numbers, pause=0.3):
    def send():
        for number in numbers:
            time.sleep(pause)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def test_a_stopped_job_says_where_and_what_is_left(puppets, run):
    launch = launch_of(puppets, "--num_workers=1")
    (launch.job.folder.path / "ckpt-2.index").touch()
    with pytest.raises(RerunError) as error:
        run(launch, {"worker 0": ["beat 7"]}, on_start=lambda number: in_a_moment(signal.SIGTERM))
    said = str(error.value)
    assert all(part in said for part in ("SIGTERM", "after step 7", "ckpt-2 is saved", "5 steps are lost"))


def test_a_job_may_be_stopped_while_it_waits_to_start_again(puppets, run):
    launch = puppets("--num_workers=1", "--restart_delay=1000")
    orders = {"worker 0": ["beat 7; exit 75"]}
    with pytest.raises(RerunError):
        run(launch, orders, on_start=lambda number: in_a_moment(signal.SIGINT, pause=1.0))
    assert (len(run.groups), status(launch)["state"]) == (1, "waiting")


def test_a_second_signal_is_a_failure(puppets, run):
    launch = launch_of(puppets, "--num_workers=1")
    orders = {"worker 0": ["trap '' TERM; beat 7"]}
    with pytest.raises(JobFailedError) as error:
        run(launch, orders, on_start=lambda number: in_a_moment(signal.SIGTERM, signal.SIGTERM))
    assert error.value.exit_code == 128 + signal.SIGTERM
