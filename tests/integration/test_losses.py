"""Fifty steps have the same losses on any number of replicas and workers: real processes, models without BatchNorm."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import convert
from tests.loopback import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 50
FLAGS = ["--distort=shift", "--global_batch_size=64", f"--train_steps={STEPS}", "--log_every=1"]
MLP = ["--model=mlp", "--optimizer=sgd", "--learning_rate=0.1"]
LENET = ["--model=lenet"]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    convert.main(["--dataset=digits", f"--data_dir={folder}"])
    return folder


def losses(data_dir, model_dir, model, strategy, count):
    """Returns the loss of every step, float32 (50,), as the run's TensorBoard scalars have it."""
    environments = [os.environ | {"PYTHONPATH": str(ROOT)}]
    flags = [*FLAGS, *model, f"--data_dir={data_dir}", f"--model_dir={model_dir}", f"--strategy={strategy}"]
    if strategy == "multiworker":
        cluster = {"worker": [f"localhost:{port}" for port in free_ports(count)]}
        tasks = [{"type": "worker", "index": index} for index in range(count)]
        environments = [environments[0] | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": t})} for t in tasks]
    else:
        flags.append(f"--num_replicas={count}")
    command = [sys.executable, "-m", "trainer.run", *flags]
    workers = [
        subprocess.Popen(command, cwd=ROOT, env=e, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for e in environments
    ]
    for worker in workers:
        _, err = worker.communicate(timeout=300)
        assert (worker.returncode, err) == (0, b"")
    (events,) = (model_dir / "logs").glob("events*")
    logged = {}
    for event in tf.compat.v1.train.summary_iterator(str(events)):
        for value in event.summary.value:
            if value.tag == "train/loss":
                logged[event.step] = tf.make_ndarray(value.tensor)
    assert sorted(logged) == list(range(1, STEPS + 1))
    return np.array([logged[step] for step in sorted(logged)])


@pytest.fixture(scope="module")
def alone(data_dir, tmp_path_factory):
    values = losses(data_dir, tmp_path_factory.mktemp("alone"), MLP, "mirrored", 1)
    assert values[-10:].mean() < 0.5 * values[:5].mean(), "it learns"
    return values


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        pytest.param("mirrored", 2, marks=pytest.mark.slow),
        ("mirrored", 4),
        pytest.param("multiworker", 1, marks=pytest.mark.slow),
        ("multiworker", 2),
    ],
)
def test_losses_are_those_of_one_replica(data_dir, tmp_path, alone, strategy, count):
    np.testing.assert_allclose(losses(data_dir, tmp_path, MLP, strategy, count), alone, rtol=5e-6)


@pytest.mark.slow
def test_convolutions_agree_too(data_dir, tmp_path):
    """Over 40 steps: sums in another order differ by 1e-7, until one tips a maximum of a pool to its neighbour."""
    one = losses(data_dir, tmp_path / "one", LENET, "mirrored", 1)
    two = losses(data_dir, tmp_path / "two", LENET, "mirrored", 2)
    np.testing.assert_allclose(two[:40], one[:40], rtol=2e-5)
    np.testing.assert_allclose(two, one, rtol=2e-2)
