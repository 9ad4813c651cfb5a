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
    assert not counts.waits


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
def test_a_step_waits_for_a_condition_that_the_gpu_computes(condition, waits):
    def run(values, steps):
        return tf.while_loop(
            lambda i, x: condition(i, x, steps), lambda i, x: (i + 1, tf.exp(x)), (tf.constant(0), values)
        )

    assert bool(counted(run, ROWS, STEPS).waits) is waits


@pytest.mark.parametrize("of_pass_before", [True, False])
def test_a_step_need_not_wait_for_what_the_step_before_the_last_one_has_computed(of_pass_before):
    """The condition of the next pass needs a number from the GPU: of this pass, or of the one before."""

    def run(values, steps):
        def body(i, most, go, x):
            after = tf.reduce_all(tf.exp(x) < 2)
            return i + 1, most * tf.cast(go if of_pass_before else after, tf.int32), after, tf.exp(x)

        begin = tf.constant(0), steps, tf.constant(True), values
        return tf.while_loop(lambda i, most, *_: i < most, body, begin, parallel_iterations=1)

    counts = counted(run, ROWS, STEPS)
    assert [one.size for one in counts.copied] == [4]
    assert bool(counts.waits) is not of_pass_before


@pytest.mark.parametrize("counter", ["CPU:0", "GPU:0"])
def test_a_pass_ends_on_the_host_when_its_side_effects_have_ended_on_the_gpu(counter):
    with gpu_graph.virtual_gpu():
        variable = tf.Variable(tf.zeros([1024]))

    def run(values, steps):
        def body(i):
            variable.assign_add(values)
            with tf.device(counter):
                return i + 1

        def goes_on(i):
            with tf.device(counter):
                return i < steps

        with tf.device(counter):
            begin = tf.constant(0)
        return tf.while_loop(goes_on, body, [begin], parallel_iterations=1)

    waits = counted(run, ROWS, STEPS).waits
    assert bool(waits) is (counter == "CPU:0")
    assert all("next_iteration" in name or "cond" in name or "input" in name for name in waits)


@pytest.mark.parametrize("used", [True, False])
def test_what_a_step_takes_from_the_host_comes_after_the_step_before(used):
    def run(values, steps):
        def body(i, seconds, x):
            with tf.device("CPU:0"):
                seconds = seconds + tf.timestamp()
                now = tf.cast(seconds, tf.float32)
            return i + 1, seconds, tf.exp(x) + (now if used else 1.0)

        with tf.device("CPU:0"):
            begin = tf.constant(0.0, tf.float64)
        return tf.while_loop(lambda i, *_: i < steps, body, (tf.constant(0), begin, values), parallel_iterations=1)

    assert bool(counted(run, ROWS, STEPS).waits) is used


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
