"""TensorFlow operations, compiled at installation, that copy and augment data in memory.

Without a compiler, TensorFlow's own operations do the same.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
from typing import Any

from pipeline.lazily import tf

_LIBRARY = "pipeline.operations._operations"  # not a Python module: TensorFlow loads it


def is_compiled() -> bool:
    """Returns whether the operations can be used."""
    return _operations() is not None


def can_resize() -> bool:
    """Returns whether `resize` can be used.

    It repeats TensorFlow's arithmetic on x86-64. On other processors it may be compiled with fused multiply-add, which
    rounds once and gives other bytes.
    """
    return is_compiled() and platform.machine().lower() in ("x86_64", "amd64")


def gather_crops(
    lanes: tf.Tensor, rows: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height: int, width: int
) -> tf.Tensor:
    """Returns crops of images, with zeros where a crop extends beyond its image.

    Args:
      lanes: images, uint8 (n, lines, bytes of a line).
      rows: indices of the images to crop, int64 (k,).
      top, left: beginning of each crop, in lines and in bytes, int32 (k,). It may be outside of the image.
      height, width: size of the crops, in lines and in bytes.

    Returns:
      Crops, uint8 (k, height, width).

    Raises:
      tf.errors.InvalidArgumentError: `rows` has an index without an image.
    """
    crops: tf.Tensor = _operations().stepfeed_gather_crops(
        lanes, rows, top, left, tf.constant([height, width], tf.int32)
    )
    return tf.ensure_shape(crops, (rows.shape[0], height, width))


def augment(images: tf.Tensor, program: tf.Tensor, parameters: tf.Tensor, floats: bool) -> tf.Tensor:
    """Applies the passes of a program made by `pipeline.augmentation.passes` to images.

    Args:
      images: uint8 (rows, height, width, channels).
      program: int32 (n,).
      parameters: parameters of each image, int32 (rows, columns).
      floats: whether the program ends with floats.

    Returns:
      Images, uint8 or float32 (rows, height, width, channels), of the program's size.

    Raises:
      tf.errors.InvalidArgumentError: the program or its parameters do not fit the images.
    """
    made = _operations()
    operation = made.stepfeed_distort_to_floats if floats else made.stepfeed_distort
    augmented: tf.Tensor = operation(images, program, parameters)
    return augmented


def resize(image: tf.Tensor, part: tf.Tensor, size: tuple[int, int], mirrored: tf.Tensor | bool = False) -> tf.Tensor:
    """Resizes a part of an image, giving the same bytes as `pipeline.decode.images.resize`.

    Args:
      image: uint8 (h, w, channels).
      part: top, left, height and width of the part in pixels, the last two at least 1; int32 (4,).
      size: (height, width) of the result in pixels.
      mirrored: whether to mirror the result horizontally; bool scalar.

    Raises:
      tf.errors.InvalidArgumentError: the part is not inside the image, or a height or width is 0 or more than 524,288.
    """
    resized: tf.Tensor = _operations().stepfeed_resize(image, part, tf.constant(size, tf.int32), mirrored)
    return resized


def turned(image: tf.Tensor, part: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Makes a part of an image upright, giving the same bytes as `pipeline.decode.images.upright`.

    Args:
      image: image as stored, uint8 (h, w, channels).
      part: top, left, height and width of the part in pixels; int32 (4,).
      orientation: EXIF orientation, int32 scalar.

    Raises:
      tf.errors.InvalidArgumentError: the part is not inside the image, or the orientation is not 1 to 8.
    """
    return tf.ensure_shape(_operations().stepfeed_turn(image, part, orientation), (None, None, image.shape[2]))


def find_images(records: tf.Tensor, image: str = "image", label: str = "label") -> tf.Tensor:
    """Finds the images and labels in serialized `tf.train.Example`s without copying their bytes.

    Args:
      records: serialized Examples, string (rows,).
      image, label: names of the image and label features; the label is 0 if its name is empty.

    Returns:
      Begin and end of the image's bytes in the record, and the label; int64 (rows, 3). The begin is -1 if the record is
      unusual: a feature is missing or does not have one value, or the image or the label comes twice.
    """
    found = _operations().stepfeed_find_features(records, tf.constant([image, label]))
    return tf.ensure_shape(found, (records.shape[0], 3))


def part(strings: tf.Tensor, bounds: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
    """Returns a copy of a part of one string: string scalar.

    Args:
      strings: strings, string (rows,).
      bounds: begin and end of each string's part, int64 (rows, 2).
      row: index of the string, int64 scalar.

    Raises:
      tf.errors.InvalidArgumentError: there is no such row, or its part is not inside its string.
    """
    return tf.ensure_shape(_operations().stepfeed_part(strings, bounds, row), ())


def jpeg_sizes(strings: tf.Tensor, bounds: tf.Tensor) -> tf.Tensor:
    """Returns the height and width of JPEG files in pixels, from their headers; zeros for other bytes.

    Args:
      strings, bounds: files, each a part of a string, as in `part`.

    Returns:
      Sizes, int32 (rows, 2).

    Raises:
      tf.errors.InvalidArgumentError: a part does not lie in its string.
    """
    return tf.ensure_shape(_operations().stepfeed_jpeg_sizes(strings, bounds), (strings.shape[0], 2))


def copy_records(memory: tf.Tensor, bounds: tf.Tensor) -> tf.Tensor:
    """Copies parts of some memory into strings.

    Args:
      memory: bytes, uint8 of any shape.
      bounds: begin and end of each part, int64 (..., 2).

    Returns:
      Strings, string (...).

    Raises:
      tf.errors.InvalidArgumentError: a part is not inside the memory.
    """
    records: tf.Tensor = _operations().stepfeed_copy_records(memory, bounds)
    return tf.ensure_shape(records, bounds.shape[:-1])


@functools.cache
def _operations() -> Any:
    """Returns the module of the operations; None if they were not compiled, or do not match this TensorFlow."""
    library = importlib.util.find_spec(_LIBRARY)
    if library is None or not library.origin:
        return None
    try:
        found = tf.load_op_library(library.origin)
    except (tf.errors.OpError, OSError, RuntimeError):  # compiled for a different system or processor
        return None
    return found if hasattr(found, "stepfeed_turn") else None
