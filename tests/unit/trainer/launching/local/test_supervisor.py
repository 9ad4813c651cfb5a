"""A job from start to end, over its restarts, with shells for trainers."""

import json
import os
import signal
import threading
import time

import pytest

from pipeline.errors import RerunError
from tests.helpers.launches import is_running
from tests.unit.trainer.launching.local.puppets import named
from trainer.launching.local import process as processes
from trainer.launching.local.restarts import WorkerPool
from trainer.launching.local.supervisor import Attempt, JobFailedError, Stopping, Supervisor


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

            def start(slots):
                on_start(len(groups))
                groups.append(launch.start(slots))
                return groups[-1]

            try:
                Supervisor(pool, launch.reporter, stopping).run(start)
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


@pytest.fixture
def watch(puppets, capfd):
    """Returns a function that watches a new group to its end, given a job and the orders of its processes.

    It returns the outcome, and the launcher's lines. `then` is called once step `at` is made, from another thread.
    """
    opened = []

    def watch(launch, orders, may_grow=lambda: False, then=None, at=1):
        stopping = Stopping()
        stopping.__enter__()
        opened.append(stopping)
        group = launch.start()
        launch.records.started(group)
        for name, lines in orders.items():
            launch.order(name, *lines)
        attempt = Attempt(group, launch.reporter, stopping)
        asked = []

        def look():
            if not asked and then and (group.step or 0) >= at:
                asked.append(1)
                threading.Timer(0.0, then).start()
            return may_grow()

        outcome = attempt.run(look)
        assert group.running == []
        assert not any(is_running(one.pid) for one in group.processes)
        lines = capfd.readouterr()
        return outcome, [line for line in lines.err.splitlines() if line.startswith("trainer.launch: ")], group

    yield watch
    for stopping in opened:
        stopping.__exit__(None, None, None)


def says(number):
    return lambda: os.kill(os.getpid(), number)


def test_it_is_done_once_the_chief_is_and_the_others_are_told_to_end(puppets, watch):
    launch = puppets("--num_workers=2", "--num_ps=1")
    outcome, lines, group = watch(launch, {"chief": ["beat 9; exit 0"]})
    assert (outcome.kind, lines) == ("done", [])
    assert {one.task.name: one.exit_status.code for one in group.processes} == {
        "chief": 0, "worker 0": 75, "worker 1": 75, "ps 0": 75,
    }  # fmt: skip


def test_the_first_cause_is_said_before_what_followed_from_it(puppets, watch, capfd):
    """Worker 0 lost worker 1 and ends first; why worker 1 fails is known later."""
    launch = puppets("--num_workers=3")
    lost = "beat 4 'worker 1'; echo 'trainer.run: lost worker 1' >&2; exit 75"
    orders = {"worker 0": [lost], "worker 1": ["beat 4; sleep 0.4; echo 'trainer.run: no such shard' >&2; exit 1"]}
    outcome, lines, group = watch(launch, orders)
    assert (outcome.kind, outcome.cause.task.name, outcome.cause.exit_status.code) == ("failed", "worker 1", 1)
    assert (outcome.cause.step, outcome.cause.at_start, outcome.cause.said) == (4, False, "trainer.run: no such shard")
    assert lines == [f"trainer.launch: {outcome.cause}"]
    assert launch.records.error == str(outcome.cause)
    assert named(group, "worker 2").exit_status.code == 75  # it could save


def test_a_process_that_is_stopped_is_the_cause_where_the_others_lost_it(puppets, watch, monkeypatch):
    monkeypatch.setattr(processes, "_MISSED", 0.3)
    launch = puppets("--num_workers=2")
    orders = {"worker 0": ["beat 4; kill -STOP $$"], "worker 1": ["beat 4; sleep 0.2; beat 4 'worker 0'; exit 75"]}
    outcome, _, group = watch(launch, orders)
    assert (outcome.cause.task.name, outcome.cause.exit_status.code) == ("worker 0", -9)
    assert outcome.cause.exit_status.silence.startswith("gave no sign of life for ")
    assert named(group, "worker 1").exit_status.code == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_all_save_and_end(puppets, watch, number):
    launch = puppets("--num_workers=2")
    outcome, lines, group = watch(launch, {"worker 0": ["beat 4"]}, then=says(number))
    assert outcome.kind == "stopped"
    assert [one.exit_status.code for one in group.processes] == [75, 75]
    assert len(lines) == 1
    assert number.name in lines[0]
    assert json.loads((launch.placement.folder / "status.json").read_text())["state"] == "stopping"


