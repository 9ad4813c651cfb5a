"""Operations of TensorFlow that are compiled when the package is installed: they copy and augment what is in memory.

Where there is no compiler, TensorFlow's own operations do the same.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
from typing import Any

from pipeline.lazily import tf

_LIBRARY = "pipeline.operations._operations"  # not a module of Python; TensorFlow loads it


def is_compiled() -> bool:
    """Returns whether the operations can be used."""
    return _operations() is not None


def can_resize() -> bool:
    """Returns whether `resize` can be used.

    It repeats what TensorFlow is compiled to on x86-64. For other processors it may be compiled to round a product and
    a sum once, and then gives other bytes.
    """
    return is_compiled() and platform.machine().lower() in ("x86_64", "amd64")


def gather_crops(
    lanes: tf.Tensor, rows: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height: int, width: int
) -> tf.Tensor:
    """Returns a crop of each of some images, with zeros where it reaches beyond its image.

    Args:
      lanes: the images, uint8 (n, lines, bytes of a line).
      rows: numbers of the images to crop, int64 (k,).
      top, left: where each crop begins, in lines and in bytes; int32 (k,). It may begin before the image.
      height, width: of the crops, in lines and in bytes.

    Returns:
      uint8 (k, height, width).

    Raises:
      tf.errors.InvalidArgumentError: `rows` has a number that is not one of an image.
    """
    crops: tf.Tensor = _operations().stepfeed_gather_crops(
        lanes, rows, top, left, tf.constant([height, width], tf.int32)
    )
    return tf.ensure_shape(crops, (rows.shape[0], height, width))


def augment(images: tf.Tensor, program: tf.Tensor, parameters: tf.Tensor, floats: bool) -> tf.Tensor:
    """Returns images after the passes of a program, which `pipeline.augmentation.passes` makes.

    Args:
      images: uint8 (rows, height, width, channels).
      program: int32 (n,).
      parameters: of each image, int32 (rows, columns).
      floats: whether the program ends with floats.

    Returns:
      uint8 or float32 (rows, height, width, channels), of the program's size.

    Raises:
      tf.errors.InvalidArgumentError: a program or parameters that do not fit the images.
    """
    made = _operations()
    operation = made.stepfeed_distort_to_floats if floats else made.stepfeed_distort
    augmented: tf.Tensor = operation(images, program, parameters)
    return augmented


def resize(image: tf.Tensor, part: tf.Tensor, size: tuple[int, int], mirrored: tf.Tensor | bool = False) -> tf.Tensor:
    """Returns a part of an image resized: the same bytes as `pipeline.decode.images.resize` of it.

    Args:
      image: uint8 (h, w, channels).
      part: its top, left, height and width, pixels, the last two at least 1; int32 (4,).
      size: (height, width) of the result, pixels.
      mirrored: whether to mirror it from left to right, after resizing; bool scalar.

    Raises:
      tf.errors.InvalidArgumentError: a part that is not in the image, or a height or width of 0, or more than 524,288.
    """
    resized: tf.Tensor = _operations().stepfeed_resize(image, part, tf.constant(size, tf.int32), mirrored)
    return resized


def turned(image: tf.Tensor, part: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Returns a part of an image turned upright: the same bytes as `pipeline.decode.images.upright` of it.

    Args:
      image: image as it is stored, uint8 (h, w, channels).
      part: its top, left, height and width, pixels; int32 (4,).
      orientation: EXIF's, int32 scalar.

    Raises:
      tf.errors.InvalidArgumentError: a part that is not in the image, or no orientation of 1 to 8.
    """
    return tf.ensure_shape(_operations().stepfeed_turn(image, part, orientation), (None, None, image.shape[2]))


def find_images(records: tf.Tensor, image: str = "image", label: str = "label") -> tf.Tensor:
    """Finds the images and labels of serialized `tf.train.Example`s, without a copy of their bytes.

    Args:
      records: string (rows,).
      image, label: names of the features that hold them; without a name of the label it is 0.

    Returns:
      int64 (rows, 3): where the bytes of the image begin and end in the record, and the label. The first is -1 where
      the record is not as usual: a feature is missing, has not one value, or the image or the label comes twice.
    """
    found = _operations().stepfeed_find_features(records, tf.constant([image, label]))
    return tf.ensure_shape(found, (records.shape[0], 3))


def part(strings: tf.Tensor, bounds: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
    """Returns a copy of a part of one of some strings: string scalar.

    Args:
      strings: string (rows,).
      bounds: where the part of each begins and ends; int64 (rows, 2).
      row: of the string, int64 scalar.

    Raises:
      tf.errors.InvalidArgumentError: there is no such row, or its part does not lie in its string.
    """
    return tf.ensure_shape(_operations().stepfeed_part(strings, bounds, row), ())


def jpeg_sizes(strings: tf.Tensor, bounds: tf.Tensor) -> tf.Tensor:
    """Returns the height and width of JPEG files, in pixels, from their headers; of other bytes, zeros.

    Args:
      strings, bounds: each file is a part of a string, as for `part`.

    Returns:
      int32 (rows, 2).

    Raises:
      tf.errors.InvalidArgumentError: a part does not lie in its string.
    """
    return tf.ensure_shape(_operations().stepfeed_jpeg_sizes(strings, bounds), (strings.shape[0], 2))


def copy_records(memory: tf.Tensor, bounds: tf.Tensor) -> tf.Tensor:
    """Returns parts of some memory as strings of their own.

    Args:
      memory: uint8, of any shape.
      bounds: where each part begins and ends; int64 (..., 2).

    Returns:
      string (...).

    Raises:
      tf.errors.InvalidArgumentError: a part does not lie in the memory.
    """
    records: tf.Tensor = _operations().stepfeed_copy_records(memory, bounds)
    return tf.ensure_shape(records, bounds.shape[:-1])


@functools.cache
def _operations() -> Any:
    """Returns the module of the operations; None: they were not compiled, or do not fit this TensorFlow."""
    library = importlib.util.find_spec(_LIBRARY)
    if library is None or not library.origin:
        return None
    try:
        found = tf.load_op_library(library.origin)
    except (tf.errors.OpError, OSError, RuntimeError):  # compiled for another system or processor
        return None
    return found if hasattr(found, "stepfeed_turn") else None
