"""Several batches in one call of a function of one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def batchwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of one batch, or of several, which are computed as one.

    Args:
      function: of tensors (rows, ...), the last of them (rows,); gives tensors in any structure, and each row the same
        bits in a batch of any size.

    Returns:
      The function, which also takes and gives (batches, rows, ...).
    """

    def of_one_or_several(*arguments: tf.Tensor) -> Any:
        if arguments[-1].shape.rank == 1:
            return function(*arguments)
        count, rows = arguments[-1].shape
        made = function(*(tf.reshape(each, (count * rows, *each.shape[2:])) for each in arguments))
        return tf.nest.map_structure(lambda each: tf.reshape(each, (count, rows, *each.shape[1:])), made)

    return of_one_or_several
