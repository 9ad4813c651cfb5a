"""The script of `--target=slurm` on a real Slurm of two nodes: `make test-engines`."""

import os
import re
import signal
import sys
import time

import pytest

from tests.engines.slurm_cluster import SlurmCluster, missing
from tests.helpers import forked
from tests.helpers.runs import checkpoint_bytes, start_workers, succeed

STEPS = 600
FLAGS = ("--model=mlp", "--log_every=25", "--steps_per_loop=10")
TWO_NODES = ("--num_workers=2",)
ONE_NODE = ("--num_workers=2", "--tasks_per_node=2")
FOR_EVER = ("--train_steps=100000000", "--model=lenet", "--global_batch_size=1000")  # about ten steps per second
# `python` on the nodes: the trainer of rank 0 gets a flag that does not exist.
FAILS_ON_RANK_0 = f"""#!/bin/bash
if [ "$SLURM_PROCID" = 0 ]; then set -- "$@" --no_such_flag; fi
exec {sys.executable} "$@"
"""

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200), pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm") / "shared") as made:
        yield made


@pytest.fixture
def submit(cluster, digits):
    """Returns a function that submits the launcher's output; the run is in the nodes' folder `name`."""
    jobs = []

    def submit(name, flags, *trainer, **variables):
        command = ["-m", "trainer.launch", "--target=slurm", f"--name={name}", *flags, "--"]
        data = (f"--data_dir={digits}", f"--model_dir={name}")
        done = forked.run([*command, *data, *FLAGS, *trainer], {"PYTHONPATH": str(forked.ROOT)}, cluster.folder)
        assert (done.returncode, done.stderr) == (0, "")
        jobs.append(cluster.submit(done.stdout, **variables))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.cancel()


def test_a_task_that_is_killed_on_one_of_two_nodes(cluster, submit, digits, tmp_path):
    flags = (f"--train_steps={STEPS}", "--checkpoint_every=100")
    job = submit("killed", TWO_NODES, *flags)
    job.wait_for("step 250, loss")
    (killed,) = cluster.trainers("n2")
    os.kill(killed, signal.SIGKILL)
    job.wait_for("the job ended with code 137, and is requeued (restart 1 of 10); killed/ckpt-")
    job.start_again()
    ended = job.wait("COMPLETED", "FAILED")
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), job.log()[-3000:]
    assert ended["NodeList"] == "n[1-2]"
    assert re.search(r"resumed from killed/ckpt-(\d+)00\b", job.log())
    succeed(*start_workers(digits, [tmp_path / "undisturbed"] * 2, *flags, *FLAGS))
    assert checkpoint_bytes(cluster.folder / "killed", STEPS) == checkpoint_bytes(tmp_path / "undisturbed", STEPS)


def test_the_time_limit_and_scancel(submit):
    job = submit("limited", (*ONE_NODE, "--time_limit=2", "--stop_timeout=20"), *FOR_EVER)
    log = job.wait_for("is requeued")
    saved = re.findall(r"training stopped by SIGTERM: step (\d+) of \d+ is saved", log)
    assert len(saved) == 2
    assert saved[0] == saved[1]
    assert f"and is requeued (restart 0 of 10); limited/ckpt-{saved[0]} is saved" in log

    job.start_again()
    again = f"resumed from limited/ckpt-{saved[0]}"
    job.wait_for(again, "loss")
    job.cancel()
    ended = job.wait("CANCELLED", "COMPLETED", "FAILED", "PENDING")
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "1")
    rest = job.wait_for(again, "the job was cancelled (code 75); limited/ckpt-").partition(again)[2]
    later = re.findall(r"training stopped by SIGTERM: step (\d+) of \d+ is saved", rest)
    assert len(later) == 2
    assert int(later[0]) > int(saved[0])
    assert f"the job was cancelled (code 75); limited/ckpt-{later[0]} is saved" in rest


def test_a_task_that_fails_at_its_start_ends_the_others(cluster, submit):
    """They would wait for it until --join_timeout."""
    place = cluster.folder / "bin"
    place.mkdir()
    (place / "python").write_text(FAILS_ON_RANK_0)
    (place / "python").chmod(0o755)
    job = submit("failing", TWO_NODES, *FOR_EVER, "--join_timeout=600", PATH=f"{place}{os.pathsep}{os.environ['PATH']}")
    log = job.wait_for("--no_such_flag")
    begin = time.monotonic()
    ended = job.wait("FAILED", "COMPLETED", "PENDING")
    assert time.monotonic() - begin < 60
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0"), log
    assert "a process ended with code 2, which says that it would fail again; no checkpoint is saved" in job.log()
