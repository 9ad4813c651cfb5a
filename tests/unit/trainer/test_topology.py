"""Sums whose bits do not depend on how the summands are spread over replicas."""

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.framework import kernels

from pipeline.errors import UsageError
from trainer import topology
from trainer.topology import of_virtual_replicas, sum_gradients, sum_virtual_replicas

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
        assert found == 0.0  # summands far below the largest are rounded away, in any order


def test_what_is_below_the_normal_numbers_is_zero_whether_a_kernel_flushes_it_or_not(make_strategy):
    least = np.float32(2.0**-125)
    [small, smaller] = summed([np.full(V, least), np.full((V, 3), np.float32(2.0**-130))], 3, make_strategy)
    assert small == V * least
    assert smaller.tolist() == [0.0] * 3
    [found] = summed([np.full(V, 1.25 * 2.0**-126, np.float32)], 2, make_strategy)
    assert found == V * 2.0**-125  # the least unit, to which all are rounded


@pytest.mark.parametrize("replicas", [0, 2])
@pytest.mark.quick(1)
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
@pytest.mark.quick(1)
def test_what_is_not_finite_makes_its_variable_nan_and_no_other(bad, make_strategy):
    one, other = np.ones((V, 3), np.float32), np.ones((V, 2), np.float32)
    one[7, 1] = bad
    found = summed([one, other], 4, make_strategy)
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == [V, V]


def test_a_sum_beyond_float32_is_infinite(make_strategy):
    assert np.isinf(summed([np.full(V, 3e38, np.float32)], 2, make_strategy)[0])


def integers_of(values, exponent, shift):
    """Returns numbers as integers of the unit 2^(exponent - shift), rounded half to even."""
    return [round(Fraction(float(x)) * Fraction(2) ** (shift - exponent)) for x in values.ravel()]


def by_definition(values):
    """Returns the sum over the first axis as the module's docstring defines it, by Python's unbounded integers."""
    shift = 62 - math.ceil(math.log2(max(2, len(values))))
    if not np.isfinite(values).all():
        return np.full(values.shape[1:], np.nan, np.float32)
    exponent = max(math.frexp(np.abs(values).max())[1], shift - 125)
    totals = np.sum([np.array(integers_of(one, exponent, shift), object) for one in values], axis=0)
    with np.errstate(over="ignore"):
        sums = [np.float32(math.ldexp(float(total), exponent - shift)) for total in totals]
    return np.array(sums, np.float32).reshape(values.shape[1:])


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf, 2.0**-126, 2.0**-149, 3e38])
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])


@st.composite
def summands(draw):
    """Returns up to three variables, float32 (count, *shape) each."""
    count, shapes = draw(st.integers(1, 5)), draw(st.lists(SHAPES, min_size=1, max_size=3))
    sizes = [count * math.prod(shape) for shape in shapes]
    numbers = [draw(st.lists(NUMBERS, min_size=size, max_size=size)) for size in sizes]
    return [np.array(one, np.float32).reshape(count, *shape) for one, shape in zip(numbers, shapes, strict=True)]


@settings(max_examples=30, deadline=None)
@given(summands())
def test_sums_are_those_of_the_definition(variables):
    """A run begun by an earlier release resumes to the same bits as long as the integers stay the same."""
    count = len(variables[0])
    stacked = sum_gradients([tf.constant(values) for values in variables], count)
    apart = sum_virtual_replicas([[tf.constant(values[i]) for values in variables] for i in range(count)], count)
    for values, one, other in zip(variables, stacked, apart, strict=True):
        np.testing.assert_array_equal(one.numpy(), by_definition(values))
        np.testing.assert_array_equal(other.numpy(), by_definition(values))


def test_each_way_of_summing_has_the_same_bits(parts, make_strategy, monkeypatch):
    """Compiled or not, stacked or apart, on one replica or two."""
    alone = summed(parts, 0, make_strategy)
    monkeypatch.setattr(topology, "_WORTH_COMPILING", 0)
    results = [[tf.constant(values[i]) for values in parts] for i in range(V)]
    ways = [summed(parts, 0, make_strategy), summed(parts, 2, make_strategy), sum_virtual_replicas(results, V)]
    for way in ways:
        assert [np.asarray(one).tobytes() for one in way] == [one.tobytes() for one in alone]


def test_virtual_replicas_are_calls_of_one_function_two_at_once_on_cpus():
    """Copies of it in one graph would be optimised together: other bits for another number of replicas."""
    rows = (tf.ones((3, 2, 4)), tf.range(3))

    @tf.function(autograph=False)
    def run(*rows):
        return of_virtual_replicas(lambda part: {"sum": tf.reduce_sum(part[0]) + tf.cast(part[1], tf.float32)}, rows)

    assert [one["sum"].numpy() for one in run(*rows)] == [8, 9, 10]
    graph = run.get_concrete_function(*rows).graph
    calls = [op for op in graph.get_operations() if "f" in op.node_def.attr]
    assert len(calls) == 3
    assert len({op.get_attr("f").name for op in calls}) == 1
    assert graph.as_graph_def().library.function[0].attr["_noinline"].b
    waits_for = [[i for i, one in enumerate(calls) if one in call.control_inputs] for call in calls]
    assert waits_for == ([[], [0], [1]] if tf.config.list_logical_devices("GPU") else [[], [], [0]])


@pytest.mark.parametrize("are_apart", [True, False])
def test_every_operation_of_the_sums_has_a_kernel_on_gpus(are_apart):
    """Soft placement would put another one on the CPU, with a copy there and back in every step."""

    @tf.function(autograph=False)
    def run(*values):
        variables = [[one, one] if are_apart else tf.stack([one, one]) for one in values]
        exponents = topology._of_all_replicas(topology._exponents(variables), 1)
        packed = topology._packed_integers(variables, exponents, 61)
        return topology._unpacked_sums(packed, exponents, 61, ((3, 2), ()))

    graph = run.get_concrete_function(tf.ones((3, 2)), tf.ones(())).graph
    # Range: axes to reduce, which are folded to constants.
    computing = [op for op in graph.get_operations() if op.type not in ("Const", "Placeholder", "NoOp", "Range")]
    assert len(computing) > 20
    assert [f"{op.type} {op.name}" for op in computing if not has_gpu_kernel(op)] == []


def has_gpu_kernel(op):
    """Returns whether a GPU kernel of the operation's types computes in the GPU's memory."""

    def fits(kernel):
        types = {one.name: one.allowed_values.list.type for one in kernel.constraint}
        return all(op.get_attr(name).as_datatype_enum in allowed for name, allowed in types.items())

    found = [
        one for one in kernels.get_registered_kernels_for_op(op.type).kernel if one.device_type in ("GPU", "DEFAULT")
    ]
    outputs = {one.name for one in op.op_def.output_arg}
    return any(fits(one) and not outputs & set(one.host_memory_arg) for one in found)
