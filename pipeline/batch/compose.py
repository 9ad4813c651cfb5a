"""`input_fn`'s dataset: request -> feed -> reader -> split in memory or windows -> batches -> joined sources."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline import operations
from pipeline.augmentation.base import Crop, Recipe
from pipeline.augmentation.composed import cropping_of, moves_of, of_flipped
from pipeline.batch.batches import Batches, is_read_by_graph, no_python, recipe_of, recipes_of
from pipeline.batch.dataset import resident, split, unpadded, windowed
from pipeline.batch.plans import Run
from pipeline.batch.resident import load, numbered
from pipeline.commands.text import size_of
from pipeline.decode.annotation import Annotations
from pipeline.decode.forms import Form, PixelRows, Serialized, Turns, UserParsed
from pipeline.decode.images import ImageDecoder, Stretched
from pipeline.decode.records import ExampleParser, ImageJudge
from pipeline.decode.user import ParseJudge
from pipeline.errors import DataError, UsageError
from pipeline.files import remote
from pipeline.files.paths import folder
from pipeline.graph_calls import UserFunction
from pipeline.manifest.columns import ORIENTATION, Columns
from pipeline.order.feed import Feed, make_feed
from pipeline.order.order import MAX_STEP
from pipeline.order.sharding import as_shard
from pipeline.order.shares import rows_in_blocks
from pipeline.read import memory
from pipeline.read.corruption import Corruption
from pipeline.read.graph_reader import GraphReader
from pipeline.read.records_reader import Judge, RecordsReader
from pipeline.read.rows_reader import RowsReader, all_pieces
from pipeline.read.shard_cache import make_cache
from pipeline.read.shards import Shards
from pipeline.read.window import LocalReader, RecordColumns, RowColumns
from pipeline.records import tf_example
from pipeline.request import DEVICE, Request
from pipeline.resolved import ResolvedInput, ResolvedRequest, of_source, resolve_all

_MOST_STORED = 1 << 27  # rows whose plans are stored in a graph, 2 to 4 bytes each; a graph has 2 GiB
_READY_STEPS = 2  # joined elements made ahead; each source also makes some ahead


class Numbered(NamedTuple):
    """A dataset that may have row numbers in the place of images.

    Attributes:
      dataset: elements as from `make_dataset`.
      images: images that the numbers stand for, uint8 (n, height, width, channels); None if elements have them.
    """

    dataset: tf.data.Dataset
    images: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Maker:
    """Makes the dataset for a range of a source's own steps.

    Attributes:
      feed: feed that plans the rows.
      make: function that makes the dataset of a `Run`.
      images: images of the whole source, of which the dataset has the row numbers, as in `Numbered`.
    """

    feed: Feed
    make: Callable[[Run], tf.data.Dataset]
    images: tf.Tensor | None

    def __call__(self, *steps_and_form: Any) -> tf.data.Dataset:
        """Returns the dataset; takes `Run`'s arguments after the feed."""
        with tf.device("CPU:0"):
            return self.make(Run(self.feed, *steps_and_form))


