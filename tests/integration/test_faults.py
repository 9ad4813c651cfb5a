"""Every fault of docs/faults.md, with real processes and real signals: who ends, when, how, and with which line.

`pytest -m "slow or not slow" -s tests/integration/test_faults.py` prints the seconds that the table there states.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

import pytest

from beam_jobs import convert
from tests.helpers import forked
from tests.helpers.runs import (
    STOPS,
    checkpoint_bytes,
    finish,
    kill,
    saved_steps,
    start,
    start_workers,
    tf_configs,
    wait_for_step,
)

BOUND = 60  # seconds on a loaded machine; docs/faults.md has the times on an idle one
LONG = (
    "--train_steps=100000",
    "--global_batch_size=96",
    "--checkpoint_every=20",
    "--log_every=10",
    "--steps_per_loop=5",
)
WORKER_1 = r"worker 1 \(localhost:\d+\)"
ALL = r"rerun the same commands on all \d to resume from the last checkpoint"
CHIEF_FAILED = r"lost the chief \(localhost:\d+\): "  # and why; with its code
LOST = rf"lost another worker \(.+\); {ALL}"


@dataclasses.dataclass(frozen=True)
class End:
    code: int | None
    out: str
    err: str

    def is_one_line(self, code: int, pattern: str) -> bool:
        assert (self.code, self.err.count("\n")) == (code, 1), self
        assert re.fullmatch(f"trainer.run: (?:{pattern})\n", self.err), self.err
        return True


def ends(*workers: forked.Process) -> list[End]:
    """Returns how the workers end, and prints after how many seconds."""
    began = time.monotonic()
    outcomes = [End(*outcome) for outcome in finish(*workers)]
    seconds = time.monotonic() - began
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].removesuffix(" (call)")
    print(f"\n{test}: {seconds:.1f} s")
    assert seconds < BOUND
    return outcomes


def start_each(data_dir, model_dir, *flags: Sequence[str]) -> list[forked.Process]:
    """Starts a worker for each of these flags, which are added to those of a long run."""
    return [
        start(data_dir, model_dir, "--strategy=multiworker", *LONG, *of_this, tf_config=config)
        for of_this, config in zip(flags, tf_configs(len(flags)), strict=True)
    ]


def wait_for_line(process: forked.Process, pattern: str) -> str:
    for line in process.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(process.stderr.read())


# At the start.


@pytest.mark.parametrize("absent", [0, 1])
def test_a_worker_that_never_comes(digits, tmp_path, absent):
    flags = ("--strategy=multiworker", "--join_timeout=1", *LONG)
    config = tf_configs(2)[1 - absent]
    (end,) = ends(start(digits, tmp_path, *flags, tf_config=config))
    name = WORKER_1 if absent else r"the chief \(localhost:\d+\)"
    assert re.fullmatch(f"waiting for {name}\n", end.out)
    assert end.is_one_line(75, rf"{name} did not come within 1 s \(--join_timeout\); .*")


@pytest.mark.parametrize(
    ("rank", "number"), [(0, signal.SIGTERM), pytest.param(1, signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_wait(digits, tmp_path, rank, number):
    worker = start(digits, tmp_path, "--strategy=multiworker", *LONG, tf_config=tf_configs(2)[rank])
    wait_for_line(worker, "waiting for ")
    worker.send_signal(number)
    assert ends(worker)[0].is_one_line(75, f"{number.name}: nothing to save; .*")


@pytest.mark.parametrize(
    ("others", "chiefs"),
    [
        pytest.param("--seed=1", "--seed=0", marks=pytest.mark.slow),
        pytest.param("--global_batch_size=48", "--global_batch_size=96", marks=pytest.mark.slow),
        ("--learning_rate=0.1", "--learning_rate=0.05"),
    ],
)
def test_other_flags(digits, tmp_path, others, chiefs):
    chief, other, third = ends(*start_each(digits, tmp_path, (), (others,), ()))
    assert chief.is_one_line(2, f"{WORKER_1} has {others}, the chief has {chiefs}; start all workers with the same .*")
    assert other.err == third.err == chief.err
    assert (other.code, third.code) == (2, 2)
    assert not list(tmp_path.glob("ckpt-*"))


def test_other_versions(digits, tmp_path):
    """The second worker finds another release of this package first on its path."""
    (tmp_path / "stepfeed-0.0.1.dist-info").mkdir()
    (tmp_path / "stepfeed-0.0.1.dist-info" / "METADATA").write_text("Name: stepfeed\nVersion: 0.0.1\n")
    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from trainer import run; run.entry_point()"
    configs = tf_configs(2)
    flags = ("--strategy=multiworker", *LONG)
    chief = start(digits, tmp_path / "model", *flags, tf_config=configs[0])
    folders = (f"--data_dir={digits}", f"--model_dir={tmp_path / 'model'}")
    other = forked.Process(["-c", command, *folders, *flags], {"TF_CONFIG": configs[1], "PYTHONUNBUFFERED": "1"})
    one, two = ends(chief, other)
    assert one.is_one_line(2, f"{WORKER_1} has stepfeed 0.0.1, the chief has stepfeed .*; start all workers with .*")
    assert (two.code, two.err) == (2, one.err)


@pytest.mark.slow
def test_other_data(digits, tmp_path):
    convert.main(["--dataset=digits", f"--data_dir={tmp_path / 'other'}", "--num_shards=3"])
    configs = tf_configs(2)
    flags = ("--strategy=multiworker", *LONG)
    workers = [
        start(data, tmp_path / "model", *flags, tf_config=config)
        for data, config in zip((digits, tmp_path / "other"), configs, strict=True)
    ]
    chief, other = ends(*workers)
    assert chief.is_one_line(
        2, f"{WORKER_1} has .*, a data set of digest .*, the chief has .*, a data set of digest .*"
    )
    assert (other.code, other.err) == (2, chief.err)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_in_use(digits, tmp_path, workers):
    config = tf_configs(workers)[-1]
    port = int(re.findall(r"localhost:(\d+)", config)[-1])
    flags = ("--strategy=multiworker", "--join_timeout=1", *LONG)  # for no longer it tells the chief, who is not there
    with socket.create_server(("localhost", port)):
        (end,) = ends(start(digits, tmp_path, *flags, tf_config=config))
    name = WORKER_1 if workers == 2 else r"the chief \(localhost:\d+\)"
    assert end.is_one_line(
        2, rf"port {port}, which TF_CONFIG gives to {name}, (?:is used|was taken) by another process.*"
    )


MINE = """
import keras
from trainer import Task

