"""Two workers on this machine: training, signals, kills, a lost peer, resuming. Real processes."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers import forked
from tests.helpers.runs import (
    STOPS,
    checkpoint_bytes,
    finish,
    kill,
    start,
    start_workers,
    start_workers_by_flags,
    succeed,
    tf_configs,
    train,
    wait_for_step,
)

STEPS = 120
FLAGS = (
    *("--model=softmax_regression", "--optimizer=momentum", f"--train_steps={STEPS}"),
    *("--checkpoint_every=23", "--log_every=10"),
    *("--steps_per_loop=4", "--augment=shift(pixels=2)", "--collective_timeout=30"),
)


@pytest.fixture(scope="module")
def uninterrupted(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    chief, other = succeed(*start_workers(digits, [folder] * 2, *FLAGS))
    said = [line for line in other.splitlines() if not line.startswith("waiting for ")]
    # The chief alone reports what happens.
    assert said == ["worker 1: here CPU:0; step 0 to 120; a new run", "worker 1: done at step 120"]
    assert len(list((folder / "logs").iterdir())) == 1
    assert "multiworker: 2 replicas, here CPU:0; softmax_regression" in chief
    assert re.search(r"test accuracy = 0\.\d{4}, loss = \d\.\d{4} \(368 examples\)", chief)
    return checkpoint_bytes(folder, STEPS)


LOST = r"trainer.run: lost another worker \(.+\);.* all 2 .*\n"


@pytest.mark.slow
def test_stopped_by_a_signal_then_losing_the_chief_then_going_on(digits, tmp_path, uninterrupted):
    workers = start_workers(digits, [tmp_path] * 2, *FLAGS)
    wait_for_step(workers[0], 30)
    workers[1].send_signal(signal.SIGTERM)
    chief, other = finish(*workers)
    assert (chief[0], other[0]) == (75, 75)
    line = r"trainer.run: training stopped by %s: step (\d+) of 120 is saved.*\n"
    first = re.fullmatch(line % "another worker's signal", chief[2])
    assert first, chief[2]
    assert re.fullmatch(STOPS + line % "SIGTERM", other[2])[1] == first[1]

    workers = start_workers(digits, [tmp_path] * 2, *FLAGS)
    wait_for_step(workers[0], 60)
    workers[0].kill()
    began = time.monotonic()
    code, _, err = finish(*workers)[1]
    assert time.monotonic() - began < 30
    assert code == 75
    assert re.fullmatch(LOST, err), err

    chief, _ = succeed(*start_workers_by_flags(digits, [tmp_path] * 2, *FLAGS))
    assert f"resumed from {tmp_path}/ckpt-" in chief
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_both_killed_at_any_moment(seed, digits, tmp_path, uninterrupted):
    draw = random.Random(seed)
    for _ in range(3):
        workers = start_workers(digits, [tmp_path] * 2, *FLAGS)
        if draw.random() < 0.7:
            for line in workers[0].stdout:  # not to a step's line: an earlier run may have finished already
                if line.startswith("multiworker: "):
                    break
        time.sleep(draw.uniform(0, 5))
        kill(*draw.sample(workers, 2))
    succeed(*start_workers(digits, [tmp_path] * 2, *FLAGS))
    assert checkpoint_bytes(tmp_path, STEPS) == uninterrupted


@pytest.mark.slow
def test_workers_without_a_shared_model_dir_are_told(digits, tmp_path, uninterrupted):
    folders = [tmp_path / "one", tmp_path / "other"]
    flags = [flag for flag in FLAGS if not flag.startswith("--train_steps")]
    succeed(*start_workers(digits, folders, *flags, "--train_steps=10"))
    outcomes = finish(*start_workers(digits, folders, *flags, "--train_steps=20"))
    assert outcomes[0][0] == 1
    assert "differs between workers: [10, 0]" in outcomes[0][2]


MINE = """
import keras

import parts


def model(image_shape, num_classes):
    if parts.FAILS:
        raise KeyError("no such part")
    layers = [keras.layers.Dense(8, open("activation").read()), keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), *layers])
