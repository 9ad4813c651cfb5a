"""Killed at any moment and run again, a run ends with the bits of one that was never killed: in real processes."""

import random
import re
import signal
import subprocess
import time

import pytest

from tests.helpers import forked, parameter_servers
from tests.helpers.runs import STOPS, checkpoint_bytes, finish, kill, saved_steps, start, tf_configs, wait_for_step

STEPS = 240
# Checkpoints, lines and epochs at unrelated steps; augmentations, so that their randomness has to come back too.
FLAGS = (f"--train_steps={STEPS}", "--checkpoint_every=23", "--log_every=10", "--steps_per_loop=4", "--eval_every=90")
AUGMENT = "--augment=shift(pixels=2)"
# trainer.run, for `forked.Process(["-c", ...])`, whose default clock of checkpoints is 100 times as fast.
WITH_A_FAST_CLOCK = """
from trainer import run
from trainer.config import steps
steps.FIRST_CHECKPOINT_SECS, steps.CHECKPOINT_SECS = 0.6, 3.0
run.entry_point()
"""
TOPOLOGIES = {
    "one_device": ("--strategy=one_device",),
    "mirrored": ("--strategy=mirrored", "--num_replicas=2"),
}


@pytest.fixture(scope="module")
def uninterrupted(digits, tmp_path_factory):
    """Returns a function from flags to the state at the end of an undisturbed run."""
    known = {}

    def run(*flags):
        if flags not in known:
            folder = tmp_path_factory.mktemp("uninterrupted")
            assert finish(start(digits, folder, *flags))[0][0] == 0
            known[flags] = checkpoint_bytes(folder, STEPS)
            assert len(known[flags]) >= 11
        return known[flags]

    return run


def kill_after(process, step):
    wait_for_step(process, step)
    time.sleep(random.Random(step).uniform(0, 0.3))
    kill(process)


def test_killed_on_one_device(digits, tmp_path, uninterrupted):
    flags = (*TOPOLOGIES["one_device"], *FLAGS, AUGMENT)
    kill_after(start(digits, tmp_path, *flags), 100)
    code, _, err = finish(start(digits, tmp_path, *flags))[0]
    assert (code, err) == (0, "")
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted(*flags)


@pytest.mark.slow
def test_killed_and_terminated_on_two_replicas(digits, tmp_path, uninterrupted):
    flags = (*TOPOLOGIES["mirrored"], *FLAGS, AUGMENT)
    kill_after(start(digits, tmp_path, *flags), 50)

    terminated = start(digits, tmp_path, *flags)
    wait_for_step(terminated, 150)
    terminated.terminate()
    code, _, err = finish(terminated)[0]
    assert code == 75
    stopped = re.fullmatch(rf"{STOPS}trainer.run: .* SIGTERM: step (\d+) of {STEPS} is saved.*\n", err)
    assert stopped, err
    assert (tmp_path / f"ckpt-{stopped[1]}.index").exists()

    code, out, err = finish(start(digits, tmp_path, *flags))[0]
    assert (code, err) == (0, "")
    assert f"resumed from {tmp_path}/ckpt-{stopped[1]}" in out
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted(*flags)


@pytest.mark.slow
def test_interrupted_by_the_keyboard(digits, tmp_path):
    process = start(digits, tmp_path, *FLAGS)
    wait_for_step(process, 20)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)[0]
    assert code == 75
    assert re.fullmatch(rf"{STOPS}trainer.run: training stopped by SIGINT: step \d+ of {STEPS} is saved; .*\n", err)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "flags",
    [
        (*TOPOLOGIES["one_device"], "--model=mlp", "--optimizer=adam", "--learning_rate=0.001", AUGMENT),
        (*TOPOLOGIES["mirrored"], "--model=lenet", AUGMENT),
        (*TOPOLOGIES["mirrored"], "--model=cifar10_cnn", "--augment=pad_crop_flip", "--global_batch_size=32"),
        ("--strategy=central_storage", "--num_replicas=2", "--model=mlp", AUGMENT),
    ],
    ids=["one_device-mlp", "mirrored-lenet", "mirrored-cifar10_cnn", "central_storage-mlp"],
)
def test_killed_at_any_moment(flags, seed, digits, tmp_path, uninterrupted):
    """Kills at random times of the process's life: start-up, steps, saves and evaluation."""
    draw, flags = random.Random(f"{seed}{flags}"), (*flags, *FLAGS)
    for _ in range(4):
        process = start(digits, tmp_path, *flags)
        if draw.random() < 0.7:
            process.stdout.readline()  # not a step's line: an earlier run may have finished already
        try:
            process.wait(timeout=draw.uniform(0, 5))
        except subprocess.TimeoutExpired:
            process.kill()
        finish(process)
    code, _, err = finish(start(digits, tmp_path, *flags))[0]
    assert (code, err) == (0, "")
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted(*flags)
    assert not list(tmp_path.glob("*_temp"))


@pytest.mark.slow
def test_stopped_in_the_middle_of_evaluation(digits, tmp_path, uninterrupted):
    flags = (*TOPOLOGIES["one_device"], *FLAGS, AUGMENT)
    for _ in range(2):  # evaluating all the time, so that the signal meets it
        process = start(digits, tmp_path, *flags[:-2], "--eval_every=1", AUGMENT)
        wait_for_step(process, 0)
        time.sleep(0.3)
        process.terminate()
        assert finish(process)[0][0] in (0, 75)
    assert finish(start(digits, tmp_path, *flags))[0][0] == 0
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted(*flags)


def wait_until_saved(folder, count):
    for _ in range(1200):
        if len(saved_steps(folder)) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"{folder}: {list(folder.iterdir())}")


def processes(strategy, digits, folder, *flags):
    """Starts a run with the default flags for checkpoints; returns its processes, the chief's first."""
    program, flags = ("-c", WITH_A_FAST_CLOCK), ("--model=softmax_regression", "--eval_split=none", *flags)
    if strategy == "parameter_server":
        job = parameter_servers.Job(1, 1, digits, folder, *flags, program=program)
        return [job.processes[name] for name in ("chief 0", "worker 0", "ps 0")]
    configs = tf_configs(2) if strategy == "multiworker" else [None]
    program += (f"--strategy={strategy}", f"--data_dir={digits}", f"--model_dir={folder}")
    return [forked.Process([*program, *flags], {"PYTHONUNBUFFERED": "1", "TF_CONFIG": one}) for one in configs]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["one_device", "multiworker", "parameter_server"],
)
def test_killed_before_the_first_interval_of_steps_it_resumes_from_what_the_clock_has_saved(strategy, digits, tmp_path):
    """By default checkpoints are 1,000 steps apart; a run that is killed before the first is not lost."""
    flags = ("--steps_per_loop=1", "--checkpoint_every=1000000")
    begun = processes(strategy, digits, tmp_path, "--train_steps=1000000", *flags)
    wait_until_saved(tmp_path, 2)
    kill(*begun)
    newest = saved_steps(tmp_path)[-1]
    assert newest < 1000000
    rerun = processes(strategy, digits, tmp_path, f"--train_steps={newest + 5}", *flags)
    code, out, err = finish(*rerun)[0]
    assert code == 0, err
    assert f"resumed from {tmp_path}/ckpt-{newest}" in out
    assert saved_steps(tmp_path)[-1] == newest + 5