def make_dataset(request: Request, replicas: int | None = None, stacked: bool = False) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents.

    Args:
      request: arguments of `input_fn`.
      replicas: number of replicas that share each element, which is then a tuple of their parts; None to leave it
        whole.
      stacked: whether elements that are made in groups may be handed out in groups; see `is_stacked`.

    Raises:
      DataError, UsageError: see `input_fn`.
    """
    return make_numbered(request, replicas, stacked).dataset


def make_numbered(request: Request, replicas: int | None = None, stacked: bool = False, most: int = 0) -> Numbered:
    """Returns the dataset of `make_dataset`, with row numbers in the place of images where it can.

    That is for one source that this worker keeps in memory, with at most `most` bytes of images, which are fed
    unchanged (`resident.numbered`).
    """
    if shard := as_shard(request.shard):
        request.check_replicas(shard.num_replicas)
    resolved = resolve_all(request)
    first, last = request.start_step, resolved.last_step()
    segments = request.shares.between(first, last)
    if is_read_by_graph(request):
        _check_stored(request, first, last)
    else:
        _check_memory(resolved)
    makers = []
    for part, source in zip(resolved.parts, request.sources, strict=True):
        with of_source(request, source):
            makers.append(maker(part, 0 if request.is_mixture else most))
    if len(makers) == 1:  # elements are whole steps already; joining would cost an operation per step
        if request.weights == "none":  # an evaluation: one source, whole epochs
            whole = makers[0](first, last, replicas, False)
            return Numbered(unpadded(whole, resolved.first.order, request.epochs or 1), makers[0].images)
        return Numbered(makers[0](first, last, replicas, stacked), makers[0].images)
    with tf.device("CPU:0"):
        return Numbered(_joined(resolved, makers, segments, replicas))


def _joined(
    mixture: ResolvedInput,
    makers: Sequence[Maker],
    segments: Sequence[tuple[int, int, tuple[int, ...]]],
    replicas: int | None,
) -> tf.data.Dataset:
    """Returns the dataset whose elements join the rows of several sources, segment by segment."""
    request, kinds, joint = mixture.request, dict[int, Any](), []
    shard = as_shard(request.shard)
    local = shard.local_replicas if shard else 1
    for first, stop, taken in segments:
        # Elements alternate between this worker's replicas, but a source gives all replicas their rows of one unit
        # before the next unit. So if a step takes several units, an element has the rows of all replicas until it is
        # cut.
        sharing, of_sources = local if max(taken) > 1 else 1, {}
        for number, units in enumerate(taken):
            if units:
                begin, end = (min(request.shares.units_before(number, step), MAX_STEP) for step in (first, stop))
                made = makers[number](begin, end, None, units * sharing > 1)
                of_sources[number] = _together(made, request, units * sharing, stop - first)
        kinds |= {number: made.element_spec for number, made in of_sources.items()}
        _check_elements_alike(mixture, kinds)  # including sources that no segment uses
        steps = _steps(mixture, of_sources, taken, sharing if sharing > 1 else replicas)
        joint.append(steps.flat_map(one_by_one) if sharing > 1 else steps)
    dataset = functools.reduce(lambda one, other: one.concatenate(other), joint)
    first, last = segments[0][0], segments[-1][1]
    count = tf.data.INFINITE_CARDINALITY if last == MAX_STEP else local * (last - first)
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


@tf.autograph.experimental.do_not_convert
def _together(made: tf.data.Dataset, request: Request, elements: int, steps: int) -> tf.data.Dataset:
    """Returns a dataset of `steps` elements, each with the rows of several consecutive elements."""
    if elements == 1:
        return made
    if is_stacked(made, request):  # no unit becomes an element of its own, which is expensive for small units
        together = made.rebatch(elements, drop_remainder=True).take(steps)
        return together.map(lambda *e: tf.nest.map_structure(lambda c: tf.reshape(c, [-1, *c.shape[2:]]), e))
    return made.rebatch(elements * _rows(made), drop_remainder=True)


def _rows(dataset: tf.data.Dataset) -> int:
    """Returns the number of rows of an element, from its last component: weights or record ids, one per row."""
    return int(tf.nest.flatten(dataset.element_spec)[-1].shape[0])


@tf.autograph.experimental.do_not_convert
def one_by_one(*elements: Any) -> tf.data.Dataset:
    """Returns a dataset of the elements."""
    return functools.reduce(lambda one, other: one.concatenate(other), map(tf.data.Dataset.from_tensors, elements))


def is_stacked(dataset: tf.data.Dataset, request: Request) -> bool:
    """Returns whether elements of a request's dataset are stacks of elements, with a leading axis."""
    # The last component, weights or record ids, has a number per row. A user's function parses one batch at a time, and
    # its sample weights may have any rank.
    return request.parse is None and bool(tf.nest.flatten(dataset.element_spec)[-1].shape.rank == 2)


