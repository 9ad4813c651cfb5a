import errno

import pytest
import tensorflow as tf

from pipeline.errors import DataError, RerunError
from trainer.cluster import failures

MESSAGE = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

Collective ops is aborted by: Error reported from /job:worker/task:1: unhealthy
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference__all_sum_147]"""
FULL = "/runs/ckpt-10_temp/part-00000-of-00001.data-00000-of-00001; No space left on device [Op:SaveV2]"


@pytest.mark.parametrize(
    ("kind", "message", "line"),
    [
        ("UnavailableError", MESSAGE, MESSAGE.splitlines()[5]),
        # What the input says of a record is quoted as it was, without escapes.
        ("InvalidArgumentError", r"assertion failed: [d\303\244: the record\'s]", "dä: the record's"),
        (
            "DataLossError",
            "{{function_node __wrapped__X}} corrupted record at 12 [Op:X]",
            "corrupted record at 12 [Op:X]",
        ),
        ("UnavailableError", "", "UnavailableError"),
    ],
)
def test_the_line_that_says_what_happened(kind, message, line):
    assert failures.first_line(getattr(tf.errors, kind)(None, None, message)) == line


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
        ("InternalError", FULL.replace("No space left on device", "Disk quota exceeded"), 3, DataError, "disk is full"),
        ("ResourceExhaustedError", FULL, 1, DataError, r"disk is full.*ckpt-10_temp((?!--global_batch_size).)*$"),
    ],
)
def test_tensorflows_errors_become_ours(kind, message, workers, error, facts):
    with pytest.raises(error, match=facts), failures.in_one_line(workers):
        raise getattr(tf.errors, kind)(None, None, message)


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


def test_our_errors_stay():
    with pytest.raises(RerunError), failures.in_one_line(1):
        raise RerunError("stopped")
    with pytest.raises(DataError, match="^as it was$"), failures.in_one_line(1):
        raise DataError("as it was")


def test_the_end_of_a_pipe_is_left_to_the_command():
    with pytest.raises(BrokenPipeError), failures.in_one_line(1):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
