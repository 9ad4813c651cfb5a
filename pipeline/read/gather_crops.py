"""Takes crops of images in memory, by an operation that was compiled when the package was installed.

TensorFlow's own gather takes whole images, whose crops XLA then copies byte by byte: as long as all the rest of
`cifar10_tutorial`. Where there is no compiled operation, that is what happens, and the images are the same to the byte.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import tensorflow as tf

_LIBRARY = "pipeline.read._gather_crops"  # not a module: TensorFlow loads it


def is_compiled() -> bool:
    """Returns whether there is the operation."""
    return _operation() is not None


def gather_crops(
    lanes: tf.Tensor, rows: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height: int, width: int
) -> tf.Tensor:
    """Returns a crop of each of some images; what lies outside of its image is zero.

    Args:
      lanes: the images, uint8 (n, lines, bytes of a line).
      rows: which of them, int64 (k,).
      top, left: int32 (k,): where the crop begins, in lines and in bytes; it may begin before the image.
      height, width: of the crops, in lines and in bytes.

    Returns:
      uint8 (k, height, width).

    Raises:
      tf.errors.InvalidArgumentError: rows that there are not.
    """
    operation = _operation()
    assert operation is not None
    crops: tf.Tensor = operation(lanes, rows, top, left, tf.constant([height, width], tf.int32))
    return tf.ensure_shape(crops, (rows.shape[0], height, width))


@functools.cache
def _operation() -> Any:
    """Returns the operation; None: it was not compiled, or this TensorFlow lacks what it needs."""
    library = importlib.util.find_spec(_LIBRARY)
    if library is None or not library.origin:
        return None
    try:
        return getattr(tf.load_op_library(library.origin), "stepfeed_gather_crops", None)
    except (tf.errors.OpError, OSError, RuntimeError):  # of another system, or another processor
        return None
