"""The input's errors as they come out of TensorFlow."""

import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from pipeline import graph_calls
from pipeline.errors import DataError
from pipeline.graph_calls import call_numpy, error_of_input, message_of_input

NAMES = ["train-00001.tfrecord, record 7: the record's CRC is wrong", 'says "no"', "dä/日本", "[x] [y]", "a\\b\n\t"]


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("in_a_dataset", [False, True])
def test_the_words_of_the_input_are_said_as_they_were(text, in_a_dataset):
    """TensorFlow escapes them as in C and wraps them in where in the graph it was."""

    def refuse(_=0):
        with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [tf.constant(text)])]):
            return tf.constant(0)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(tf.data.Dataset.range(1).map(refuse)) if in_a_dataset else tf.function(refuse)()
    assert message_of_input(caught.value.message) == text


def test_quotes_of_the_input_are_not_escaped():
    text = "the file 'a', \"b\": the record's CRC is wrong"

    def fails(_):
        raise DataError(text)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(tf.data.Dataset.range(1).map(lambda n: call_numpy(fails, [n], [tf.int64])[0]))
    assert "the file ’a’, ”b”: the record’s CRC is wrong" in caught.value.message  # noqa: RUF001
    assert "\\" not in caught.value.message
    assert message_of_input(caught.value.message) == text


def test_other_errors_are_not_the_inputs():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.reshape(tf.zeros([3]), [2])
    assert message_of_input(caught.value.message) is None


def said(text):
    return f"assertion failed: [{text}]\n\t [[{{{{node Assert}}}}]]"


def test_the_last_sixteen_errors_are_found_again_with_their_fields(monkeypatch):
    monkeypatch.setattr(graph_calls, "_errors", {})
    for number in range(20):
        graph_calls._kept(DataError("is corrupt", path="a", record=number, advice="get it again"))
    found = [error_of_input(said(f"a, record {number}: is corrupt; get it again")) for number in range(20)]
    assert [error.record for error in found] == [None] * 4 + [*range(4, 20)]
    assert {error.advice for error in found[4:]} == {"get it again"}
    assert len({str(error) for error in found}) == 20  # of the first four the sentence is left
    assert error_of_input("Out of range: End of sequence") is None


def test_an_error_comes_with_values_of_each_type_beside_it():
    """TensorFlow wants as many results as without an error."""

    def fails(number):
        raise MemoryError(f"Unable to allocate {number} GiB")

    words = r"not enough memory for a window \(Unable to allocate 7 GiB\): give a smaller shuffle_bytes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        call_numpy(fails, [tf.constant(7)], [tf.int64, tf.string, tf.uint8])
    doubled, text = call_numpy(lambda n: (n * 2, np.array(b"x", object)), [tf.constant(7)], [tf.int32, tf.string])
    assert (int(doubled), text.numpy()) == (14, b"x")


def test_no_call_begins_once_the_interpreter_exits_and_those_that_have_begun_end(monkeypatch):
    monkeypatch.setattr(graph_calls, "_state", {"ends": False, "last": 0.0})
    monkeypatch.setattr(graph_calls, "_calls", set())
    begun, ended = threading.Event(), []

    def slow():
        with graph_calls._reading() as may_begin:
            begun.set()
            time.sleep(0.2)
            ended.append(may_begin)

    thread = threading.Thread(target=slow)
    thread.start()
    assert begun.wait(60)
    graph_calls._end()
    assert ended == [True]
    thread.join()
    with graph_calls._reading() as may_begin:
        assert not may_begin
    with pytest.raises(tf.errors.InvalidArgumentError, match="the interpreter is exiting"):
        call_numpy(lambda n: (n,), [tf.constant(7)], [tf.int32])


def test_an_exit_without_a_call_does_not_wait(monkeypatch):
    monkeypatch.setattr(graph_calls, "_state", {"ends": False, "last": 0.0})
    monkeypatch.setattr(graph_calls, "_calls", set())
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("waits"))
    monkeypatch.setattr(graph_calls, "time", clock)
    graph_calls._end()
