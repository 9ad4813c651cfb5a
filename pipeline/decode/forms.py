"""From the rows of a window to the examples of a batch: parsed, decoded and resized, or parsed by the user's function.

A window is a dict of tensors with one row per record; a batch gathers some rows of each tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from pipeline.decode.annotation import Annotations
from pipeline.decode.images import ImageDecoder, InMemory, InStrings, Stretched
from pipeline.decode.records import ExampleParser
from pipeline.decode.user import Supervised, parsed
from pipeline.graph_calls import UserFunction

Columns = dict[str, tf.Tensor]
Turns: TypeAlias = Any  # EXIF orientations of all records in a selection, int8 (records,): a tensor or an array
PLACES, SIZES = "places", "sizes"  # columns of `Kept`: the bounds and sizes of `InMemory`


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a batch.

    Attributes:
      images: uint8 images, which `Form.as_images` shapes to (rows, height, width, channels); or x of `Supervised`; or
        another result of the user's parser.
      labels: int64 (rows,), or as described by the manifest's feature; or y of `Supervised`; None if the user's parser
        returned something else.
      features: other features, by name.
      sample_weight: sample weights of `Supervised`; None without them.
    """

    images: Any
    labels: tf.Tensor | None
    features: Columns
    sample_weight: Any = None


class Form:
    """How columns become examples."""

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        """Returns the examples of gathered columns.

        Args:
          columns: columns with a row per record.
          keys: function that returns a key for random numbers per row, uint64 (rows,).
          ids: record ids of the rows, int64 (rows,).
        """
        raise NotImplementedError

    @property
    def augmented(self) -> Form:
        """Form that decodes the same parts of images as in training, for augmented copies in evaluations."""
        return self

    @property
    def draws(self) -> bool:
        """Whether examples depend on their keys because parts of images are drawn."""
        return False

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `Examples.images` as uint8 (..., height, width, channels); XLA compiles it with the augmentation."""
        return images


def turns_of(turns: Turns | None, ids: tf.Tensor) -> tf.Tensor | None:
    """Returns the EXIF orientations by which to rotate records, int32 (rows,); None if no record is rotated.

    Args:
      turns: EXIF orientations of all records in the selection.
      ids: ids of the records; the id of a copy is larger by a multiple of the number of records.
    """
    return None if turns is None else tf.cast(tf.gather(turns, ids % len(turns)), tf.int32)


@dataclasses.dataclass(frozen=True)
class Decoded(Form):
    """A form that decodes images for every batch.

    Attributes:
      decoder: decoder of a batch's images.
      turns: EXIF orientations of all records in the selection; None if no image is rotated.
      augmenting: decoder of augmented copies in evaluations; None to use `decoder`.
    """

    decoder: ImageDecoder
    turns: Turns | None = dataclasses.field(default=None, kw_only=True)
    augmenting: ImageDecoder | None = dataclasses.field(default=None, kw_only=True)

    @property
    def augmented(self) -> Form:
        return dataclasses.replace(self, decoder=self.augmenting or self.decoder)

    @property
    def draws(self) -> bool:
        return self.decoder.crop is not None and not isinstance(self.decoder.crop, Stretched)


@dataclasses.dataclass(frozen=True)
class PixelRows(Form):
    """Columns `image` (n, values of an image), `label`, and the features.

    Attributes:
      image_shape: (height, width, channels).
    """

    image_shape: tuple[int, int, int]

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        features = {name: column for name, column in columns.items() if name not in ("image", "label")}
        return Examples(columns["image"], columns["label"], features)

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        return tf.reshape(images, (*(-1 if n is None else n for n in images.shape[:-1]), *self.image_shape))


@dataclasses.dataclass(frozen=True)
class RowNumbers(PixelRows):
    """Columns of `PixelRows`, with row numbers in the place of images, int64 (n,): a device has the images."""

    image_shape: tuple[int, int, int] = (1, 1, 1)

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        return images


@dataclasses.dataclass(frozen=True)
class Serialized(Decoded):
    """Column `record`: serialized `tf.train.Example`s.

    Attributes:
      parser: parser that finds images, labels and features in them.
      annotations: masks, boxes and points to feed; None to feed none.
    """

    parser: ExampleParser
    annotations: Annotations | None = dataclasses.field(default=None, kw_only=True)

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        if self.decoder.in_place:
            encoded, labels, features = self.parser.find(columns["record"])
        else:
            images, labels, features = self.parser.parse(columns["record"])
            encoded = InStrings(images)
        turns = turns_of(self.turns, ids)
        if self.annotations is not None:
            features = {**features, **self.annotations.decoded(columns["record"], encoded, keys, turns)}
        return Examples(self.decoder.decode(encoded, keys, turns), labels, features)


@dataclasses.dataclass(frozen=True)
class Kept(Decoded):
    """Columns `PLACES`, `SIZES` and `label`: images that stay encoded in memory; every batch decodes some of them.

    Their records are not copied for a batch, so that no file is in memory twice.

    Attributes:
      memory: memory that the records were read into, uint8 (1, bytes).
    """

    memory: tf.Tensor

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        images = InMemory(self.memory, columns[PLACES], columns[SIZES])
        return Examples(self.decoder.decode(images, keys, turns_of(self.turns, ids)), columns["label"], {})


@dataclasses.dataclass(frozen=True)
class UserParsed(Form):
    """Column `record`: bytes that the user's function parses one batch at a time."""

    parse: UserFunction
    training: bool

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        given = parsed(self.parse, columns["record"], keys, self.training)
        found = Supervised.of(given)
        if found is None:
            return Examples(given, None, {})
        # Kept apart: Keras would mistake ((features, labels), weights) for inputs and labels, and train on the weights.
        return Examples(found.x, found.y, {}, found.sample_weight)
