import pytest
import tensorflow as tf

from pipeline.errors import DataError, RerunError
from trainer import failures

MESSAGE = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

Collective ops is aborted by: Error reported from /job:worker/task:1: unhealthy
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference__all_sum_147]"""


def test_the_line_that_says_what_happened():
    error = tf.errors.UnavailableError(None, None, MESSAGE)
    expected = "Collective ops is aborted by: Error reported from /job:worker/task:1: unhealthy"
    assert failures.first_line(error) == expected


def test_the_words_of_the_input_are_said_as_they_were():
    message = r"assertion failed: [d\303\244: the record\'s]" + "\n\t [[{{node Assert}}]] [Op:IteratorGetNext]"
    error = tf.errors.InvalidArgumentError(None, None, message)
    assert failures.first_line(error) == "dä: the record's"


def test_names_of_nodes_are_left_out():
    error = tf.errors.DataLossError(None, None, "{{function_node __wrapped__X}} corrupted record at 12 [Op:X]")
    assert failures.first_line(error) == "corrupted record at 12 [Op:X]"


def test_an_error_without_words():
    assert failures.first_line(tf.errors.UnavailableError(None, None, "")) == "UnavailableError"


@pytest.mark.parametrize("kind", ["UnavailableError", "DeadlineExceededError", "CancelledError", "AbortedError"])
def test_a_lost_worker_asks_for_a_rerun_of_all(kind):
    error = getattr(tf.errors, kind)(None, None, "Socket closed")
    words = r"lost another worker \(Socket closed\); start all 3 again"
    with pytest.raises(RerunError, match=words), failures.in_one_line(num_workers=3):
        raise error
    assert failures.translate(error, 3).exit_code == 75


def test_alone_there_is_no_worker_to_lose():
    with pytest.raises(DataError, match="Socket closed"), failures.in_one_line(num_workers=1):
        raise tf.errors.UnavailableError(None, None, "Socket closed")


def test_bad_data_is_bad_data_in_a_cluster_too():
    with pytest.raises(DataError, match="corrupted record"), failures.in_one_line(num_workers=3):
        raise tf.errors.DataLossError(None, None, "corrupted record")


def test_out_of_memory_says_what_to_do():
    with pytest.raises(DataError, match="smaller --global_batch_size"), failures.in_one_line(num_workers=1):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


def test_a_full_disk_says_so_and_not_to_shrink_the_batch():
    message = "/runs/ckpt-10_temp/part-00000-of-00001.data-00000-of-00001; No space left on device [Op:SaveV2]"
    error = str(failures.translate(tf.errors.ResourceExhaustedError(None, None, message), num_workers=1))
    assert error.startswith("the disk is full (/runs/ckpt-10_temp/")
    assert error.endswith("make room; the same command goes on from the last save")
    assert "--global_batch_size" not in error
