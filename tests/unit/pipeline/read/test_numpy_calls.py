"""The input's errors as they come out of TensorFlow."""

import pytest
import tensorflow as tf

from pipeline.errors import DataError
from pipeline.read.numpy_calls import call_numpy, message_of_input

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
