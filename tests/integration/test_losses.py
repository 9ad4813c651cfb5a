"""Fifty steps have the same losses on any number of replicas and workers: real processes, models without BatchNorm."""

import numpy as np
import pytest

from tests.helpers.runs import scalars, start, start_workers, succeed

STEPS = 50
FLAGS = ["--augment=shift", "--global_batch_size=64", f"--train_steps={STEPS}", "--log_every=1", "--summary_every=1"]
MLP = ["--model=mlp", "--optimizer=sgd", "--learning_rate=0.1"]
LENET = ["--model=lenet"]


def losses(digits, model_dir, model, strategy, count, *more):
    """Returns the loss of every step, float32 (50,), as the run's TensorBoard scalars have it."""
    flags = [*FLAGS, *model, *more]
    if strategy == "multiworker":
        workers = start_workers(digits, [model_dir] * count, *flags)
    else:
        workers = [start(digits, model_dir, *flags, f"--strategy={strategy}", f"--num_replicas={count}")]
    succeed(*workers)
    logged = {step: value for (tag, step), value in scalars(model_dir / "logs").items() if tag == "train/loss"}
    assert sorted(logged) == list(range(1, STEPS + 1))
    return np.array([logged[step] for step in sorted(logged)], np.float32)


@pytest.fixture(scope="module")
def alone(digits, tmp_path_factory):
    values = losses(digits, tmp_path_factory.mktemp("alone"), MLP, "mirrored", 1)
    assert values[-10:].mean() < 0.5 * values[:5].mean(), "it learns"
    return values


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        pytest.param("mirrored", 2, marks=pytest.mark.slow),
        pytest.param("mirrored", 4, marks=pytest.mark.slow),
        pytest.param("multiworker", 1, marks=pytest.mark.slow),
        ("multiworker", 2),
    ],
)
def test_losses_are_those_of_one_replica(digits, tmp_path, alone, strategy, count):
    np.testing.assert_allclose(losses(digits, tmp_path, MLP, strategy, count), alone, rtol=5e-6)


@pytest.mark.slow
def test_workers_that_sum_in_a_ring_have_the_same_losses(digits, tmp_path, alone):
    found = losses(digits, tmp_path, MLP, "multiworker", 2, "--all_reduce=ring")
    np.testing.assert_allclose(found, alone, rtol=5e-6)


@pytest.mark.slow
def test_convolutions_agree_too(digits, tmp_path):
    """Over 40 steps: sums in another order differ by 1e-7, until one tips a maximum of a pool to its neighbour."""
    one = losses(digits, tmp_path / "one", LENET, "mirrored", 1)
    two = losses(digits, tmp_path / "two", LENET, "mirrored", 2)
    np.testing.assert_allclose(two[:40], one[:40], rtol=2e-5)
    np.testing.assert_allclose(two, one, rtol=2e-2)
