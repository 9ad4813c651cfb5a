"""Chooses what a request is served by: a reader of windows, the form of their columns, a recipe."""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

from pipeline.decode.forms import Form, PixelRows, Serialized, UserParsed
from pipeline.decode.images import ExampleParser, ImageDecoder, Stretched
from pipeline.distort.base import Crop, Recipe
from pipeline.distort.cropping import CroppingRecipe
from pipeline.distort.recipes import make_recipe
from pipeline.distort.user_distort import UserDistorted
from pipeline.errors import UsageError
from pipeline.read.buffers import Buffers
from pipeline.read.corruption import Corruption
from pipeline.read.graph_reader import GraphReader
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader
from pipeline.read.shards import Shards, check_present
from pipeline.read.window import LocalReader, RecordColumns, RowColumns, release_arrays
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
    data_dir, examples = request.data.data_dir, request.examples
    corruption = Corruption(os.fspath(data_dir), request.delivery.on_corrupt, request.delivery.max_corrupt)
    recipe = _recipe(resolved)
    form = _form(resolved, recipe)
    if tf.inside_function():
        if corruption.skips:
            raise UsageError("on_corrupt='skip': not where the dataset is made inside a tf.function; use 'raise'")
        check_present(data_dir, [segment.shard for segment in segments])
        return Components(GraphReader(data_dir, resolved.selection, manifest.compression), form, recipe)
    shards = Shards.found(data_dir, segments, corruption)
    rows = RowsReader.fit(manifest, shards, "key" in examples.features)
    if rows and examples.parse is None and not examples.size and set(examples.features) <= {"key"}:
        columns = RowColumns(rows, Buffers(release_arrays), corruption.skips)
        return Components(columns, PixelRows(manifest.image_shape), recipe)
    if manifest.compression and corruption.skips:
        raise UsageError(
            f"on_corrupt='skip': the shards are compressed with {manifest.compression}, in which nothing can be skipped"
        )
    return Components(RecordColumns(RecordsReader(shards, manifest.compression), corruption.skips), form, recipe)


def _recipe(resolved: ResolvedRequest) -> Recipe | None:
    distort = resolved.request.examples.distort
    if resolved.request.examples.parse is not None:
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
    examples = resolved.request.examples
    if examples.parse is not None:
        return UserParsed(examples.parse)
    parser, image = (
        ExampleParser.wanted(resolved.manifest, tuple(examples.features)),
        resolved.manifest.features["image"],
    )
    crop: Crop | None = Stretched(examples.size) if examples.size else None
    if isinstance(recipe, CroppingRecipe):
        crop = recipe.crop(resolved.order.training)
    return Serialized(parser, ImageDecoder(image.encoding or "", image.shape, crop))
