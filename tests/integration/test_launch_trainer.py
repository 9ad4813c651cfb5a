"""The launcher with the trainer itself: the same bits as an undisturbed run, whatever dies."""

import os
import random
import re
import signal
import sys
import time

import pytest

from tests.helpers.datasets import write_dataset
from tests.helpers.launches import Launch, left_within
from tests.helpers.runs import checkpoint_bytes, train

FLAGS = (
    "--model=softmax_regression",
    "--optimizer=momentum",
    "--global_batch_size=24",
    "--virtual_replicas=12",
    "--steps_per_loop=5",
    "--checkpoint_every=50",
    "--log_every=20",
    "--summary_every=0",
)
# While the file is there, a worker with GPU 1 dies as soon as it starts.
BREAKS = """
import os, pathlib, runpy, signal, sys
if os.environ["CUDA_VISIBLE_DEVICES"] == "1" and pathlib.Path({file!r}).exists():
    os.kill(os.getpid(), signal.SIGKILL)
runpy.run_module("trainer.run", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (40, 26), (8, 8, 1), test_counts=(20,))
    return path


@pytest.fixture
def launch(data, tmp_path):
    """Returns a function that starts the launcher; `more` are flags of the trainer."""
    started = []

    def launch(*flags, steps, more=(), program=None, environment=None):
        trainer = (f"--data_dir={data}", f"--train_steps={steps}", *FLAGS, *more)
        started.append(Launch(tmp_path / "model", flags, trainer, program, environment or {}))
        return started[-1]

    yield launch
    for one in started:
        one.process.kill()
        left_within(60, one.pids())


@pytest.fixture
def undisturbed(data, tmp_path):
    """Returns a function that returns the checkpoint of a run on one device."""

    def undisturbed(steps):
        train(data, tmp_path / "undisturbed", *FLAGS, f"--train_steps={steps}")
        return checkpoint_bytes(tmp_path / "undisturbed", steps)

    return undisturbed


@pytest.mark.slow
def test_two_workers(launch, undisturbed, tmp_path):
    job = launch("--num_workers=2", steps=30)
    code, out, err = job.end()
    assert code == 0, err
    assert re.search(r"^worker 0 \| multiworker: 2 replicas, .* step 0 to 30 of 24 examples", out, re.MULTILINE)
    assert re.search(r"^worker 0 \| step 20, loss = ", out, re.MULTILINE)
    assert re.search(r"^worker 0 \| test accuracy = ", out, re.MULTILINE)
    assert re.search(r"^worker 1 \| worker 1: done at step 30$", out, re.MULTILINE)
    status = job.status()
    assert (status["state"], status["step"], status["last_step"]) == ("done", 30, 30)
    assert [one["examples_per_second"] > 0 for one in status["processes"]] == [True, True]
    assert checkpoint_bytes(tmp_path / "model", 30) == undisturbed(30)


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_without_an_end(launch, tmp_path):
    job = launch("--num_workers=2", steps=100_000, more=["--checkpoint_every=0"])
    pids = [one["pid"] for one in job.wait_until(lambda status: status["processes"][0]["step"])["processes"]]
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        job.process.send_signal(number)
    saved = job.wait_until(lambda status: status["saved_step"])["saved_step"]
    job.wait_for_step(saved + 100)
    for pid in pids:  # all at once, like a cluster manager
        os.kill(pid, signal.SIGUSR2)
    job.wait_until(lambda status: status["saved_step"] > saved)
    job.process.terminate()
    code, out, err = job.end()
    assert code == 75, err
    assert err.count("passed on to worker 0") == 2
    assert all(f"SIGUSR{number}: passed on to worker 0" in err for number in (1, 2))
    steps = re.findall(r"^worker 0 \| step (\d+) is saved, as SIGUSR2 asked", out, re.MULTILINE)
    assert 2 <= len(steps) <= 3  # the workers need not have heard before the same step
    assert len(re.findall(r"^worker 0 \| step \d+, \S+-bound: ", out, re.MULTILINE)) == 1
    assert not re.search(r"^worker 1 \| .*SIGUSR", out, re.MULTILINE)


@pytest.mark.slow
def test_a_killed_worker_costs_no_bit(launch, undisturbed, tmp_path):
    job = launch("--num_workers=2", steps=400)
    os.kill(job.wait_for_step(60)["processes"][1]["pid"], signal.SIGKILL)
    code, out, err = job.end()
    assert code == 0, err
    assert re.search(r"trainer.launch: worker 1 \(process \d+\) was killed by SIGKILL after step \d+\n", err)
    assert "lost another worker" not in err.partition("was killed by SIGKILL")[0]
    assert "resumed from" in out
    assert job.status()["restarts"] == 1
    assert checkpoint_bytes(tmp_path / "model", 400) == undisturbed(400)


@pytest.mark.slow
def test_a_stopped_worker_is_named(launch):
    job = launch("--num_workers=2", steps=600)
    os.kill(job.wait_for_step(60)["processes"][1]["pid"], signal.SIGSTOP)
    code, _, err = job.end()
    assert code == 0, err
    assert re.search(
        r"trainer.launch: worker 1 \(process \d+\) gave no sign of life for \d+ s.*, and was killed\n", err
    )
    assert "lost another worker" not in err.partition("gave no sign of life")[0]


@pytest.mark.slow
def test_a_worker_of_a_job_that_only_it_can_notice(launch):
    """One worker has no peer that would miss it."""
    job = launch("--num_workers=1", "--silent_timeout=5", steps=1500)
    os.kill(job.wait_for_step(60)["processes"][0]["pid"], signal.SIGSTOP)
    code, _, err = job.end()
    assert code == 0, err
    assert re.search(r"worker 0 \(process \d+\) gave no sign of life for [5-9] s after step \d+ \(\w+\), and", err)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_the_end_of_the_launcher_saves_and_leaves_no_process(launch, number, tmp_path):
    job = launch("--num_workers=2", steps=100_000)
    pids = [one["pid"] for one in job.wait_for_step(30)["processes"]]
    began = time.monotonic()
    job.process.send_signal(number)
    code = job.process.wait(60)
    assert left_within(60, pids) == []
    print(f"\n{number.name}: {time.monotonic() - began:.1f} s")
    assert code == (75 if number != signal.SIGKILL else -signal.SIGKILL)
    [saved] = re.findall(r"step (\d+) of 100000 is saved", (job.folder / "logs" / "worker-0.stderr.log").read_text())
    assert (tmp_path / "model" / f"ckpt-{saved}.index").exists()
    assert not any("stops after" in log.read_text() for log in (job.folder / "logs").iterdir())  # the launcher says it


@pytest.mark.slow
def test_an_asynchronous_job_takes_a_killed_worker_back_and_resumes_without_its_ps(data, tmp_path):
    flags = (f"--data_dir={data}", "--train_steps=6000", "--global_batch_size=24", "--checkpoint_every=200")
    job = Launch(tmp_path / "model", ("--num_workers=2", "--num_ps=1"), (*flags, "--summary_every=0"))
    pids = {one["name"]: one["pid"] for one in job.wait_for_step(250)["processes"]}
    os.kill(pids["worker 1"], signal.SIGKILL)
    status = job.wait_until(
        lambda status: any(
            one["pid"] not in pids.values() and one["phase"] == "serving the chief" for one in status["processes"]
        )
    )
    assert [one["pid"] == pids[one["name"]] for one in status["processes"]] == [True, True, False, True]
    os.kill(pids["ps 0"], signal.SIGKILL)
    code, out, err = job.end()
    assert code == 0, err
    assert re.search(r"worker 1 \(process \d+\) was killed by SIGKILL; starting it again in 1 s", err)
    assert re.search(r"trainer.launch: ps 0 \(process \d+\) was killed by SIGKILL\n", err)
    assert re.search(r"step \d+ to 6000 .* resumed from", out)
    assert "of 6,000 steps, 6,000 applied once, 0 twice, 0 not at all" in out
    assert [one["restarts"] for one in job.status()["processes"]] == [1, 1, 2, 1]


def with_a_place_that_breaks(file):
    """Returns a program, and the variables under which its worker of slot 1 can be broken."""
    return (sys.executable, "-c", BREAKS.format(file=str(file))), {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.slow
def test_elastic_shrinks_and_grows_back_to_the_same_bits(launch, undisturbed, tmp_path):
    broken, steps = tmp_path / "broken", 2000
    program, environment = with_a_place_that_breaks(broken)
    job = launch("--elastic=1:2", "--regrow_delay=0.5", steps=steps, program=program, environment=environment)
    status = job.wait_for_step(40)
    assert status["num_workers"] == 2
    broken.touch()
    os.kill(status["processes"][1]["pid"], signal.SIGKILL)
    job.wait_until(lambda status: status["num_workers"] == 1 and status["state"] == "training")
    broken.unlink()
    job.wait_until(lambda status: status["num_workers"] == 2 and status["state"] == "training")
    code, _, err = job.end()
    assert code == 0, err
    assert [line for line in err.splitlines() if "continuing with" in line] == [
        "trainer.launch: continuing with 1 worker",
        "trainer.launch: continuing with 2 workers",
    ]
    assert checkpoint_bytes(tmp_path / "model", steps) == undisturbed(steps)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_job_killed_ten_times_finishes_by_itself_to_the_bits_of_an_undisturbed_one(launch, undisturbed, tmp_path):
    steps, draw = 3000, random.Random(14)
    broken = tmp_path / "broken"
    program, environment = with_a_place_that_breaks(broken)
    flags = ("--elastic=1:2", "--regrow_delay=2", "--max_restarts=10", "--restart_delay=0.1")
    job = launch(*flags, steps=steps, program=program, environment=environment)
    sizes = set()
    for number in range(10):
        step = 250 * number + draw.randrange(60, 200)
        status = job.wait_until(lambda status: status["state"] == "training" and status["step"] >= step)  # noqa: B023
        sizes.add(status["num_workers"])
        if draw.random() < 0.3:
            broken.touch()
        else:
            broken.unlink(missing_ok=True)
        victim = draw.choice(status["processes"])
        os.kill(victim["pid"], signal.SIGKILL)
        print(f"\n{number}: killed {victim['name']} of {status['num_workers']} at step {status['step']}")
        job.wait_until(lambda status: victim["pid"] not in [one["pid"] for one in status["processes"]])  # noqa: B023
    broken.unlink(missing_ok=True)
    code, _, err = job.end()
    assert code == 0, err
    assert err.count("was killed by SIGKILL") >= 10
    assert checkpoint_bytes(tmp_path / "model", steps) == undisturbed(steps)
    print(f"sizes: {sizes}; restarts: {job.status()['restarts']}")
