"""A whole split in memory, its images decoded once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.batch.batches import Batches
from pipeline.batch.resident_rows import Crops, ResidentRows
from pipeline.decode.forms import Form, PixelRows, Serialized
from pipeline.distort.composed import crop_first_of, cropping_of, of_crops
from pipeline.errors import DataError, root_cause
from pipeline.manifest.splits import Selection
from pipeline.read.buffers import aligned_matrix
from pipeline.read.gather_crops import is_compiled
from pipeline.read.rows_reader import all_pieces
from pipeline.read.window import GOOD, Columns, LocalReader, as_tensor

_DECODED_TOGETHER = 256  # images, so that no second copy of the split lies in memory


def load(reader: LocalReader, batches: Batches) -> tuple[ResidentRows, Batches]:
    """Returns a whole selection, and the batches of its rows.

    Images are decoded, unless each batch decodes other parts of them.

    Raises:
      DataError: a shard is missing, changed or corrupt.
    """
    selection, form = batches.resolved.selection, batches.form
    columns = reader.load(all_pieces(selection))
    if isinstance(form, Serialized) and cropping_of(batches.recipe) is None:
        columns, form = _decoded(form, columns, selection)
    batches = dataclasses.replace(batches, form=form)
    crops = _crops(batches)
    if crops is None:
        return ResidentRows(columns), batches
    assert batches.recipe is not None
    batches = dataclasses.replace(batches, form=PixelRows(crops.shape), recipe=of_crops(batches.recipe))
    return ResidentRows(columns, crops), batches


def _crops(batches: Batches) -> Crops | None:
    """Returns what takes the crops that the recipe begins with; None: rows are taken whole."""
    first, form = crop_first_of(batches.recipe), batches.form
    if first is None or not isinstance(form, PixelRows) or batches.on_device or not batches.resolved.order.training:
        return None
    return Crops(first, form.image_shape, batches.keys_of) if is_compiled() else None


def _decoded(form: Serialized, columns: Columns, selection: Selection) -> tuple[Columns, Form]:
    records = columns["record"]
    count, shape = int(records.shape[0]), form.decoder.image_shape
    matrix = aligned_matrix(count, int(np.prod(shape)))

    @tf.function(autograph=False)
    def decode(part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, Columns]:
        examples = form.examples({"record": part}, lambda: tf.zeros(tf.shape(part), tf.uint64))
        return examples.images, examples.labels, examples.features

    parts = []
    for first in range(0, count, _DECODED_TOGETHER):
        try:
            images, labels, features = decode(records[first : first + _DECODED_TOGETHER])
        except tf.errors.OpError as error:
            raise _undecodable(decode, records, first, selection, error) from None
        matrix[first : first + _DECODED_TOGETHER] = images.numpy().reshape(-1, matrix.shape[1])
        parts.append({"label": labels, **features})
    others = {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}
    kept = {GOOD: columns[GOOD]} if GOOD in columns else {}
    return {"image": as_tensor(matrix), **others, **kept}, PixelRows(shape)


def _undecodable(
    decode: Callable[[tf.Tensor], Any], records: tf.Tensor, first: int, selection: Selection, error: tf.errors.OpError
) -> DataError:
    """Returns the error for the first record, from number `first` on, that cannot be decoded by itself."""
    for number in range(first, min(first + _DECODED_TOGETHER, int(records.shape[0]))):
        try:
            decode(records[number : number + 1])
        except tf.errors.OpError as alone:
            file, row = selection.locate(number)
            reason = root_cause(alone.message)[1]
            return DataError(f"{file}, record {row}: its image cannot be decoded: {reason}; convert the data again")
    return DataError(f"images cannot be decoded: {root_cause(error.message)[1]}")