def net(shape, classes):
    return keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(classes)])

class Plain(Task):
    pass
"""


_CANNOT_BEGIN = {  # flag, exit code, and message
    "task": (
        "--task=mine:Plain",
        2,
        r"NAME cannot begin: (--task=mine:Plain: importing mine fails: .* No module named 'mine'; "
        "run it in the folder that has it, .*)",
    ),
    "model": (
        "--model=mine:net",
        2,
        rf"{WORKER_1} has (?:no mine.py|mine.py, which the chief does not have); start all .*",
    ),
    "data": ("--data_dir=here", 1, r"NAME cannot begin: (here\b.*)"),  # as where a volume is not mounted
    "flag": ("--epochs=0", 2, r"NAME cannot begin: (.*--epochs.*)"),
}
_IN_THE_FAST_LANE = (("task", 0), ("model", 1), ("data", 1), ("flag", 0))


@pytest.mark.parametrize(
    ("case", "rank"),
    [
        pytest.param(case, rank, marks=[pytest.mark.slow] * ((case, rank) not in _IN_THE_FAST_LANE))
        for case in _CANNOT_BEGIN
        for rank in (0, 1)
    ],
)
def test_a_worker_that_fails_before_it_meets_the_others_ends_them(case, rank, digits, tmp_path):
    """One of two runs in a folder that lacks a module, and the data; and has another flag."""
    flag, code, said = _CANNOT_BEGIN[case]
    folders = [tmp_path / "whole", tmp_path / "empty"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "mine.py").write_text(MINE)
    (folders[0] / "here").symlink_to(digits)
    configs, flags = tf_configs(2), ["--strategy=multiworker", f"--model_dir={tmp_path / 'run'}", *LONG]
    workers = []
    for one, config in enumerate(configs):
        given = [f"--data_dir={digits}"] * (flag[:6] != "--data") + [flag] * (flag != "--epochs=0" or one == rank)
        program = ["-m", "trainer.run", *flags, *given]
        workers.append(forked.Process(program, {"TF_CONFIG": config}, folders[one == rank]))
    other, fails = ends(*workers) if rank else reversed(ends(*workers))
    said = said.replace("NAME", r"the chief \(localhost:\d+\)" if rank == 0 else WORKER_1)
    assert other.is_one_line(code, said), other
    words = re.search(said, other.err)
    assert fails.is_one_line(code, re.escape(words[1]) if words.groups() else said), fails


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r":\d+", ":70000", r"TF_CONFIG: worker 'localhost:70000': the port must be 1 to 65535"),
        (r"localhost:\d+", "same:1", r"TF_CONFIG: 'same:1' is listed 2 times; .*"),
    ],
)
def test_a_wrong_tf_config(digits, tmp_path, old, new, said):
    config = re.sub(old, new, tf_configs(2)[1])
    assert ends(start(digits, tmp_path, "--strategy=multiworker", *LONG, tf_config=config))[0].is_one_line(2, said)


def test_several_workers_under_another_strategy(digits, tmp_path):
    (end,) = ends(start(digits, tmp_path, "--strategy=mirrored", *LONG, tf_config=tf_configs(2)[1]))
    assert end.is_one_line(2, r"TF_CONFIG names 2 tasks, but with --strategy=mirrored .*")


def test_two_jobs_on_one_model_dir(digits, tmp_path):
    first = start(digits, tmp_path, "--strategy=multiworker", *LONG, tf_config=tf_configs(2)[0])
    wait_for_line(first, "waiting for ")
    held = rf"--model_dir={tmp_path}: process {first.pid} on \S+ is training there; wait until it ends, .*"
    assert ends(start(digits, tmp_path, "--train_steps=5"))[0].is_one_line(75, held)
    kill(first)
    assert ends(start(digits, tmp_path, "--train_steps=5"))[0].code == 0


JOINS = """
import os, sys, time
from trainer import config, description, plan
from trainer.cluster import rendezvous, tf_config
parsed, cluster = config.parse(sys.argv[2:]), tf_config.parse(os.environ["TF_CONFIG"])
rendezvous.meet(cluster, description.of(parsed, plan.make(parsed, cluster.size)), 60)
if sys.argv[1] == "hangs":
    time.sleep(600)
