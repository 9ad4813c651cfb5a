"""The forms in which examples lie in a window, and how the rows of a batch are made of them.

A window is a dict of tensors with one row per record; a batch gathers some rows of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline import user_function
from pipeline.decode.images import ExampleParser, ImageDecoder
from pipeline.errors import UsageError

Columns = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a batch.

    Attributes:
      images: uint8, of which `Form.as_images` makes (rows, height, width, channels); or what the user's parser gave,
        of a pair its first part.
      labels: int64 (rows,); or the second part of the pair that the user's parser gave, None if it gave no pair.
      features: further ones, by name.
    """

    images: Any
    labels: tf.Tensor | None
    features: Columns


class Form:
    """How columns become examples."""

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor]) -> Examples:
        """Returns the examples of gathered columns; `keys` gives uint64 (rows,), each row's key for random numbers."""
        raise NotImplementedError

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `Examples.images` as uint8 (..., height, width, channels); XLA compiles it with the distortion."""
        return images


@dataclasses.dataclass(frozen=True)
class PixelRows(Form):
    """Columns `image` (n, pixels), `label`, and the features.

    Attributes:
      image_shape: (height, width, channels).
    """

    image_shape: tuple[int, int, int]

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor]) -> Examples:
        del keys
        features = {name: column for name, column in columns.items() if name not in ("image", "label")}
        return Examples(columns["image"], columns["label"], features)

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        return tf.reshape(images, (*(-1 if n is None else n for n in images.shape[:-1]), *self.image_shape))


@dataclasses.dataclass(frozen=True)
class Serialized(Form):
    """Column `record`: serialized `tf.train.Example`s, decoded for every batch."""

    parser: ExampleParser
    decoder: ImageDecoder

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor]) -> Examples:
        images, labels, features = self.parser.parse(columns["record"])
        return Examples(self.decoder.decode(images, keys), labels, features)


@dataclasses.dataclass(frozen=True)
class UserParsed(Form):
    """Column `record`: bytes that the user's function parses, a batch at a time."""

    parse: Callable[[tf.Tensor], Any]

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor]) -> Examples:
        del keys
        given = parsed(self.parse, columns["record"])
        if not is_pair(given):
            return Examples(given, None, {})
        # Apart: Keras would take ((features, labels), weights) for inputs and labels, and train on the weights.
        features, labels = given
        return Examples(features, labels, {})


def is_pair(given: Any) -> bool:
    """Whether a parser gave (features, labels), which become components of their own: (x, y, weights)."""
    return isinstance(given, tuple | list) and len(given) == 2


def parsed(parse: Callable[[tf.Tensor], Any], records: tf.Tensor) -> Any:
    """Returns what `parse` gives: tensors, ragged and sparse ones, in any structure, one row per record.

    Args:
      parse: the user's function.
      records: serialized, string (rows,), the number of rows static.

    Raises:
      UsageError: it fails, or returns something else. Numbers of rows that are not static are checked in each batch.
    """
    given = user_function.call("parse", parse, records)
    given = tuple(given) if isinstance(given, list) else given  # tf.data would stack a list to one tensor
    leaves = tf.nest.flatten(given)
    if not leaves:
        raise _wrong(given, records)
    return tf.nest.pack_sequence_as(given, [_with_rows(leaf, given, records) for leaf in leaves])


def _with_rows(leaf: Any, given: Any, records: tf.Tensor) -> Any:
    rows = records.shape[0]
    if leaf is None:
        raise _wrong(given, records)
    if not isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        leaf = tf.convert_to_tensor(leaf)
    if leaf.shape.rank == 0 or (leaf.shape.rank and leaf.shape[0] not in (None, rows)):
        raise _wrong(given, records)
    if leaf.shape.rank and leaf.shape[0] == rows:
        return leaf
    text = tf.strings.format(f"parse: the function returned {{}} rows for {rows} records", _num_rows(leaf))
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(_num_rows(leaf), rows), [text])]):
        checked = tf.nest.map_structure(tf.identity, leaf, expand_composites=True)
    if isinstance(checked, tf.Tensor) and leaf.shape.rank:
        checked.set_shape([rows, *leaf.shape[1:]])
    return checked


def _num_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    shape = leaf.dense_shape if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf, tf.int64)
    return shape[0]


def _wrong(given: Any, records: tf.Tensor) -> UsageError:
    text = tf.nest.map_structure(lambda leaf: str(getattr(leaf, "shape", leaf)), given)
    return UsageError(
        f"parse: the function must return tensors of {records.shape[0]} rows, one per record, in any structure; "
        f"their shapes are {text}"
    )
