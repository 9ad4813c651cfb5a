import errno

import pytest
import tensorflow as tf

from pipeline.errors import DataError, RerunError, UsageError
from trainer import runtime
from trainer.cluster import failures

MESSAGE = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

Collective ops is aborted by: Error reported from /job:worker/task:1: unhealthy
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference__all_sum_147]"""
STALE = """Collective ops is aborted by: Error reported from /job:worker/task:0: The following tasks are unhealthy:
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error.
The error could be from a previous operation. Restart your program to reset. [Op:CollectiveReduceV2]"""
UNHEALTHY = "Error reported from /job:worker/task:0: The following tasks are unhealthy"
CANCELLED_FIRST = """Graph execution error:

From /job:worker/replica:0/task:1:
2 root error(s) found.
  (0) CANCELLED:  Function was cancelled before it was started
  (1) INVALID_ARGUMENT:  \n\t [[{{node cond/Check}}]]
  (2) RESOURCE_EXHAUSTED:  {{function_node __inference_step_7}} OOM when allocating tensor with shape[9,9]
\t [[{{node cond/Check}}]]
0 successful operations.
1 derived errors ignored. [Op:__inference_step_72]"""
FULL = "/runs/ckpt-10_temp/part-00000-of-00001.data-00000-of-00001; No space left on device [Op:SaveV2]"


@pytest.mark.parametrize(
    ("kind", "message", "line"),
    [
        ("UnavailableError", MESSAGE, "Error reported from /job:worker/task:1: unhealthy"),
        ("UnavailableError", STALE, f"{UNHEALTHY}: /job:worker/replica:0/task:1"),  # with the name of the task
        ("UnavailableError", STALE.splitlines()[0], UNHEALTHY),
        # What the input says of a record is quoted as it was, without escapes.
        ("InvalidArgumentError", r"assertion failed: [d\303\244: the record\'s]", "dä: the record's"),
        (
            "DataLossError",
            "{{function_node __wrapped__X}} corrupted record at 12 [Op:X]",
            "corrupted record at 12",
        ),
        ("CancelledError", CANCELLED_FIRST, "OOM when allocating tensor with shape[9,9]"),
        ("CancelledError", CANCELLED_FIRST.partition("  (1)")[0], "Function was cancelled before it was started"),
        ("UnknownError", "2 root error(s) found.\n  (0) UNKNOWN:  \n  (1) INTERNAL:  \n", "UnknownError"),
        ("UnavailableError", "", "UnavailableError"),
    ],
)
def test_the_line_that_says_what_happened(kind, message, line):
    assert runtime.first_line(getattr(tf.errors, kind)(None, None, message)) == line


@pytest.mark.parametrize(
    ("kind", "message", "workers", "error", "facts"),
    [
        *(
            (kind, "Socket closed", 3, RerunError, r"lost .*Socket closed.* 3 ")
            for kind in ("UnavailableError", "DeadlineExceededError", "CancelledError", "AbortedError")
        ),
        ("UnavailableError", "Socket closed", 1, DataError, "Socket closed"),  # alone, there is no worker to lose
        ("DataLossError", "corrupted record", 3, DataError, "corrupted record"),
        ("ResourceExhaustedError", "OOM when allocating tensor", 1, DataError, "OOM.*--global_batch_size"),
        ("CancelledError", CANCELLED_FIRST, 3, DataError, "OOM.*--global_batch_size"),  # not a lost worker
        ("InternalError", FULL.replace("No space left on device", "Disk quota exceeded"), 3, DataError, "disk is full"),
        ("ResourceExhaustedError", FULL, 1, DataError, r"disk is full.*ckpt-10_temp((?!--global_batch_size).)*$"),
    ],
)
def test_tensorflows_errors_become_ours(kind, message, workers, error, facts):
    with pytest.raises(error, match=facts), failures.in_one_line(workers):
        raise getattr(tf.errors, kind)(None, None, message)


def fails_in_python(rows):
    raise ValueError("no such class: 7\nin two lines")


@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize("only", [None, 0, 1])
@pytest.mark.parametrize(
    ("fails", "line"),
    [
        (lambda x: tf.debugging.check_numerics(x / 0.0, "layer 3"), "layer 3 : Tensor had Inf values"),
        (lambda x: tf.numpy_function(fails_in_python, [x], tf.float32), "ValueError: no such class: 7"),
        (
            lambda x: tf.debugging.Assert(tf.reduce_all(x < 1), ["labels must be below 1, they are", x]) or x,
            "labels must be below 1, they are 1 2",
        ),
    ],
)
@pytest.mark.quick(3)
def test_what_a_step_of_two_replicas_raises(fails, line, only, in_a_loop):
    """Both fail, in any order; or one, and the other is cancelled."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    rows = tf.constant([1.0, 2.0])

    def replica(number):
        def some():
            fails(rows)
            return tf.constant(0.0)

        return some() if only is None else tf.cond(tf.equal(number, only), some, lambda: tf.constant(0.0))

    @tf.function(autograph=False)
    def loop(numbers):
        return tf.while_loop(lambda i: i < 3, lambda i: (strategy.run(replica, (numbers,)), i + 1)[1:], [0])

    @tf.function(autograph=False)
    def step(numbers):
        return strategy.experimental_local_results(strategy.run(replica, (numbers,)))

    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        (loop if in_a_loop else step)(numbers)
    assert runtime.first_line(caught.value) == line
    assert runtime.is_own(caught.value)


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/tmp/x"), "^/tmp/x: No such file or directory$"),
        (OSError(errno.ENOSPC, "No space left on device", "/logs/events"), "disk is full .*/logs/events"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk is full .*quota"),
    ],
)
def test_the_systems_errors_become_ours(error, facts):
    with pytest.raises(DataError, match=facts), failures.in_one_line(1):
        raise error


OTHER_SHAPE = """Collective ops is aborted by: Shape mismatch in the collective instance 100. Op at device \
/job:worker/replica:0/task:1/device:CPU:0 expected shape [144,9] but another member in the group expected shape \
[144,3]. This is likely due to different input shapes at different members of the collective op.
The error could be from a previous operation. Restart your program to reset. [Op:CollectiveBcastSendV2]"""


def test_models_of_other_shapes_are_no_fault_of_the_users_function():
    error = tf.errors.InvalidArgumentError(None, None, OTHER_SHAPE)
    for caught in (lambda: runtime.raise_if_of_others(error), lambda: in_one_line(error)):
        with pytest.raises(UsageError, match=r"\[144,9\] .*\[144,3\] "):
            caught()


def in_one_line(error):
    with failures.in_one_line(2):
        raise error


def test_our_errors_stay():
    with pytest.raises(RerunError), failures.in_one_line(1):
        raise RerunError("stopped")
    with pytest.raises(DataError, match="^as it was$"), failures.in_one_line(1):
        raise DataError("as it was")


def test_the_end_of_a_pipe_is_left_to_the_command():
    with pytest.raises(BrokenPipeError), failures.in_one_line(1):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
