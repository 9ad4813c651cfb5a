"""The work of a part: taking elements of a dataset, decoding records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from pipeline.decode.forms import Form
from pipeline.errors import DataError, root_cause
from pipeline.read.numpy_calls import message_of_input

_DECODED_TOGETHER = 256  # as `decoded_split` does


def decoding(form: Form, records: tf.Tensor) -> Callable[[int], int]:
    """Returns a function that decodes images as a split that is kept is decoded, and returns how many.

    Args:
      form: of the records.
      records: serialized, string (n,); each call decodes the next 256 of them, so many times.
    """
    count = min(_DECODED_TOGETHER, int(records.shape[0]))

    @tf.function(autograph=False)
    def decode(part: tf.Tensor) -> Any:
        examples = form.examples({"record": part}, lambda: tf.zeros(tf.shape(part), tf.uint64))
        return examples.images, examples.labels, examples.features

    def take(times: int) -> int:
        for i in range(times):
            first = i * count % (int(records.shape[0]) - count + 1)
            decode(records[first : first + count])
        return times * count

    return take


def taking(batches: Any, rows_of: Callable[[Any], Any]) -> Callable[[int], int]:
    """Returns a function that takes so many elements, in one `tf.function` as the trainer does, and returns their rows.

    Args:
      batches: a dataset, of a strategy or not; of endless length.
      rows_of: returns the rows of an element, an int or an int64 scalar.
    """
    iterator = iter(batches)

    @tf.function(autograph=False)
    def advance(elements: Iterator[Any], count: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            element = next(elements)
            with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
                return done + 1, rows + rows_of(element)

        zero = tf.constant(0, tf.int64)
        return tf.while_loop(lambda done, _: done < count, body, (zero, zero), parallel_iterations=1)[1]

    def take(count: int) -> int:
        return int(advance(iterator, tf.constant(count, tf.int64)))

    return take


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """Context that reads the input.

    Raises:
      DataError: a shard is missing, changed or corrupt, or a function of the user failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        said = message_of_input(error.message) or root_cause(error.message)[1]
        raise DataError(said or type(error).__name__) from None
