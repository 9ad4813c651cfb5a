"""What the graph of a function would do on a GPU: kernels and bytes per step, and what makes the host wait."""

import pytest
import tensorflow as tf

from benchmarks import gpu_graph

ROWS = tf.TensorSpec([1024])
STEPS = tf.TensorSpec([], tf.int32)


def counted(function, *specs):
    with gpu_graph.virtual_gpu():
        return gpu_graph.count(tf.function(function, autograph=False).get_concrete_function(*specs))


def looped(body, values, steps):
    """Runs a body a number of times; the counter is an int32, which GPUs keep in host memory."""
    return tf.while_loop(lambda i, x: i < steps, lambda i, x: (i + 1, body(x)), (tf.zeros_like(steps), values))[1]


def test_kernels_and_bytes_are_those_of_a_step():
    counts = counted(lambda values, steps: tf.sin(looped(lambda x: tf.sin(tf.exp(x)), values, steps)), ROWS, STEPS)
    assert (counts.total.kernels, counts.total.moved) == (2, 2 * 2 * 4096)
    assert not counts.without_kernel
    assert not counts.copied
    assert not counts.conditions


def test_a_loop_within_a_step_counts_as_often_as_it_runs():
    def body(x):
        return looped(lambda y: tf.exp(y + 1), x, tf.constant(3))

    counts = counted(lambda values, steps: looped(body, values, steps), ROWS, STEPS)
    assert counts.total.kernels == 6


def test_without_a_loop_the_call_is_the_step():
    assert counted(tf.exp, ROWS).total.kernels == 1


def test_variables_are_read_and_written():
    variable = tf.Variable(tf.zeros([1024]))
    counts = counted(variable.assign_add, ROWS)
    assert (counts.total.kernels, counts.total.moved) == (1, 3 * 4096)


def test_an_operation_without_a_kernel_and_what_it_copies():
    counts = counted(lambda values: tf.split(tf.cast(values, tf.int64) + 1, [24, 1000]), ROWS)
    assert counts.without_kernel == {"SplitV (int64)": 1}
    assert [(one.size, one.times) for one in counts.copied] == [(8192, 1)]
    assert not counted(lambda values: tf.split(values + 1, [24, 1000]), ROWS).without_kernel


def test_a_clock_is_meant_for_the_host():
    counts = counted(lambda values: (tf.exp(values), tf.timestamp()), ROWS)
    assert counts.host == {"Timestamp": 1}
    assert not counts.without_kernel


@pytest.mark.parametrize(
    ("condition", "waits"),
    [
        (lambda i, x, steps: i < steps, False),
        (
            lambda i, x, steps: tf.logical_and(i < steps, i < 2 * steps),
            True,
        ),  # of int32 alone, but LogicalAnd is on the GPU
        (lambda i, x, steps: tf.reduce_sum(x) < 1, True),
        (lambda i, x, steps: tf.cast(i, tf.int64) < tf.cast(steps, tf.int64), True),
    ],
    ids=["int32", "and", "values", "int64"],
)
def test_the_host_waits_for_a_condition_that_the_gpu_computes(condition, waits):
    def run(values, steps):
        return tf.while_loop(
            lambda i, x: condition(i, x, steps), lambda i, x: (i + 1, tf.exp(x)), (tf.constant(0), values)
        )

    assert bool(counted(run, ROWS, STEPS).conditions) is waits


def test_the_host_need_not_wait_for_what_the_pass_before_the_last_one_has_computed():
    def run(values, steps):
        def body(i, go, x):
            with tf.device("CPU:0"):
                known = tf.reduce_all(x < 2)  # of what this pass was given
            return i + 1, known, tf.exp(x)

        def goes_on(i, go, x):
            with tf.device("CPU:0"):
                return (i < steps) & go

        with tf.device("CPU:0"):
            begin = tf.constant(0), tf.constant(True)
        return tf.while_loop(goes_on, body, (*begin, values))

    counts = counted(run, ROWS, STEPS)
    assert [one.size for one in counts.copied] == [4096]
    assert not counts.conditions


def test_what_is_kept_a_call_is_counted():
    called = tf.function(tf.exp, autograph=False, experimental_attributes={"_noinline": True})
    assert counted(lambda values: called(called(values)), ROWS).total.kernels == 2


def test_a_program_of_xla_is_one():
    compiled = tf.function(lambda x: tf.exp(x) * tf.sin(x), jit_compile=True, autograph=False)
    counts = counted(lambda values, steps: looped(compiled, values, steps), ROWS, STEPS)
    assert (counts.total.programs, counts.total.kernels, counts.total.moved) == (1, 0, 2 * 4096)
    assert list(counts.operations.values()) == [3]
    assert not counts.uncompiled


def test_what_xla_does_not_know_is_named():
    compiled = tf.function(lambda x: tf.exp(tf.math.special.expint(x)), jit_compile=True, autograph=False)
    assert counted(compiled, ROWS).uncompiled == {"Expint (float32)": 1}
