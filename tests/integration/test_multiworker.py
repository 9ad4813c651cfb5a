"""Two workers on this machine: training, signals, kills, a lost peer, resuming. Real processes."""

import random
import re
import signal
import time

import pytest

from tests.runs import checkpoint_bytes, finish, start, start_workers, start_workers_by_flags, wait_for_step

STEPS = 120
FLAGS = (
    *(f"--train_steps={STEPS}", "--checkpoint_every=23", "--log_every=10"),
    *("--steps_per_loop=4", "--distort=shift(pixels=2)", "--collective_timeout=30"),
)


@pytest.fixture(scope="module")
def uninterrupted(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    chief, other = finish(*start_workers(digits, [folder] * 2, *FLAGS))
    assert (chief[0], chief[2]) == (0, "")
    assert (other[0], other[2]) == (0, "")  # the chief alone reports what happens
    said = [line for line in other[1].splitlines() if not line.startswith("waiting for ")]
    assert said == ["worker 1: here CPU:0; step 0 to 120; a new run", "worker 1: done at step 120"]
    assert len(list((folder / "logs").iterdir())) == 1
    assert "multiworker: 2 replicas, here CPU:0; mlp" in chief[1]
    assert re.search(r"test accuracy = 0\.\d{4} \(368 examples\)", chief[1])
    return checkpoint_bytes(folder, STEPS)


LOST = r"trainer.run: lost another worker \(.+\);.* all 2 .*\n"


def test_stopped_by_a_signal_then_losing_the_chief_then_going_on(digits, tmp_path, uninterrupted):
    workers = start_workers(digits, [tmp_path] * 2, *FLAGS)
    wait_for_step(workers[0], 30)
    workers[1].send_signal(signal.SIGTERM)
    chief, other = finish(*workers)
    assert (chief[0], other[0]) == (75, 75)
    line = r"trainer.run: training stopped by %s: step (\d+) of 120 is saved.*\n"
    first = re.fullmatch(line % "another worker's signal", chief[2])
    assert first, chief[2]
    assert re.fullmatch(line % "SIGTERM", other[2])[1] == first[1]

    workers = start_workers(digits, [tmp_path] * 2, *FLAGS)
    wait_for_step(workers[0], 60)
    workers[0].kill()
    began = time.monotonic()
    code, _, err = finish(*workers)[1]
    assert time.monotonic() - began < 30
    assert code == 75
    assert re.fullmatch(LOST, err), err

    chief, other = finish(*start_workers_by_flags(digits, [tmp_path] * 2, *FLAGS))
    assert (chief[0], other[0]) == (0, 0)
    assert f"resumed from {tmp_path}/ckpt-" in chief[1]
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_both_killed_at_any_moment(seed, digits, tmp_path, uninterrupted):
    draw = random.Random(seed)
    for _ in range(3):
        workers = start_workers(digits, [tmp_path] * 2, *FLAGS)
        if draw.random() < 0.7:
            for line in workers[0].stdout:  # not to a step's line: an earlier run may have come to the end already
                if line.startswith("multiworker: "):
                    break
        time.sleep(draw.uniform(0, 5))
        for worker in draw.sample(workers, 2):
            worker.kill()
        finish(*workers)
    assert [code for code, _, _ in finish(*start_workers(digits, [tmp_path] * 2, *FLAGS))] == [0, 0]
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted


@pytest.mark.slow
def test_workers_without_a_shared_model_dir_are_told(digits, tmp_path, uninterrupted):
    folders = [tmp_path / "one", tmp_path / "other"]
    flags = [flag for flag in FLAGS if not flag.startswith("--train_steps")]
    chief, other = finish(*start_workers(digits, folders, *flags, "--train_steps=10"))
    assert (chief[0], other[0]) == (0, 0)
    outcomes = finish(*start_workers(digits, folders, *flags, "--train_steps=20"))
    assert outcomes[0][0] == 1
    assert "differs between workers: [10, 0]" in outcomes[0][2]


def test_a_wrong_cluster_is_one_line(digits, tmp_path):
    cluster = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}}'
    ((code, out, err),) = finish(start(digits, tmp_path, "--strategy=multiworker", *FLAGS, tf_config=cluster))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.match(r"trainer.run: TF_CONFIG: .*\b3\b.*\b1\b", err)


@pytest.mark.parametrize("tf_config", [None, ""], ids=["unset", "empty"])
def test_without_a_cluster_one_worker_trains(tf_config, digits, tmp_path):
    ((code, out, err),) = finish(
        start(digits, tmp_path, "--strategy=multiworker", "--train_steps=5", tf_config=tf_config)
    )
    assert (code, err) == (0, "")
    assert out.startswith("TF_CONFIG is not set")
    assert "multiworker: 1 replica, " in out
