"""Chooses what serves a request: a reader of windows, the form of their columns, a recipe."""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

from pipeline import user_function
from pipeline.batch.batches import Batches
from pipeline.batch.recipe import recipe_of
from pipeline.decode.forms import Form, PixelRows, Serialized, UserParsed
from pipeline.decode.images import ExampleParser, ImageDecoder, Stretched
from pipeline.distort.base import Crop, Recipe
from pipeline.distort.composed import cropping_of
from pipeline.errors import DataError, UsageError
from pipeline.manifest import remote
from pipeline.manifest.storage import folder
from pipeline.read.buffers import Buffers
from pipeline.read.corruption import Corruption
from pipeline.read.graph_reader import GraphReader
from pipeline.read.numpy_calls import release_arrays
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader
from pipeline.read.shard_cache import make_cache
from pipeline.read.shards import Shards
from pipeline.read.window import LocalReader, RecordColumns, RowColumns
from pipeline.records import example_arrays
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest


def choose(resolved: ResolvedRequest) -> tuple[LocalReader | GraphReader, Batches]:
    """Returns the reader of windows that serves a request, and what makes batches of them.

    A GraphReader reads in whatever process runs the dataset, the others in this one.

    Raises:
      DataError: a shard is missing or has another size, or the first image is not what the manifest says.
      UsageError: the data set does not provide what the request asks for.
    """
    request, manifest, segments = resolved.request, resolved.manifest, resolved.selection.segments
    data_dir = request.folder
    corruption = Corruption(os.fspath(data_dir), request.on_corrupt, request.max_corrupt)
    recipe = recipe_of(resolved)
    batches = Batches(resolved, _form(resolved, recipe), recipe)
    if is_read_by_graph(request):
        _check_graph(request)
        shards = Shards.found(data_dir, segments, corruption)
        RecordsReader(shards, manifest.compression).probe()
        _check_first(resolved, shards)
        return GraphReader(data_dir, resolved.selection, manifest.compression), batches
    cache = make_cache(data_dir, manifest, segments, request.cache_dir, request.cache_bytes, corruption.skips)
    shards = Shards.found(data_dir, segments, corruption, cache)
    rows = RowsReader.fit(manifest, shards, "key" in request.features)
    if rows and request.parse is None and not request.size and set(request.features) <= {"key"}:
        columns = RowColumns(rows, Buffers(release_arrays), corruption.skips)
        return columns, dataclasses.replace(batches, form=PixelRows(manifest.image_shape))
    for segment in segments if corruption.skips else ():
        if not segment.shard.is_seekable(manifest.compression):
            raise UsageError(
                f"on_corrupt='skip': {segment.shard.file} is compressed as one {manifest.compression} stream, in which "
                "nothing can be skipped"
            )
    _check_first(resolved, shards)
    return RecordColumns(RecordsReader(shards, manifest.compression), corruption.skips), batches


def is_read_by_graph(request: Request) -> bool:
    """Whether TensorFlow's own operations read, in whatever process runs the dataset."""
    return request.portable or tf.inside_function()


def _check_graph(request: Request) -> None:
    """Raises UsageError for what TensorFlow's own reader cannot do."""
    if request.on_corrupt == "skip":
        raise UsageError("on_corrupt='skip': not where the dataset is made inside a tf.function; use 'raise'")
    if request.cache_dir is not None:
        raise UsageError(
            "cache_dir: not where the dataset is made inside a tf.function, as for parameter servers; leave it out"
        )
    if remote.is_of_arrow(os.fspath(request.folder)):
        raise UsageError(
            f"data_dir={folder(request.folder)}: TensorFlow's own reader, which portable=True and parameter servers "
            "need, opens local folders and gs:// only"
        )


def _check_first(resolved: ResolvedRequest, shards: Shards) -> None:
    """Raises DataError where the first record is not what the manifest says: inside a graph it would not be named."""
    manifest, reads = resolved.manifest, dataclasses.replace(shards, corruption=Corruption(shards.data_dir))
    if resolved.request.parse is not None:
        return
    segment, taken = next((i, s) for i, s in enumerate(shards.segments) if s.num_examples)
    try:
        [record] = RecordsReader(reads, manifest.compression).read_part(segment, taken.start, taken.start + 1)
    except DataError:  # reading will say so, or skip it
        return
    try:
        example_arrays.example(record or b"", manifest.features)
    except example_arrays.BadExampleError as error:
        raise error.at(f"{shards.file(segment)}, record {taken.start}") from None


def _form(resolved: ResolvedRequest, recipe: Recipe | None) -> Form:
    """Returns the form of serialized records."""
    request, made = resolved.request, resolved.manifest
    if request.parse is not None:
        return UserParsed(user_function.as_given(request.parse))
    parser, image = ExampleParser.wanted(made, tuple(request.features)), made.features["image"]
    crop: Crop | None = Stretched(request.size) if request.size else None
    if cropping := cropping_of(recipe):
        crop = cropping.crop(resolved.order.training)
    return Serialized(parser, ImageDecoder(image.encoding or "", image.shape, crop))
