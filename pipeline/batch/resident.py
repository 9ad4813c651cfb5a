"""A whole split in memory: images are decoded once, and batches take whole images or crops."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline import operations
from pipeline.augmentation import kernels
from pipeline.augmentation.composed import crop_first_of, cropping_of, of_crops
from pipeline.augmentation.geometry import CropFirst
from pipeline.batch.batches import Batches
from pipeline.decode.forms import PLACES, SIZES, Form, Kept, PixelRows, RowNumbers, Serialized
from pipeline.errors import DataError, root_cause
from pipeline.manifest.splits import Selection
from pipeline.order.views import Times
from pipeline.read import progress
from pipeline.read.memory import aligned_matrix
from pipeline.read.rows_reader import all_pieces
from pipeline.read.window import BOUNDS, GOOD, MEMORY, RECORD_ID, Columns, LocalReader, as_tensor, gather

DECODED_TOGETHER = 256  # images at a time, to avoid a second copy of the split in memory
_COPIED_BYTES = 16 << 20  # 16 MiB of records, for the same reason
NOT_CUT = (tf.int32, tf.string, tf.variant)  # GPUs cannot slice these: such values stay in host memory


@dataclasses.dataclass(frozen=True, eq=False)
class Crops:
    """Takes the crops with which a recipe begins, which is cheaper than taking whole images.

    Attributes:
      recipe: recipe that begins with these crops.
      image_shape: (height, width, channels) of the images.
      keys_of: function that returns the keys, uint64, given an epoch and record ids.
    """

    recipe: CropFirst
    image_shape: tuple[int, int, int]
    keys_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the crops."""
        return *self.recipe.crop_size(self.image_shape), self.image_shape[2]

    def take(self, images: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Returns crops of images, uint8 (..., values of a crop).

        Args:
          images: uint8 (n, values of an image).
          epoch: int64 scalar.
          rows: indices of the images, int64 (...).
          ids: record ids of the images, from which keys are made, int64 (...).
        """
        height, width, channels = self.image_shape
        tall, wide, _ = self.shape

        def corners(epoch: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            top, left = self.recipe.corners(self.image_shape, self.keys_of(epoch, rows))
            return top - self.recipe.padding, (left - self.recipe.padding) * channels

        lanes, flat = tf.reshape(images, (-1, height, width * channels)), tf.reshape(rows, [-1])
        top, left = kernels.separate(corners)(epoch, flat if ids is rows else tf.reshape(ids, [-1]))
        crops = operations.gather_crops(lanes, flat, top, left, tall, wide * channels)
        return tf.reshape(crops, (*rows.shape, tall * wide * channels))


@dataclasses.dataclass(frozen=True, eq=False)
class ResidentRows:
    """A whole split in memory.

    Attributes:
      columns: columns with one row per record, in the selection's order; for a view, only the records it may take.
      crops: crops to take of the column `image`; None to take whole images.
      times: number of times that a view takes each record; None if row numbers are record ids.
    """

    columns: Columns
    crops: Crops | None = None
    times: Times | None = None

    def take(self, epoch: tf.Tensor, ids: tf.Tensor) -> Columns:
        """Returns the columns of records, given their ids, int64 (...)."""
        rows = ids if self.times is None else self._rows(self.times, ids)
        if self.crops is None:
            return {RECORD_ID: ids, **gather(self.columns, rows)}
        others = {name: column for name, column in self.columns.items() if name != "image"}
        image = self.crops.take(self.columns["image"], epoch, rows, ids)
        return {RECORD_ID: ids, "image": image, **gather(others, rows)}

    def _rows(self, times: Times, ids: tf.Tensor) -> tf.Tensor:
        rows = ids % times.num_stored if times.repeats else ids
        return rows if self._row_of is None else tf.gather(self._row_of, rows)

    @functools.cached_property
    def _row_of(self) -> tf.Tensor | None:
        """Row number of each record, int64 (records of the selection,)."""
        if self.times is None or self.times.records is None:
            return None
        with tf.init_scope():
            numbers = np.zeros(self.times.num_stored, np.int64)
            numbers[self.times.records] = np.arange(self.times.num_chosen)
            return tf.constant(numbers)


def load(reader: LocalReader, batches: Batches) -> tuple[ResidentRows, Batches]:
    """Reads a whole selection; returns its rows, and the `Batches` that make elements from them.

    Images are decoded, unless each batch decodes different parts of them.

    Raises:
      DataError: a shard is missing, changed or corrupt.
    """
    selection, form, times = batches.resolved.selection, batches.form, batches.resolved.order.times
    columns = reader.load(all_pieces(selection, None if times is None else times.records))
    # A recipe that crops decodes a different part of each image in every epoch, so images stay encoded.
    if isinstance(form, Serialized) and cropping_of(batches.recipe) is None:
        columns, form = _decoded(form, columns, selection, times)
    elif isinstance(form, Serialized):
        columns, form = _kept(form, columns)
    batches = dataclasses.replace(batches, form=form)
    crops = _crops(batches)
    if crops is None:
        return ResidentRows(columns, None, times), batches
    assert batches.recipe is not None
    batches = dataclasses.replace(batches, form=PixelRows(crops.shape), recipe=of_crops(batches.recipe))
    return ResidentRows(columns, crops, times), batches


def numbered(rows: ResidentRows, batches: Batches, most: int) -> tuple[ResidentRows, Batches, tf.Tensor | None]:
    """Puts row numbers, int64, in the place of images, for a device that has the images in its memory.

    Args:
      rows: rows of the whole selection.
      batches: maker of elements from rows.
      most: largest number of bytes of images.

    Returns:
      The rows, the `Batches` that make elements from them, and the images, uint8 (n, height, width, channels). If
      batches do not consist of unchanged images, or the images are too large, or a GPU cannot cut other columns: the
      arguments and None.
    """
    can_cut = all(isinstance(one, tf.Tensor) and one.dtype not in NOT_CUT for one in rows.columns.values())
    if not batches.are_stored or not can_cut or rows.columns["image"].shape.num_elements() > most:
        return rows, batches, None
    images = rows.columns["image"]
    columns = {**rows.columns, "image": tf.range(images.shape[0], dtype=tf.int64)}
    of_numbers = dataclasses.replace(batches, form=RowNumbers())
    return dataclasses.replace(rows, columns=columns), of_numbers, batches.form.as_images(images)


def _crops(batches: Batches) -> Crops | None:
    """Returns the `Crops` with which the recipe begins; None to take whole images."""
    first, form = crop_first_of(batches.recipe), batches.form
    if first is None or not isinstance(form, PixelRows) or batches.on_device or not batches.resolved.order.training:
        return None
    if batches.resolved.request.images_per_record > 1:  # each copy has its own crop of the image
        return None
    return Crops(first, form.image_shape, batches.keys_of) if operations.is_compiled() else None


Decode = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor | None, Columns]]


def decoder_of(form: Form) -> Decode:
    """Returns a compiled function from serialized records, string (n,), and their ids, int64 (n,), to their examples.

    It returns images, labels and features. The images are whole, so that no keys are needed to choose parts of them.
    """

    def decode(records: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, Columns]:
        examples = form.examples({"record": records}, lambda: tf.zeros(tf.shape(records), tf.uint64), ids)
        return examples.images, examples.labels, examples.features

    # Traced once: the last records are fewer, and TensorFlow would warn of one trace per phase and evaluation.
    records, ids = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)
    traced: Decode = tf.function(decode, autograph=False).get_concrete_function(records, ids)
    return traced


def _decoded(form: Serialized, columns: Columns, selection: Selection, times: Times | None) -> tuple[Columns, Form]:
    count, shape = selection.num_examples if times is None else times.num_chosen, form.decoder.image_shape
    matrix, decode, parts = aligned_matrix(count, int(np.prod(shape))), decoder_of(form), []
    firsts = range(0, count, DECODED_TOGETHER)
    for first in progress.bar(firsts, len(firsts), "decoding the images"):
        ids = np.arange(first, min(first + DECODED_TOGETHER, count))
        ids = ids if times is None else times.ids(ids)
        try:
            images, labels, features = decode(_records(columns, first, first + len(ids)), tf.constant(ids, tf.int64))
        except tf.errors.OpError as error:
            raise _undecodable(decode, columns, first, ids.tolist(), selection, error) from None
        matrix[first : first + DECODED_TOGETHER] = images.numpy().reshape(-1, matrix.shape[1])
        parts.append({"label": labels, **features})
    others = {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}
    kept = {GOOD: columns[GOOD]} if GOOD in columns else {}
    return {"image": as_tensor(matrix), **others, **kept}, PixelRows(shape)


def _kept(form: Serialized, columns: Columns) -> tuple[Columns, Form]:
    """Returns the columns and form that let batches decode images in place, if possible."""
    decoder = form.decoder
    if not decoder.in_place or form.parser.features or form.annotations or MEMORY not in columns or GOOD in columns:
        return columns, form
    bounds, parts = columns[BOUNDS], []
    count, size = bounds.shape[0], columns[MEMORY].shape[1]
    together = max(1, _COPIED_BYTES * count // max(1, size))
    for first in range(0, count, together):
        records = _records(columns, first, min(first + together, count))
        places, labels = form.parser.places(records)
        if tf.reduce_any(places[:, 0] < 0):  # an unusual record: TensorFlow's parser copies it
            return columns, form
        is_jpeg = decoder.encoding == "jpeg"
        sizes = operations.jpeg_sizes(records, places) if is_jpeg else tf.zeros_like(places, tf.int32)
        parts.append((places, labels, sizes))
    places, labels, sizes = (tf.concat(part, axis=0) for part in zip(*parts, strict=True))
    kept = Kept(decoder, columns[MEMORY], turns=form.turns, augmenting=form.augmenting)
    return {PLACES: bounds[:, :1] + places, SIZES: sizes, "label": labels}, kept


def _records(columns: Columns, first: int, stop: int) -> tf.Tensor:
    return gather(columns, tf.range(first, stop, dtype=tf.int64))["record"]


def _undecodable(
    decode: Callable[[tf.Tensor, tf.Tensor], Any],
    columns: Columns,
    first: int,
    ids: list[int],
    selection: Selection,
    error: tf.errors.OpError,
) -> DataError:
    """Returns an error about the first row, from number `first`, that cannot be decoded; `ids` are record ids."""
    for number, record in enumerate(ids, first):
        try:
            decode(_records(columns, number, number + 1), tf.constant([record], tf.int64))
        except tf.errors.OpError as alone:
            file, row = selection.locate(record)
            reason = f"its image cannot be decoded: {root_cause(alone.message)[1]}"
            return DataError(reason, path=file, record=row, advice="convert the data again")
    return DataError(f"images cannot be decoded: {root_cause(error.message)[1]}")