if sys.argv[1] == "dies after joining":
    from trainer.cluster import strategies
    strategies.create(parsed.run, parsed.order.global_batch_size, cluster)
os._exit(9)
"""


@pytest.mark.parametrize(
    ("victim", "what"),
    [
        (1, "dies"),
        *(pytest.param(0, what, marks=pytest.mark.slow) for what in ("dies", "hangs", "dies after joining")),
        *(pytest.param(1, what, marks=pytest.mark.slow) for what in ("hangs", "dies after joining")),
    ],
)
def test_a_worker_that_dies_while_joining(digits, tmp_path, victim, what):
    paths = [f"--data_dir={digits}", f"--model_dir={tmp_path}"]
    flags = [*paths, "--strategy=multiworker", "--collective_timeout=8", "--jit_compile=off", *LONG]
    programs = [["-m", "trainer.run", *flags] for _ in range(3)]
    programs[victim] = ["-c", JOINS, what, *flags]
    workers = [
        forked.Process(program, {"PYTHONUNBUFFERED": "1", "TF_CONFIG": config})
        for program, config in zip(programs, tf_configs(3), strict=True)
    ]
    dies = workers.pop(victim)
    joining = rf"lost another worker: .* did not join \(--collective_timeout=8\); {ALL}"
    for end in ends(*workers):
        assert end.is_one_line(75, LOST if what == "dies after joining" else joining)
    kill(dies)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_of_the_start(digits, tmp_path, seed):
    draw = random.Random(seed)
    flags = ("--join_timeout=15", "--collective_timeout=15", *LONG)
    workers = start_workers(digits, [tmp_path] * draw.choice([2, 3]), *flags)
    time.sleep(draw.uniform(0, 3))
    victim = workers.pop(draw.randrange(len(workers)))
    victim.kill()
    for end in ends(*workers):
        assert end.is_one_line(75, rf"lost another worker\b.*; {ALL}|.* did not come within 15 s .*")
    finish(victim)


# In the middle.


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "victim"), [(2, 0), (2, 1), (3, 0), (3, 2)])
def test_a_killed_worker(digits, tmp_path, workers, victim):
    processes = start_workers(digits, [tmp_path] * workers, *LONG)
    wait_for_step(processes[0], random.Random(os.environ["PYTEST_CURRENT_TEST"]).randrange(10, 200))
    lost = processes.pop(victim)
    lost.kill()
    for end in ends(*processes):
        assert end.is_one_line(75, LOST)
    finish(lost)


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [5, 120])
@pytest.mark.parametrize(("workers", "victim"), [(2, 0), (2, 1), (3, 2)])
def test_a_stopped_worker_is_given_up_and_gives_up(digits, tmp_path, workers, victim, timeout):
    processes = start_workers(digits, [tmp_path] * workers, f"--collective_timeout={timeout}", *LONG)
    wait_for_step(processes[0], random.Random(os.environ["PYTEST_CURRENT_TEST"]).randrange(10, 200))
    stopped = processes.pop(victim)
    stopped.send_signal(signal.SIGSTOP)
    for end in ends(*processes):
        assert end.is_one_line(75, LOST)
    stopped.send_signal(signal.SIGCONT)
    name = WORKER_1.replace("1", str(victim), 1) if victim else r"the chief \(localhost:\d+\)"
    said = rf"{name} was stopped, or stuck, for \d+ s, and has lost the others since \(.+\); {ALL}"
    assert ends(stopped)[0].is_one_line(75, said)


def start_waiting(digits, model_dir, waits, *flags) -> list[forked.Process]:
    """Starts two workers of which one waits somewhere, or both; see `waiting_task`."""
    flags = ("--strategy=multiworker", f"--model_dir={model_dir}", f"--data_dir={digits}", *flags)
    program = ["-m", "trainer.run", "--task=tests.integration.waiting_task:Waits", "--model=softmax_regression", *flags]
    return [
        forked.Process([*program, "--global_batch_size=96"], {"TF_CONFIG": config, "WAITS": waits})
        for config in tf_configs(2)
    ]


@pytest.mark.parametrize(
    ("where", "rank"),
    [
        ("step", 1),
        *(pytest.param(where, 1, marks=pytest.mark.slow) for where in ("compiling", "evaluation")),
        *(pytest.param(where, 0, marks=pytest.mark.slow) for where in ("step", "saving", "evaluation")),
    ],
)
def test_a_worker_that_hangs_but_lives_is_given_up(digits, tmp_path, where, rank):
    """Its threads run, and so its heartbeats to TensorFlow: only that it takes no part in a sum shows that it hangs."""
    flags = ("--collective_timeout=6", "--train_steps=60", "--checkpoint_every=40", "--eval_every=40")
    workers = start_waiting(digits, tmp_path, f"{where}:{rank}:1000", *flags)
    hangs = workers.pop(rank)
    silent = rf"lost another worker \(no answer for 6 s, --collective_timeout\); {ALL}"
    assert ends(*workers)[0].is_one_line(75, silent)
    kill(hangs)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["compiling", "step", "saving", "evaluation"])
def test_a_wait_of_all_workers_for_longer_than_the_timeout_ends_none(digits, tmp_path, where):
    flags = ("--collective_timeout=6", "--train_steps=60", "--checkpoint_every=40", "--eval_every=40")
    assert [end.code for end in ends(*start_waiting(digits, tmp_path, f"{where}::12", *flags))] == [0, 0]


@pytest.mark.slow
def test_a_loop_that_takes_longer_than_the_timeout_ends_none(digits, tmp_path):
    """One loop of 6,000 steps, which show progress before it ends."""
    flags = ("--collective_timeout=3", "--train_steps=6000", "--steps_per_loop=100000", "--eval_split=none")
    began = time.monotonic()
    assert [end.code for end in ends(*start_waiting(digits, tmp_path, "nowhere::0", *flags))] == [0, 0]
    assert time.monotonic() - began > 6


def threads_of(process: forked.Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/task"))


@pytest.mark.slow
def test_threads_do_not_grow_with_the_steps(digits, tmp_path):
    """TensorFlow's own timeout of collectives keeps threads for each of them: four per step, for 120 s."""
    workers = start_workers(digits, [tmp_path] * 2, *LONG, "--log_every=100", "--checkpoint_every=100000")
    counts = []
    for step in (100, 300):
        wait_for_step(workers[0], step)
        counts.append([threads_of(worker) for worker in workers])
    kill(*workers)
    before, after = counts
    assert all(later < earlier + 20 for earlier, later in zip(before, after, strict=True)), counts


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_preemption_saves_one_step(digits, tmp_path, victim):
    workers = start_workers(digits, [tmp_path] * 3, *LONG)
    wait_for_step(workers[0], 30)
    workers[victim].send_signal(signal.SIGTERM)
    said = r"training stopped by (?:SIGTERM|another worker's signal): step (\d+) of 100000 is saved; .*"
    outcomes = ends(*workers)
    assert re.match(STOPS, outcomes[victim].err)
    assert all(re.fullmatch(f"(?:{STOPS})?trainer.run: {said}\n", end.err) for end in outcomes)
    assert {end.code for end in outcomes} == {75}
    (step,) = {re.search(said, end.err)[1] for end in outcomes}
    assert checkpoint_bytes(tmp_path, int(step))