def maker(resolved: ResolvedRequest, most_numbered: int = 0) -> Maker:
    """Returns the `Maker` of a source; for `most_numbered` see `make_numbered`."""
    request, images = resolved.request, None
    shard = as_shard(request.shard)
    feed, order = make_feed(resolved.order, shard), resolved.order
    resolved.check_pairs(order.global_batch_size // feed.replica_rows)
    with tf.device("CPU:0"):
        reader, batches = choose(resolved)
        if isinstance(reader, GraphReader):  # another process cannot call NumPy in this one
            plans = functools.partial(Run.stored_plans, shard=shard, reader=reader)
            make = functools.partial(windowed, batches=batches, reader=reader, plans=plans)
        elif _is_resident(feed):
            rows, batches, images = numbered(*load(reader, batches), most_numbered)
            make = functools.partial(resident, batches=batches, rows=rows)
        else:
            make = functools.partial(windowed, batches=batches, reader=reader)
    return Maker(feed, make, images)


def _is_resident(feed: Feed) -> bool:
    """Returns whether this worker reads the whole split and keeps it in memory."""
    return feed.order.windows == 1 and len(feed.streams) == feed.order.streams


def _check_memory(resolved: ResolvedInput) -> None:
    """Raises UsageError if the machine, or the container, has too little memory for the windows of all sources.

    A source has two windows in memory, the current and the next; a resident one has all its records.
    """
    request, needed, texts = resolved.request, 0, []
    for part, source in zip(resolved.parts, request.sources, strict=True):
        feed = make_feed(part.order, as_shard(request.shard))
        own = (1 if _is_resident(feed) else 2) * feed.window_records * part.spec.record_bytes
        needed += own
        share = f"{source} {size_of(own)}, " if request.is_mixture else ""
        texts.append(f"{share}{len(feed.streams)} of {part.spec.streams} streams")
    if needed > (available := memory.available()):
        raise UsageError(
            f"shuffle_bytes={request.shuffle_bytes}, {'; '.join(texts)}: needs {size_of(needed)} on this worker, which "
            f"has {size_of(available)}; give a smaller shuffle_bytes (another order), or more workers"
        )


def choose(resolved: ResolvedRequest) -> tuple[LocalReader | GraphReader, Batches]:
    """Returns the window reader for a request, and the `Batches` that make elements from its rows.

    A GraphReader reads in the process that runs the dataset; the other readers read in this one.

    Raises:
      DataError: a shard is missing or has the wrong size, or the first image does not match the manifest.
      UsageError: the data set does not provide what the request needs.
    """
    request, manifest, segments = resolved.request, resolved.manifest, resolved.selection.segments
    data_dir = request.folder
    corruption = Corruption(os.fspath(data_dir), request.on_corrupt, request.max_corrupt)
    form, recipe = _form_and_recipe(resolved)
    annotations = form.annotations if isinstance(form, Serialized) else None
    batches = Batches(resolved, form, recipe, annotations=annotations)
    if is_read_by_graph(request):
        _check_graph(resolved)
        shards = Shards.found(data_dir, segments, corruption)
        # The graph's reader checks CRCs, but cannot notice a shard from another conversion. So the first and last
        # record of each shard are compared with the manifest here.
        RecordsReader(shards).probe()
        _check_first_record(resolved, shards)
        is_chosen = resolved.order.times is not None
        return GraphReader(data_dir, resolved.selection, is_chosen), batches
    batches = dataclasses.replace(batches, by_passes=operations.is_compiled())
    cache = make_cache(data_dir, manifest, segments, request.cache_dir, request.cache_bytes, corruption.skips)
    shards = Shards.found(data_dir, segments, corruption, cache)
    rows = RowsReader.fit(manifest, shards, "key" in request.features)
    if rows and request.parse is None and not request.size and set(request.features) <= {"key"}:
        return RowColumns(rows), dataclasses.replace(batches, form=PixelRows(manifest.image_shape))
    for segment in segments if corruption.skips else ():
        if not segment.shard.is_seekable:
            kind = segment.shard.compression
            raise UsageError(
                f"on_corrupt='skip': {segment.shard.file} is compressed as one {kind} stream, in which nothing can be "
                "skipped"
            )
    _check_first_record(resolved, shards)
    judge = judge_of(resolved) if corruption.skips else None
    return RecordColumns(RecordsReader(shards, judge=judge)), batches


def judge_of(resolved: ResolvedRequest) -> Judge:
    """Returns the check that finds a source's invalid records, using its parser if it has one."""
    request = resolved.request
    if request.parse is None:
        return ImageJudge(resolved.manifest)
    rows = make_feed(resolved.order, as_shard(request.shard)).replica_rows
    parse = UserFunction.of("parse", request.parse)
    return ParseJudge(parse, rows, functools.partial(_some_records, resolved), request.training)


def _some_records(resolved: ResolvedRequest) -> Iterator[bytes]:
    """Yields intact records of a source: the first of each segment, then the second of each, and so on."""
    segments = resolved.selection.segments
    folder = resolved.request.folder
    reader = RecordsReader(Shards.found(folder, segments, Corruption(os.fspath(folder))))
    for at in range(max((segment.stop - segment.start for segment in segments), default=0)):
        for number, segment in enumerate(segments):
            record = segment.start + at
            if record < segment.stop:
                with contextlib.suppress(DataError):
                    yield from filter(None, reader.read_part(number, record, record + 1))


def _check_stored(request: Request, first: int, last: int) -> None:
    """Raises UsageError if a dataset cannot have the plans of steps first..last-1 as data of its graph."""
    how = "portable=True" if request.portable else "a dataset made inside a tf.function, as for parameter servers"
    stores = f"epochs={request.epochs} with {how}: the dataset stores the order of all its steps"
    if last == MAX_STEP:
        raise UsageError(f"{stores}, so it needs an end; give epochs")
    if (rows := (last - first) * request.global_batch_size) > _MOST_STORED:
        raise UsageError(
            f"{stores}, and {rows:,} rows are too many, at most {_MOST_STORED:,}; give fewer epochs, and continue from "
            "start_step with another dataset"
        )


def _check_graph(resolved: ResolvedRequest) -> None:
    """Raises UsageError for options that TensorFlow's own reader cannot serve."""
    request = resolved.request
    if request.on_corrupt == "skip":
        raise UsageError("on_corrupt='skip': not where the dataset is made inside a tf.function; use 'raise'")
    if request.cache_dir is not None:
        raise UsageError(
            "cache_dir: not where the dataset is made inside a tf.function, as for parameter servers; leave it out"
        )
    if remote.needs_arrow(os.fspath(request.folder)):
        raise UsageError(
            f"data_dir={folder(request.folder)}: TensorFlow's own reader, which portable=True and parameter servers "
            "need, opens local folders and gs:// only"
        )


def _check_first_record(resolved: ResolvedRequest, shards: Shards) -> None:
    """Raises DataError, naming it, if the first record does not match the manifest; the graph could not name it."""
    manifest, reads = resolved.manifest, dataclasses.replace(shards, corruption=Corruption(shards.data_dir))
    if resolved.request.parse is not None or shards.corruption.skips:  # skipping checks each when it is read
        return
    # For a view, the first record that it takes, so that no other shard is opened.
    times = resolved.order.times
    segment, first, _ = all_pieces(resolved.selection, None if times is None else times.ids(np.zeros(1, np.int64)))[0]
    number = shards.segments[segment].start + int(first)
    try:
        [record] = RecordsReader(reads).read_part(int(segment), number, number + 1)
    except DataError:  # the reader will raise it, or skip the record
        return
    try:
        tf_example.example(record or b"", manifest.features, upright=manifest.turns_images)
    except tf_example.BadExampleError as error:
        raise error.at(shards.file(int(segment)), number) from None


def _form_and_recipe(resolved: ResolvedRequest) -> tuple[Form, Recipe | None]:
    """Returns the form of the examples and the recipe for them: flips may be done while crops are resized."""
    request, made, (recipe, _) = resolved.request, resolved.manifest, recipes_of(resolved)
    if request.parse is not None:
        parse = UserFunction.of("parse", request.parse, no_python=no_python(request))
        return UserParsed(parse, request.training), recipe
    turns = _turns_of(resolved)
    placed = resolved.placed
    parser = ExampleParser.wanted(made, tuple(name for name in request.features if name not in placed))
    image = made.features["image"]
    crop: Crop | None = Stretched(request.size) if request.size else None
    mirrored, by_operation = None, operations.can_resize() and not is_read_by_graph(request)
    if cropping := cropping_of(recipe):
        crop = cropping.crop(resolved.order.training)
        if by_operation and request.augment_on != DEVICE:
            mirrored = cropping.mirrored if resolved.order.training else None
            recipe = of_flipped(recipe)
    decoder = ImageDecoder(image.encoding or "", image.shape, crop, by_operation, mirrored, made.pixels.dct)
    augmenting = None
    if cropping and not resolved.order.training and request.images_per_record > 1:
        flips = cropping.mirrored if by_operation else None
        augmenting = dataclasses.replace(decoder, crop=cropping.crop(True), mirrored=flips)
    annotations = _annotations(resolved, decoder) if placed else None
    return Serialized(decoder, parser, turns=turns, augmenting=augmenting, annotations=annotations), recipe


def _annotations(resolved: ResolvedRequest, decoder: ImageDecoder) -> Annotations:
    """Returns the masks, boxes and points that are fed, which the whole recipe moves, wherever it is applied."""
    placed, recipe = resolved.placed, recipe_of(resolved)
    assert recipe is not None
    moves = moves_of(recipe, decoder.image_shape[:2], resolved.order.training, ", ".join(placed))
    by_passes = operations.is_compiled() and not is_read_by_graph(resolved.request)
    return Annotations(placed, decoder, moves, by_passes)


def _turns_of(resolved: ResolvedRequest) -> Turns | None:
    """Returns the EXIF orientation by which to rotate each image when decoding it; None to rotate none.

    Raises:
      DataError: the file of orientations is missing, or belongs to another index.
    """
    request, made = resolved.request, resolved.manifest
    if not made.turns_images:
        return None
    found = Columns(request.folder, made, resolved.selection)[ORIENTATION]
    if not (found > 1).any():
        return None
    return found if is_read_by_graph(request) else tf.constant(found)  # one tensor for all functions


@tf.autograph.experimental.do_not_convert
def _steps(
    mixture: ResolvedInput, of_sources: Mapping[int, tf.data.Dataset], taken: Sequence[int], replicas: int | None
) -> tf.data.Dataset:
    """Returns the dataset whose elements join the rows of several sources; it ends with the first source that ends.

    Args:
      mixture: request with its data sets.
      of_sources: datasets by number of their source, in order; an element has the rows of one unit after another.
      taken: number of units of each source in an element.
      replicas: number of replicas that share each element; None to leave it whole.
    """
    numbered, datasets = mixture.request.record_ids, tuple(of_sources.values())
    rows = [_rows(made) // taken[number] for number, made in of_sources.items() for _ in range(taken[number])]
    counts = [part.selection.num_examples for part in mixture.parts]
    first_ids = [sum(counts[:number]) for number in of_sources]

    def of_step(*elements: tuple[Any, ...]) -> tuple[Any, ...]:
        if numbered:
            elements = tuple((*e[:-1], e[-1] + first) for e, first in zip(elements, first_ids, strict=True))
        joint: tuple[Any, ...] = tf.nest.map_structure(lambda *parts: _in_blocks(parts, rows), *elements)
        return split(joint, replicas)

    return tf.data.Dataset.zip(datasets).map(of_step, num_parallel_calls=tf.data.AUTOTUNE).prefetch(_READY_STEPS)


def _in_blocks(parts: Sequence[Any], rows: Sequence[int]) -> Any:
    """Returns the rows of all parts in the order of `rows_in_blocks`; a part may have the rows of several units."""
    blocks = math.gcd(*rows)
    if len(parts) == len(rows) and all(isinstance(part, tf.Tensor) and part.shape.is_fully_defined() for part in parts):
        # With static shapes a concatenation does, which is cheaper than gathering rows.
        runs = [
            tf.reshape(part, [blocks, count // blocks, *part.shape[1:]])
            for part, count in zip(parts, rows, strict=True)
        ]
        return tf.reshape(tf.concat(runs, axis=1), [sum(rows), *parts[0].shape[1:]])
    order = np.argsort(np.concatenate(rows_in_blocks(rows)))
    return tf.gather(tf.concat(parts, axis=0), order)


def _check_elements_alike(mixture: ResolvedInput, specs: Mapping[int, Any]) -> None:
    sources, kinds = mixture.request.sources, {n: tf.nest.map_structure(_kind, spec) for n, spec in specs.items()}
    first = next(iter(kinds))
    for number, kind in kinds.items():
        if kind != kinds[first]:
            raise UsageError(
                f"the sources '{sources[first]}' and '{sources[number]}' give different elements: {kinds[first]} and "
                f"{kind}; the rows of a step must be alike"
            )


def _kind(spec: Any) -> str:
    return f"{spec.dtype.name} {tuple(spec.shape[1:]) if spec.shape.rank else ()}"
