"""Signals to, and stops of, the processes of a job with parameter servers: who ends, when, and with which line."""

import contextlib
import os
import pathlib
import random
import re
import signal
import socket
import sys
import time

import pytest

from benchmarks import straggler
from pipeline.index.__main__ import main as index
from tests.helpers.parameter_servers import Job, ledger_of, wait_for_line
from tests.helpers.runs import STOPS, saved_steps, wait_for_step
from tests.integration import parameter_server_tasks as tasks
from trainer.callbacks import heartbeat

ROWS, BATCH = 120, 12
LINE = (
    *("--task=tests.integration.parameter_server_tasks:Line", "--eval_split=none", f"--global_batch_size={BATCH}"),
    *(
        "--optimizer=sgd",
        "--learning_rate=0.1",
        "--schedule=constant",
        "--steps_per_loop=2",
        "--checkpoint_every=100000",
    ),
)
LONG = (*LINE, "--train_steps=100000", "--log_every=10")
AGAIN = "rerun the same commands to resume"
STOPPED = (
    r"{} \(localhost:\d+\) was stopped, or stuck, for \d+ s, longer than --collective_timeout=3: the others have given "
    r"it up; rerun the same commands to resume from the last checkpoint\n"
)
LOST_PS = r"lost ps 0 \(localhost:\d+\) \(no sign of life for 3 s, --collective_timeout\), and the weights there; "


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    folder = tmp_path_factory.mktemp("line")
    tasks.write(folder, ROWS)
    index([str(folder), "--split=train:train-*.tfrecord"])
    return folder


def ends(job, code=None, seconds=60):
    """Returns (code, output, errors) of each process, which may have to have one code; kills what takes longer."""
    began = time.monotonic()
    outcomes = job.finish(seconds, code)
    assert time.monotonic() - began < seconds, outcomes
    return outcomes


def newest(folder):
    return max(saved_steps(folder), default=0)


# The step cannot be built, as by a mistake in the trainer's own code.
BUG = """
from trainer import run
from trainer.parameter_server import training

training.ParameterServerRun.build_step = None
run.entry_point()
"""


def test_a_mistake_in_the_code_of_the_chief_shows_its_traceback(line, tmp_path):
    outcomes = ends(Job(1, 1, line, tmp_path / "run", *LINE, "--train_steps=4", program=("-c", BUG)))
    code, _, errors = outcomes.pop("chief 0")
    assert code == 1
    assert errors.startswith("Traceback (most recent call last):\n")
    assert errors.endswith("TypeError: 'NoneType' object is not callable\n")
    assert {code for code, _, _ in outcomes.values()} == {75}, outcomes


