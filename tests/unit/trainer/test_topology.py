"""Sums whose bits do not depend on how the summands are spread over replicas."""

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.topology import sum_gradients

V = 12


def summed(parts, replicas, make_strategy):
    """Returns the sums of parts, per variable (V, ...), spread over replicas of this process."""
    strategy = make_strategy(replicas) if replicas else tf.distribute.get_strategy()
    each = V // max(1, replicas)

    def of_replica(values):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group * each :][:each])
        )

    @tf.function(autograph=False)
    def run(*local):
        return strategy.run(lambda *own: sum_gradients(own, V), local)

    found = run(*map(of_replica, parts))
    results = [[part.numpy() for part in strategy.experimental_local_results(value)] for value in found]
    assert all(one.tobytes() == part.tobytes() for one, *others in results for part in others)
    return [one for one, *_ in results]


@pytest.fixture(scope="module")
def parts():
    draw = np.random.default_rng(0)
    wide = draw.normal(size=(V, 5, 3)) * 10 ** draw.uniform(-30, 20, (V, 5, 3))
    return [values.astype(np.float32) for values in (wide, draw.normal(size=(V, 257)), np.zeros((V, 2)), np.ones(V))]


def exact(values):
    flat = values.reshape(V, -1)
    return np.array([float(sum(map(Fraction, map(float, column)))) for column in flat.T]).reshape(values.shape[1:])


@pytest.mark.parametrize(
    "replicas", [1, pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_any_number_of_replicas_gives_the_same_bits_nearer_to_the_sum_than_floats(replicas, parts, make_strategy):
    alone = summed(parts, 0, make_strategy)
    for one, other, values in zip(alone, summed(parts, replicas, make_strategy), parts, strict=True):
        assert one.dtype == np.float32
        assert one.shape == values.shape[1:]
        assert one.tobytes() == other.tobytes()
        bound = V * np.abs(values).max() * 2.0 ** -(63 - 4)  # of the summands; then the rounding to float32
        assert np.all(np.abs(one - exact(values)) <= bound + np.abs(exact(values)) * 2.0**-24)


@pytest.mark.gpu
def test_two_gpus_add_integers_to_the_bits_of_one(parts):
    """Through NCCL, which adds int64 as exactly as a CPU does."""
    gpus = [f"GPU:{i}" for i in range(len(tf.config.list_physical_devices("GPU")))]
    if len(gpus) < 2:
        pytest.skip(f"needs two GPUs, this machine has {len(gpus)}")
    alone = summed(parts, 0, None)
    both = summed(parts, 2, lambda count: tf.distribute.MirroredStrategy(gpus[:count]))
    for one, other in zip(alone, both, strict=True):
        assert one.tobytes() == other.tobytes()


def test_summands_in_any_order_and_of_any_magnitude_cancel(make_strategy):
    large = np.float32(3e38)
    values = np.array([large, 1.0, -large] + [0.5] * (V - 3), np.float32)
    for order in (values, values[::-1].copy(), np.roll(values, 5)):
        [found] = summed([order], 2, make_strategy)
        assert found == 0.0  # what is far below the largest summand is rounded away, in every order alike


def test_what_is_below_the_normal_numbers_is_zero_whether_a_kernel_flushes_it_or_not(make_strategy):
    least = np.float32(2.0**-125)
    [small, smaller] = summed([np.full(V, least), np.full((V, 3), np.float32(2.0**-130))], 3, make_strategy)
    assert small == V * least
    assert smaller.tolist() == [0.0] * 3
    [found] = summed([np.full(V, 1.25 * 2.0**-126, np.float32)], 2, make_strategy)
    assert found == V * 2.0**-125  # the least unit, to which all are rounded


@pytest.mark.parametrize("replicas", [0, 2])
def test_many_summands_are_compiled_and_have_the_bits_of_few(replicas, make_strategy):
    draw = np.random.default_rng(4)
    large = (draw.normal(size=(V, 90, 300)) * 10 ** draw.uniform(-12, 3, (V, 90, 300))).astype(np.float32)
    parts = [large, draw.normal(size=(V, 7)).astype(np.float32)]
    top = np.abs(large).max()
    for one, values in zip(summed(parts, replicas, make_strategy), parts, strict=True):
        for begin in range(0, values.shape[1], 30):
            part = values[:, begin : begin + 30].copy()
            marked = np.concatenate([part.reshape(V, -1), np.full((V, 1), top if values is large else 0)], axis=1)
            [other] = summed([marked.astype(np.float32)], replicas, make_strategy)
            assert other[:-1].tobytes() == one[begin : begin + 30].tobytes()


@pytest.mark.parametrize(
    ("values", "count", "facts"),
    [
        (np.ones((6, 2), np.float32), 12, r"num_summands=12: .* shape \(6, 2\) on each of 1 replicas"),
        (np.ones((6, 2), np.float32), 1, "num_summands=1: "),
        (np.ones((6, 2), np.float64), 6, "float32"),
    ],
)
def test_other_summands_than_said_are_refused(values, count, facts):
    with pytest.raises(UsageError, match=facts):
        sum_gradients([tf.constant(values)], count)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_variable_nan_and_no_other(bad, make_strategy):
    one, other = np.ones((V, 3), np.float32), np.ones((V, 2), np.float32)
    one[7, 1] = bad
    found = summed([one, other], 4, make_strategy)
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == [V, V]


def test_a_sum_beyond_float32_is_infinite(make_strategy):
    assert np.isinf(summed([np.full(V, 3e38, np.float32)], 2, make_strategy)[0])
