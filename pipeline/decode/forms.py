"""The forms in which examples lie in a window, and how the rows of a batch are made of them.

A window is a dict of tensors with one row per record; a batch gathers some rows of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline.decode import user_parse
from pipeline.decode.images import ExampleParser, ImageDecoder

Columns = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a batch.

    Attributes:
      images: uint8, of which `Form.as_images` makes (rows, height, width, channels); or what the user's parser gave.
      labels: int64 (rows,); None from the user's parser.
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
        """Returns `Examples.images` as uint8 (rows, height, width, channels); XLA compiles it with the distortion."""
        return images


@dataclasses.dataclass(frozen=True)
class PixelRows(Form):
    """Columns `image` (n, pixels), `label`, and the features.

    Attributes:
      image_shape: (height, width, channels).
    """

    image_shape: tuple[int, int, int]

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor]) -> Examples:
        """See `Form.examples`."""
        del keys
        features = {name: column for name, column in columns.items() if name not in ("image", "label")}
        return Examples(columns["image"], columns["label"], features)

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        """See `Form.as_images`."""
        return tf.reshape(images, (-1, *self.image_shape))


@dataclasses.dataclass(frozen=True)
class Serialized(Form):
    """Column `record`: serialized `tf.train.Example`s, decoded anew for every batch."""

    parser: ExampleParser
    decoder: ImageDecoder

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor]) -> Examples:
        """See `Form.examples`."""
        images, labels, features = self.parser.parse(columns["record"])
        return Examples(self.decoder.decode(images, keys), labels, features)


@dataclasses.dataclass(frozen=True)
class UserParsed(Form):
    """Column `record`: bytes that the user's function parses, a batch at a time."""

    parse: Callable[[tf.Tensor], Any]

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor]) -> Examples:
        """See `Form.examples`."""
        del keys
        return Examples(user_parse.parsed(self.parse, columns["record"]), None, {})