"""


@pytest.fixture
def start_in(digits, tmp_path):
    """Returns a function that starts two workers, each in a folder with a copy of the model's code."""

    def start_in(one, other, parts=("FAILS = False", "FAILS = False"), activations=("relu", "relu")):
        workers = []
        for name, code, activation, config in zip((one, other), parts, activations, tf_configs(2), strict=True):
            (tmp_path / name).mkdir()
            for file, text in (("mine.py", MINE), ("parts.py", code), ("activation", activation)):
                (tmp_path / name / file).write_text(text)
            flags = (f"--data_dir={digits}", f"--model_dir={tmp_path}/run", "--model=mine:model", "--train_steps=3")
            program = ["-m", "trainer.run", "--strategy=multiworker", "--collective_timeout=60", *flags]
            workers.append(forked.Process(program, {"TF_CONFIG": config}, tmp_path / name))
        return finish(*workers)

    return start_in


@pytest.mark.parametrize(
    ("parts", "activations", "said"),
    [
        (("FAILS = 0", "FAILS = 0  # but"), ("relu", "relu"), r"another parts\.py"),
        (("FAILS = 0",) * 2, ("relu", "gelu"), "another model: layer dense: activation gelu, the chief has relu"),
    ],
    ids=["code", "a model by the same code"],
)
def test_a_worker_with_another_is_named_by_all(parts, activations, said, start_in):
    line = rf"trainer\.run: worker 1 \(localhost:\d+\) has {said}; start all workers with the same .* code .*\n"
    for code, _, err in start_in("here", "there", parts, activations):
        assert (code, bool(re.fullmatch(line, err))) == (2, True), err


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_worker_whose_model_fails_ends_the_others_with_its_words(rank, start_in):
    fails = f"import os\nFAILS = os.environ['TF_CONFIG'].endswith(' {rank}}}}}')"
    outcomes = start_in("here", "there", [fails] * 2)
    assert [code for code, _, _ in outcomes] == [2, 2], outcomes
    own, told = outcomes.pop(rank)[2], outcomes[0][2]
    assert re.fullmatch(r"trainer\.run: --model=mine:model: .*KeyError: 'no such part'\n", own), own
    name = "worker 1" if rank else "the chief"
    assert re.fullmatch(rf"trainer\.run: lost {name} \(localhost:\d+\): {re.escape(own[13:])}", told), told


@pytest.mark.slow
def test_a_worker_with_another_copy_of_the_package_is_told(digits, tmp_path):
    copy = tmp_path / "copy"
    for package in ("pipeline", "trainer", "stepfeed"):
        shutil.copytree(forked.ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    gradients = copy / "trainer" / "step" / "train_step.py"
    said = r"trainer\.run: worker 1 \(localhost:\d+\) has another trainer/step/train_step\.py; start .*\n"
    flags = ["--strategy=multiworker", f"--data_dir={digits}", f"--model_dir={tmp_path}/run", "--train_steps=3"]
    for is_changed in (False, True):
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", "trainer.run", *flags],
                cwd=folder,
                env={**os.environ, "TF_CONFIG": config, "PYTHONPATH": str(folder)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for folder, config in zip((forked.ROOT, copy), tf_configs(2), strict=True)
        ]
        errors = [worker.communicate(timeout=300)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == ([2, 2] if is_changed else [0, 0]), errors
        assert not is_changed or all(re.fullmatch(said, error) for error in errors), errors
        gradients.write_text(gradients.read_text() + "\n# times 3.0\n")


def test_a_wrong_cluster_is_one_line(digits, tmp_path):
    cluster = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}}'
    ((code, out, err),) = finish(start(digits, tmp_path, "--strategy=multiworker", *FLAGS, tf_config=cluster))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.match(r"trainer.run: TF_CONFIG: .*\b3\b.*\b1\b", err)


@pytest.mark.parametrize("tf_config", [None, ""], ids=["unset", "empty"])
def test_without_a_cluster_one_worker_trains(tf_config, digits, tmp_path):
    out = train(digits, tmp_path, "--strategy=multiworker", "--train_steps=5", tf_config=tf_config)
    assert out.startswith("TF_CONFIG is not set")
    assert "multiworker: 1 replica, " in out