# The disk.


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


FULL = r"the disk is full \(.*No space left on device.*\); make room and rerun the same command"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk(digits, small_disk, workers):
    chief, *others = ends(*start_workers(digits, [small_disk] * workers, *LONG))
    assert chief.is_one_line(1, FULL)
    assert all(other.is_one_line(1, CHIEF_FAILED + FULL) for other in others)
    assert checkpoint_bytes(small_disk, saved_steps(small_disk)[-1])


@pytest.mark.slow
def test_a_model_dir_that_becomes_unwritable(digits, tmp_path):
    folder = tmp_path / "model"
    processes = start_workers(digits, [folder] * 2, *LONG)
    wait_for_step(processes[0], 30)
    try:
        if subprocess.run(["chattr", "+i", str(folder)], check=False).returncode:
            for process in processes:
                process.kill()
            pytest.skip("may not make a folder immutable")
        chief, other = ends(*processes)
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=False)
    said = rf"{folder}/ckpt-\d+: cannot be saved: Operation not permitted"
    assert chief.is_one_line(1, said)
    assert other.is_one_line(1, CHIEF_FAILED + said)


@pytest.mark.slow
@pytest.mark.parametrize("now", ["nothing", "a file"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_dir_that_is_gone(digits, tmp_path, workers, now):
    folder = tmp_path / "model"
    processes = start_workers(digits, [folder] * workers, *LONG)
    wait_for_step(processes[0], 50)
    folder.rename(tmp_path / "elsewhere")
    if now == "a file":
        folder.write_text("")
    chief, *others = ends(*processes)
    said = f"--model_dir={folder}: was moved, removed or replaced during this run; .*"
    assert chief.is_one_line(1, said)
    assert not folder.is_dir()  # it was not recreated
    assert all(other.is_one_line(1, CHIEF_FAILED + said) for other in others)
    assert saved_steps(tmp_path / "elsewhere")