@pytest.mark.parametrize(
    ("victims", "number"),
    [
        (["ps 0"], signal.SIGTERM),
        pytest.param(["ps 0", "worker 0", "chief 0"], signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(["worker 0"], signal.SIGINT, marks=pytest.mark.slow),
    ],
    ids=["server", "all", "only worker"],
)
def test_a_signal_to_a_process_that_is_needed_saves_and_ends_all(victims, number, line, tmp_path):
    job = Job(1, 1, line, tmp_path, *LONG)
    wait_for_step(job.chief, 20)
    for name in victims:
        job.processes[name].send_signal(number)
    outcomes = ends(job, 75)
    to = rf"{number.name}(?: to {victims[0]} \(localhost:\d+\))" + ("?" if len(victims) > 1 else "")
    said = rf"training stopped by {to}: step (\d+) of 100000 is saved; {AGAIN}\n"
    step = int(re.fullmatch(f"{STOPS}trainer.run: {said}", outcomes["chief 0"][2])[1])
    assert newest(tmp_path) == step >= 20
    assert re.fullmatch(f"trainer.run: the job has ended: {said}", outcomes["ps 0"][2])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_worker_of_two_lets_it_leave(number, line, tmp_path):
    job = Job(2, 1, line, tmp_path, *LINE, "--train_steps=200", "--log_every=10")
    wait_for_step(job.chief, 20)
    left = job.processes["worker 1"]
    left.send_signal(number)
    wait_for_line(
        job.chief, rf"worker 1 \(localhost:\d+\) has left after {number.name}; training continues with the other"
    )
    left.wait(20)
    outcomes = ends(job)
    assert {name: code for name, (code, _, _) in outcomes.items()} == {
        **{"chief 0": 0, "worker 0": 0, "ps 0": 0},
        "worker 1": 75,
    }
    assert ledger_of(outcomes["chief 0"][1]) == (200, 200, 0, 0)
    assert "lost" not in outcomes["chief 0"][1]


@pytest.mark.slow
def test_signals_to_all_at_once_save_each_time_and_the_job_gets_to_its_end(line, tmp_path):
    """A time limit that is always shorter than what --checkpoint_every needs."""
    draw, steps, attempts = random.Random(4), 3000, 0
    flags = (*LINE, f"--train_steps={steps}", "--log_every=10")
    while True:
        attempts += 1
        assert attempts < 12
        before = newest(tmp_path)
        job = Job(2, 1, line, tmp_path, *flags)
        wait_for_line(job.chief, r"step \d+, loss|parameter_server: 2 workers")
        time.sleep(draw.uniform(0.0, 3.0))
        if attempts > 2:
            time.sleep(2 * attempts)
        number = draw.choice([signal.SIGTERM, signal.SIGINT])
        order = draw.sample(sorted(job.processes), len(job.processes))
        for name in order:
            if job.processes[name].poll() is None:
                job.processes[name].send_signal(number)
        outcomes = ends(job)
        codes = {code for code, _, _ in outcomes.values()}
        out, err = outcomes["chief 0"][1:]
        if codes == {0}:
            break
        assert outcomes["chief 0"][0] == 75, outcomes
        assert codes == {75}, outcomes
        if "nothing to save" not in err:
            made_steps = re.search(r"step \d+, loss", out)  # on a busy machine a signal may come before the first
            assert newest(tmp_path) >= before + bool(made_steps), outcomes
    assert ledger_of(out) == (steps, steps, 0, 0)


@pytest.mark.slow
def test_a_stopped_worker_is_killed_and_the_others_make_its_steps(line, tmp_path):
    job = Job(2, 1, line, tmp_path, *LINE, "--train_steps=200", "--log_every=10", "--collective_timeout=3")
    wait_for_step(job.chief, 20)
    stopped = job.processes["worker 1"]
    stopped.send_signal(signal.SIGSTOP)
    outcomes = ends(job)
    out = outcomes["chief 0"][1]
    assert outcomes["chief 0"][0] == outcomes["worker 0"][0] == outcomes["ps 0"][0] == 0, outcomes
    assert re.search(r"^lost worker 1 \(localhost:\d+\).*; training continues with the other workers$", out, re.M)
    steps, once, twice, never = ledger_of(out)
    assert (steps, never) == (200, 0)
    assert twice <= 1
    assert once + twice == steps
    assert outcomes["worker 1"][0] == -signal.SIGKILL
    assert re.fullmatch(
        r"trainer.run: worker 1 \(localhost:\d+\) was stopped, or stuck, for 3 s .*, and is killed: .*\n",
        outcomes["worker 1"][2],
    )


def guard_of(worker):
    """Returns the process that kills a worker which is stopped."""
    (guard,) = pathlib.Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    return int(guard)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the guard in /proc")
@pytest.mark.parametrize(
    "flags",
    [["--train_steps=800"], ["--train_steps=400", "--sync", "--replicas_to_aggregate=2", "--checkpoint_every=100"]],
    ids=["asynchronous", "synchronous"],
)
def test_a_worker_whose_machine_freezes_is_given_up_and_the_others_make_its_steps(flags, line, tmp_path):
    """Its guard is also stopped, so nothing kills it. If synchronous, the chief is saving meanwhile."""
    job = Job(3, 1, line, tmp_path, *LINE, *flags, "--log_every=10", "--collective_timeout=8")
    wait_for_step(job.chief, 20)
    frozen = job.processes.pop("worker 1")
    stopped = [guard_of(frozen), frozen.pid]
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    try:
        outcomes = ends(job, 0, 180)
        out = outcomes["chief 0"][1]
        assert re.search(
            r"^lost worker 1 \(localhost:\d+\) \(no sign of life for 8 s, --collective_timeout\); training continues",
            out,
            re.M,
        )
        steps, once, twice, never = ledger_of(out)
        assert (steps, never) == (int(flags[0].partition("=")[2]), 0)
        assert once + twice == steps
    finally:
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    assert frozen.wait(20) in (75, -signal.SIGKILL)  # by itself, or by its guard


@pytest.mark.slow
def test_a_worker_that_is_stopped_for_a_moment_goes_on(line, tmp_path):
    job = Job(2, 1, line, tmp_path, *LINE, "--train_steps=1000", "--log_every=10", "--collective_timeout=20")
    wait_for_step(job.chief, 20)
    stopped = job.processes["worker 1"]
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(2)
    stopped.send_signal(signal.SIGCONT)
    outcomes = ends(job, 0)
    assert ledger_of(outcomes["chief 0"][1]) == (1000, 1000, 0, 0)
    assert "lost" not in outcomes["chief 0"][1]


@pytest.mark.slow
def test_a_stopped_server_ends_the_job(line, tmp_path):
    """A launcher learns from heartbeats who is lost."""
    job = Job(1, 1, line, tmp_path / "model", *LONG, "--collective_timeout=3", absent=("chief 0", "worker 0"))
    for name in ("chief", "worker"):
        job.start(name, 0, **{heartbeat.VARIABLE: str(tmp_path / name)})
    wait_for_step(job.chief, 20)
    stopped = job.processes.pop("ps 0")
    stopped.send_signal(signal.SIGSTOP)
    outcomes = ends(job, seconds=30)
    assert re.fullmatch(f"trainer.run: {LOST_PS}{AGAIN} from the last checkpoint\n", outcomes["chief 0"][2])
    assert re.fullmatch(f"trainer.run: the job has ended: {LOST_PS}.*\n", outcomes["worker 0"][2])
    assert {code for code, _, _ in outcomes.values()} == {75}
    server = f"ps 0 ({job.hosts['ps'][0]})"
    assert [heartbeat.Beat.read(tmp_path / name).lost for name in ("chief", "worker")] == [(server,), (server,)]
    time.sleep(1)  # the others count from its last sign of life, before the stop, which now is as long as the timeout
    stopped.send_signal(signal.SIGCONT)
    assert stopped.wait(20) == 75
    assert re.fullmatch(f"trainer.run: {STOPPED.format('ps 0')}", stopped.communicate()[1])


@pytest.mark.slow
def test_a_stopped_chief_ends_all(line, tmp_path):
    job = Job(1, 1, line, tmp_path, *LONG, "--collective_timeout=3")
    wait_for_step(job.chief, 20)
    chief = job.processes.pop("chief 0")
    chief.send_signal(signal.SIGSTOP)
    said = r"trainer.run: lost the chief \(localhost:\d+\): no sign of life for 3 s \(--collective_timeout\); .*\n"
    for code, _, err in ends(job, seconds=30).values():
        assert code == 75
        assert re.fullmatch(said, err)
    chief.send_signal(signal.SIGCONT)
    _, err = chief.communicate(60)
    assert chief.returncode == 75, err
    assert re.fullmatch(f"trainer.run: {STOPPED.format('the chief')}", err)  # it does not blame others


@pytest.mark.slow
def test_nobody_waits_for_a_late_worker_and_it_is_taken_in(line, tmp_path):
    job = Job(2, 1, line, tmp_path, *LINE, "--train_steps=600", "--log_every=10", absent=["worker 1"])
    wait_for_line(job.chief, r"begins without worker 1 \(localhost:\d+\); a worker is taken in when it comes")
    wait_for_step(job.chief, 20)
    late = job.start("worker", 1)
    wait_for_line(job.chief, r"worker 1 \(localhost:\d+\) has come")
    outcomes = ends(job, 0)
    assert re.search('^rows "', outcomes["worker 1"][1], re.M)
    assert late.returncode == 0
    assert ledger_of(outcomes["chief 0"][1]) == (600, 600, 0, 0)


def test_a_worker_that_never_comes_is_named_at_the_end(line, tmp_path):
    job = Job(2, 1, line, tmp_path, *LINE, "--train_steps=60", absent=["worker 1"], by_flags=True)
    outcomes = ends(job, 0)
    out = outcomes["worker 0"][1]
    assert re.search(r"^never came: worker 1 \(localhost:\d+\); the other workers made all steps$", out, re.M)
    assert ledger_of(out) == (60, 60, 0, 0)


def test_a_server_ends_with_the_reason_of_the_chief(line, tmp_path):
    """Which is known before the processes meet, and which a server cannot find by itself: it reads no data."""
    began = time.monotonic()
    outcomes = Job(1, 1, line, tmp_path, *LINE, "--shuffle_bytes=4000", "--streams=1").finish()
    assert {code for code, _, _ in outcomes.values()} == {2}, outcomes
    said = r"--shuffle_bytes=4000: .*\n"
    assert re.fullmatch(f"trainer.run: {said}", outcomes["chief 0"][2])
    assert re.fullmatch(rf"trainer.run: the chief \(localhost:\d+\) cannot begin: {said}", outcomes["ps 0"][2])
    assert time.monotonic() - began < 60  # of --join_timeout=600


@pytest.mark.parametrize(
    ("who", "flag", "code"),
    [
        ("worker 1", "--data_dir=nowhere", 1),
        pytest.param("worker 1", "--steps_per_loop=0", 2, marks=pytest.mark.slow),
        pytest.param("worker 1", "--task=nowhere:Line", 2, marks=pytest.mark.slow),
        ("chief 0", "--model_dir=README.md", 2),
        pytest.param("chief 0", "--steps_per_loop=0", 2, marks=pytest.mark.slow),
        pytest.param("ps 0", "--steps_per_loop=0", 2, marks=pytest.mark.slow),
        ("ps 0", "port", 2),
    ],
)
def test_a_process_that_cannot_begin_ends_the_others_with_its_words(who, flag, code, line, tmp_path):
    job = Job(2, 1, line, tmp_path, *LINE, "--train_steps=100000", absent=[who])
    kind, _, index = who.partition(" ")
    began, port = time.monotonic(), int(job.hosts[kind][int(index)].rpartition(":")[2])
    with socket.create_server(("", port)) if flag == "port" else contextlib.nullcontext():
        job.start(kind, int(index), *([flag] if flag != "port" else []))
        outcomes = ends(job, code)
    own = re.fullmatch(r"trainer.run: (.*)\n", outcomes.pop(who)[2])[1]
    assert (str(port) if flag == "port" else flag.partition("=")[2].partition(":")[0]) in own
    name = rf"{'the chief' if kind == 'chief' else who} \(localhost:{port}\)"
    for _, _, err in outcomes.values():
        assert re.fullmatch(rf"trainer.run: {name} cannot begin: {re.escape(own)}\n", err), err
    assert time.monotonic() - began < 40  # of --join_timeout=600


@pytest.mark.slow
def test_a_worker_that_comes_later_and_cannot_begin_does_not_end_the_job(line, tmp_path):
    job = Job(2, 1, line, tmp_path, *LONG, absent=["worker 1"])
    wait_for_step(job.chief, 20)
    job.start("worker", 1, "--task=nowhere:Line")
    wait_for_line(job.chief, r"worker 1 \(localhost:\d+\) cannot begin: --task=nowhere:Line: .*")
    step = int(wait_for_line(job.chief, r"step (\d+), ")[1])
    wait_for_step(job.chief, step + 50)
    job.chief.send_signal(signal.SIGTERM)
    assert {name: code for name, (code, _, _) in ends(job).items()} == {
        **{"chief 0": 75, "worker 0": 75, "ps 0": 75},
        "worker 1": 2,
    }
    assert newest(tmp_path) >= step + 50


@pytest.mark.slow
@pytest.mark.parametrize("needed", [2, 3])
def test_a_stopped_worker_of_a_synchronous_job_loses_no_step(needed, line, tmp_path):
    """With a backup worker, and without."""
    steps, silence = 300, 5 if needed == 3 else 20
    flags = (*LINE, "--sync", f"--replicas_to_aggregate={needed}", f"--train_steps={steps}", "--log_every=10")
    job = Job(3, 1, line, tmp_path, *flags, f"--collective_timeout={silence}")
    wait_for_step(job.chief, 20)
    stopped, began = job.processes["worker 1"], time.monotonic()
    stopped.send_signal(signal.SIGSTOP)
    if needed == 2:
        wait_for_step(job.chief, steps - 10)
        assert time.monotonic() - began < silence - 2
    outcomes = ends(job)
    if needed == 3:  # else steps are made without it
        assert time.monotonic() - began > silence - 2
    assert {name: code for name, (code, _, _) in outcomes.items()} == {
        **{"chief 0": 0, "worker 0": 0, "worker 2": 0, "ps 0": 0},
        "worker 1": -signal.SIGKILL,
    }, outcomes
    assert ledger_of(outcomes["chief 0"][1]) == (steps, steps, 0, 0)


@pytest.mark.slow
def test_a_server_that_got_a_signal_serves_for_a_bounded_time(line, tmp_path):
    """The chief cannot save in time if a worker takes longer for its current work."""
    environment = {straggler.WORKER: "0", straggler.SECONDS: "12"}
    job = Job(1, 1, line, tmp_path, *LONG, "--collective_timeout=3", environment=environment)
    wait_for_line(job.processes["worker 0"], 'rows "')
    server = job.processes.pop("ps 0")
    server.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, err = server.communicate(60)
    assert 2 < time.monotonic() - began < 12
    assert server.returncode == 75
    assert re.fullmatch(
        r"trainer.run: SIGTERM: the chief has not ended the job within 3 s \(--collective_timeout\); .*\n", err
    )
    assert {code for code, _, _ in ends(job).values()} == {75}