@pytest.mark.parametrize(("code", "kind"), [(0, "done"), (75, "stopped"), (1, "failed"), (2, "failed")])
def test_how_the_processes_end_on_a_signal_counts(puppets, watch, code, kind):
    launch = puppets("--num_workers=2")
    orders = {name: [f"trap 'exit {code}' TERM; beat 4"] for name in ("worker 0", "worker 1")}
    outcome, _, group = watch(launch, orders, then=says(signal.SIGTERM))
    if kind == "done":  # both had their last step in any case
        assert [one.exit_status.code for one in group.processes] == [0, 0]
    assert outcome.kind == kind
    assert (outcome.cause.exit_status.code if kind == "failed" else None) == (code if kind == "failed" else None)


def test_the_chief_saves_before_its_servers_are_told_to_end(puppets, watch):
    launch = puppets("--num_workers=1", "--num_ps=1")
    saves = "sleep 0.3; kill -0 $(cat servers) && echo still there > saved; exit 75"
    servers = f"cd {launch.placement.folder}"
    orders = {
        "ps 0": [f"{servers}; echo $$ > servers"],
        "chief": [f"{servers}; trap '{saves}' TERM; while [ ! -s servers ]; do sleep 0.01; done; beat 4"],
    }
    outcome, _, _ = watch(launch, orders, then=says(signal.SIGTERM))
    assert outcome.kind == "stopped"
    assert (launch.placement.folder / "saved").read_text() == "still there\n"


def test_who_does_not_end_in_time_is_killed_by_name(puppets, watch):
    launch = puppets("--num_workers=2", "--stop_timeout=0.3")
    orders = {"worker 0": ["beat 4"], "worker 1": ["trap '' TERM; beat 4"]}
    outcome, lines, group = watch(launch, orders, then=says(signal.SIGTERM))
    late = named(group, "worker 1")
    assert (outcome.kind, late.exit_status.code) == ("stopped", -9)
    assert [f"worker 1 (process {late.pid})" in line for line in lines] == [False, True]


def test_a_second_signal_kills_at_once(puppets, watch):
    launch = puppets("--num_workers=1", "--stop_timeout=120")

    def twice():
        says(signal.SIGTERM)()
        threading.Timer(0.3, says(signal.SIGTERM)).start()

    began = time.monotonic()
    outcome, lines, group = watch(launch, {"worker 0": ["trap '' TERM; beat 4"]}, then=twice)
    assert time.monotonic() - began < 60
    assert (outcome.kind, group.processes[0].exit_status.code, len(lines)) == ("stopped", -9, 1)


def test_a_group_ends_to_grow_once_it_has_stepped(puppets, watch):
    launch = puppets("--num_workers=2")
    outcome, _, group = watch(launch, {"worker 0": ["sleep 0.1; beat 4"]}, may_grow=lambda: True)
    assert (outcome.kind, group.step) == ("grow", 4)
    assert [one.exit_status.code for one in group.processes] == [75, 75]


def test_signals_for_the_trainer_go_to_the_one_that_leads(puppets, watch):
    launch = puppets("--num_workers=2")
    saves = "trap 'echo saves; exit 0' USR2"
    orders = {"worker 0": [f"{saves}; beat 4"], "worker 1": [f"{saves}; sleep 0.5; exit 0"]}  # only one beats: it leads
    outcome, lines, group = watch(launch, orders, then=says(signal.SIGUSR2))
    assert (outcome.kind, lines) == ("done", ["trainer.launch: SIGUSR2: passed on to worker 0"])
    assert [one.out.path.read_text().split() for one in group.processes] == [["saves"], []]


def test_before_its_first_step_the_trainer_gets_no_signal_that_could_end_it(puppets):
    group = puppets("--num_workers=2").start()
    assert group.pass_on(signal.SIGUSR2) == "worker 0 makes no steps now; send it again later"
    assert group.running == group.processes


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Stopping() as stopping:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGINT)
            assert (stopping.received, stopping.is_asked, stopping.is_urgent) == ([signal.SIGINT], True, False)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
