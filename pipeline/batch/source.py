"""Composes what an input is made from: reader, form, distortion."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import tensorflow as tf

from pipeline.decode.forms import Form, PixelRows, Serialized, UserParsed
from pipeline.decode.images import ExampleParser, ImageDecoder, Stretched
from pipeline.distort.base import CroppingRecipe, Framing, Recipe
from pipeline.distort.own import Own
from pipeline.distort.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.manifest.splits import Selection
from pipeline.read.buffers import Buffers, aligned_matrix
from pipeline.read.corruption import Corruption
from pipeline.read.graph_reader import GraphReader
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader, all_pieces
from pipeline.read.shards import Shards, check_present
from pipeline.read.window import (
    GOOD,
    RECORD_ID,
    Columns,
    LocalReader,
    RecordColumns,
    RowColumns,
    WindowReader,
    as_tensor,
    let_go,
)
from pipeline.resolved import ResolvedRequest

_DECODED_TOGETHER = 256  # images, where a split is decoded once


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a window's columns come from and what becomes of them.

    Attributes:
      reader: of windows.
      form: of their columns.
      recipe: the distortion; None: the user's parser makes all.
      local: the reader, where it is code of this process.
    """

    reader: WindowReader
    form: Form
    recipe: Recipe | None
    local: LocalReader | None = None


def make_source(resolved: ResolvedRequest) -> Source:
    """Returns the source of a request's examples.

    Raises:
      DataError: a shard is missing or has another size.
      UsageError: the data set does not provide what the request asks for.
    """
    request, manifest, selection = resolved.request, resolved.manifest, resolved.selection
    data_dir, examples, delivery = request.data.data_dir, request.examples, request.delivery
    corruption = Corruption(os.fspath(data_dir), delivery.on_corrupt, delivery.max_corrupt)
    recipe = _recipe(resolved)
    parser = ExampleParser.wanted(manifest, tuple(examples.features))
    in_graph = tf.inside_function()
    if in_graph and corruption.skips:
        raise UsageError("on_corrupt='skip': not where the dataset is made inside a tf.function; use 'raise'")
    form = _serialized(resolved, recipe, parser)
    if in_graph:
        check_present(data_dir, [segment.shard for segment in selection.segments])
        return Source(GraphReader(data_dir, selection, manifest.compression), form, recipe)
    shards = Shards.found(data_dir, selection.segments, corruption)
    rows = RowsReader.fit(manifest, shards, "key" in examples.features)
    if rows and examples.parse is None and not examples.size and set(examples.features) <= {"key"}:
        columns = RowColumns(rows, Buffers(let_go), corruption.skips)
        return Source(columns, PixelRows(manifest.image_shape), recipe, columns)
    if manifest.compression and corruption.skips:
        raise UsageError(
            f"on_corrupt='skip': the shards are compressed with {manifest.compression}, in which nothing can be skipped"
        )
    records = RecordColumns(RecordsReader(shards, manifest.compression), corruption.skips)
    return Source(records, form, recipe, records)


def load(source: Source, reader: LocalReader, selection: Selection) -> tuple[Columns, Form]:
    """Reads a whole selection, a row a record, and decodes what need not be decoded anew for every batch.

    Returns:
      The columns, with the record ids, and the form that they have then.

    Raises:
      DataError: a shard is missing, changed or corrupt.
    """
    columns, form = reader.load(all_pieces(selection)), source.form
    if isinstance(form, Serialized) and not isinstance(source.recipe, CroppingRecipe):
        columns, form = _decoded(form, columns)
    return {RECORD_ID: tf.range(selection.num_examples, dtype=tf.int64), **columns}, form


def _recipe(resolved: ResolvedRequest) -> Recipe | None:
    distort = resolved.request.examples.distort
    if resolved.request.examples.parse is not None:
        return None
    if callable(distort):
        return Own(distort)
    if not isinstance(distort, str | None):
        raise UsageError(f"distort={distort!r}: must be a recipe's name, a function of (images, keys), or None")
    recipe = make_recipe("none" if distort is None else distort)
    recipe.check(resolved.image_shape or (0, 0, 0))
    return recipe


def _serialized(resolved: ResolvedRequest, recipe: Recipe | None, parser: ExampleParser) -> Form:
    examples = resolved.request.examples
    if examples.parse is not None:
        return UserParsed(examples.parse)
    image = resolved.manifest.features["image"]
    framing: Framing | None = Stretched(examples.size) if examples.size else None
    if isinstance(recipe, CroppingRecipe):
        framing = recipe.framing(resolved.order.training)
    return Serialized(parser, ImageDecoder(image.encoding or "", image.shape, framing))


def _decoded(form: Serialized, columns: Columns) -> tuple[Columns, Form]:
    """Decodes a few images at a time, so that they lie in memory once."""
    records = columns["record"]
    count, shape = int(records.shape[0]), form.decoder.image_shape
    matrix = aligned_matrix(count, int(np.prod(shape)))

    @tf.function
    def decode(part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, Columns]:
        examples = form.examples({"record": part}, lambda: tf.zeros(tf.shape(part), tf.uint64))
        return examples.images, examples.labels, examples.features

    parts = []
    for first in range(0, count, _DECODED_TOGETHER):
        images, labels, features = decode(records[first : first + _DECODED_TOGETHER])
        matrix[first : first + _DECODED_TOGETHER] = images.numpy().reshape(-1, matrix.shape[1])
        parts.append({"label": labels, **features})
    others = {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}
    kept = {GOOD: columns[GOOD]} if GOOD in columns else {}
    return {"image": as_tensor(matrix), **others, **kept}, PixelRows(shape)
