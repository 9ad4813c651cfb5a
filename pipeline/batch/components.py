"""Chooses what a request is served by: a reader of windows, the form of their columns, a recipe."""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

from pipeline.decode.forms import Form, PixelRows, Serialized, UserParsed
from pipeline.decode.images import ExampleParser, ImageDecoder, Stretched
from pipeline.distort.base import Crop, Recipe, UserDistorted
from pipeline.distort.cropping import CroppingRecipe
from pipeline.distort.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.read.buffers import Buffers
from pipeline.read.corruption import Corruption
from pipeline.read.graph_reader import GraphReader
from pipeline.read.numpy_calls import release_arrays
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader
from pipeline.read.shards import Shards, check_present
from pipeline.read.window import LocalReader, RecordColumns, RowColumns
from pipeline.resolved import ResolvedRequest


@dataclasses.dataclass(frozen=True)
class Components:
    """What batches are made by.

    Attributes:
      reader: of windows; a GraphReader reads in whatever process runs the dataset, the others in this one.
      form: of the columns that it reads.
      recipe: the distortion; None: the user's parser returns everything.
    """

    reader: LocalReader | GraphReader
    form: Form
    recipe: Recipe | None


def choose(resolved: ResolvedRequest) -> Components:
    """Returns the components that serve a request.

    Raises:
      DataError: a shard is missing or has another size.
      UsageError: the data set does not provide what the request asks for.
    """
    request, manifest, segments = resolved.request, resolved.manifest, resolved.selection.segments
    data_dir = request.data_dir
    corruption = Corruption(os.fspath(data_dir), request.on_corrupt, request.max_corrupt)
    recipe = _recipe(resolved)
    form = _form(resolved, recipe)
    if tf.inside_function():
        if corruption.skips:
            raise UsageError("on_corrupt='skip': not where the dataset is made inside a tf.function; use 'raise'")
        check_present(data_dir, [segment.shard for segment in segments])
        return Components(GraphReader(data_dir, resolved.selection, manifest.compression), form, recipe)
    shards = Shards.found(data_dir, segments, corruption)
    rows = RowsReader.fit(manifest, shards, "key" in request.features)
    if rows and request.parse is None and not request.size and set(request.features) <= {"key"}:
        columns = RowColumns(rows, Buffers(release_arrays), corruption.skips)
        return Components(columns, PixelRows(manifest.image_shape), recipe)
    if manifest.compression and corruption.skips:
        raise UsageError(
            f"on_corrupt='skip': the shards are compressed with {manifest.compression}, in which nothing can be skipped"
        )
    return Components(RecordColumns(RecordsReader(shards, manifest.compression), corruption.skips), form, recipe)


def _recipe(resolved: ResolvedRequest) -> Recipe | None:
    distort = resolved.request.distort
    if resolved.request.parse is not None:
        return None
    if callable(distort):
        return UserDistorted(distort)
    if not isinstance(distort, str | None):
        raise UsageError(f"distort={distort!r}: must be a recipe's name, a function of (images, keys), or None")
    recipe = make_recipe("none" if distort is None else distort)
    recipe.check(resolved.image_shape or (0, 0, 0))
    return recipe


def _form(resolved: ResolvedRequest, recipe: Recipe | None) -> Form:
    """Returns the form of serialized records."""
    request, made = resolved.request, resolved.manifest
    if request.parse is not None:
        return UserParsed(request.parse)
    parser, image = ExampleParser.wanted(made, tuple(request.features)), made.features["image"]
    crop: Crop | None = Stretched(request.size) if request.size else None
    if isinstance(recipe, CroppingRecipe):
        crop = recipe.crop(resolved.order.training)
    return Serialized(parser, ImageDecoder(image.encoding or "", image.shape, crop))
