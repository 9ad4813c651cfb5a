"""A request with its data set, or several of them: the records, their order and their size, without TensorFlow.

A mixture has an input for each source. Source i fills G_i rows of every global batch and has its own epochs. A batch
consists of gcd(G_0, G_1, ...) equal blocks, each with the same number of rows of a source as every other block. So any
number of replicas that divides every G_i gets the same number of rows of each source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np

from pipeline import manifest as manifests
from pipeline.distort import RECIPES
from pipeline.errors import UsageError
from pipeline.manifest import Manifest
from pipeline.manifest.columns import Columns
from pipeline.manifest.sources import Source
from pipeline.manifest.splits import Selection, select
from pipeline.order import order as orders
from pipeline.order import sharding, shares
from pipeline.order.hashing import Domain, derive_key
from pipeline.order.order import MAX_STEP, MixtureSpec, Order, OrderSpec, Spec
from pipeline.order.sharding import check_pairs
from pipeline.order.shares import Segments
from pipeline.order.views import Times
from pipeline.request import Request, check_classes

_ADVICE = "the rows of a step must be alike (resize stretches images to one size)"


@dataclasses.dataclass(frozen=True)
class ResolvedRequest:
    """A request, its data set, and the order of the examples.

    Attributes:
      request: the arguments of `input_fn`.
      manifest: of the data set.
      selection: the records.
      spec: the arguments of the order.
      order: the order.
      statistics: the manifest with the image_mean and image_std that recipes normalise by.
    """

    request: Request
    manifest: Manifest
    selection: Selection
    spec: OrderSpec
    order: Order
    statistics: Manifest

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of the images before they are distorted; None: the recipe or parser decides.

        Raises:
          UsageError: the records are not images, and there is no function that parses them.
        """
        return _image_shape(self.request, self.manifest)

    def check_pairs(self, num_replicas: int = 1) -> None:
        """Raises UsageError if the recipe mixes pairs of rows, but a replica or a stream has an odd number of them."""
        if self.request.mixes and self.order.training:
            check_pairs(repr(self.request.distort), self.spec.global_batch_size, self.spec.streams, num_replicas)

    def last_step(self) -> int:
        """Returns the global step before which the input ends; MAX_STEP: it is endless.

        Raises:
          UsageError: the input would begin after its end.
        """
        return _last_step(self.request, self.order.steps_per_epoch)


def _last_step(request: Request, steps_per_epoch: int) -> int:
    start, epochs = request.start_step, request.epochs
    if epochs is None and request.training:
        last, run = MAX_STEP, "a run without end ends"
    else:
        last, run = (epochs or 1) * steps_per_epoch, f"{epochs or 1} epochs end"
    if not start <= last <= MAX_STEP:
        raise UsageError(f"start_step={start}, epochs={epochs}: {run} at step {min(last, MAX_STEP)}")
    return last


def resolve(request: Request, record_bytes: int | None = None) -> ResolvedRequest:
    """Returns a request with the records and the order of its data set.

    Args:
      request: for one data set.
      record_bytes: bytes of an example in a window, if they are known from another run; None: the request decides.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value cannot work with this data set.
    """
    manifest = manifests.load(request.folder)
    if record_bytes is None:
        _check(request, manifest)
    selection = select(manifest, request.split)
    record_bytes = record_bytes or _record_bytes(request, manifest, selection)
    counts = tuple(segment.num_examples for segment in selection.segments)
    times, view = view_of(request, manifest, selection)
    positions = times.total if times else sum(counts)
    streams = request.streams or orders.default_streams(
        positions, record_bytes, len(counts), request.global_batch_size, request.shuffle_bytes, request.mixes
    )
    spec = OrderSpec(
        manifest_digest=manifest.digest,
        split=selection.text,
        seed=request.seed,
        global_batch_size=request.global_batch_size,
        streams=streams if request.training else 1,  # an evaluation reads in the stored order
        shuffle_bytes=request.shuffle_bytes,
        remainder=request.remainder,
        training=request.training,
        record_bytes=record_bytes,
        view=view,
        skip_steps=request.skip_steps,
    )
    order = orders.make_order(spec, counts, record_bytes, times)
    resolved = ResolvedRequest(request, manifest, selection, spec, order, _statistics(request, manifest))
    resolved.check_pairs()
    return resolved


def view_of(request: Request, manifest: Manifest, selection: Selection) -> tuple[Times | None, str]:
    """Returns how often each record is in an epoch, and the view's text in the spec; (None, "") without a view.

    Raises:
      DataError: a column's file is missing, or of another conversion.
      UsageError: a view that cannot work with this data set.
    """
    if not request.view:
        return None, ""
    columns = Columns(request.folder, manifest, selection)
    return request.view.resolve(columns, selection.num_examples, request.seed, selection.text)


def _statistics(request: Request, manifest: Manifest) -> Manifest:
    """Returns the manifest with the statistics that recipes normalise by."""
    if request.statistics is None or request.statistics == request.folder:
        return manifest
    found = manifests.load(request.statistics)
    theirs, own = len(found.image_mean), len(manifest.image_mean)
    if theirs and own and theirs != own:
        raise UsageError(
            f"are of images of {theirs} channels, those of {request.folder} have {own}",
            argument="statistics",
            value=os.fspath(request.statistics),
        )
    return found


def _check(request: Request, manifest: Manifest) -> None:
    """Raises UsageError if a data set does not provide what the request needs.

    Without images the order is still known, so only options that need images are an error.
    """
    if request.class_weight:
        check_classes(request.class_weight, manifest.class_names)
    if request.parse is not None:
        return
    if not manifest.has_images:
        if request.distort is not None or request.size or request.features:
            manifest.require_images()
    elif request.crops and (request.size or manifest.features["image"].encoding == "raw"):
        why = f"resize={request.size}" if request.size else "raw images"
        raise UsageError(
            f"distort={request.distort!r} crops a PNG or JPEG while decoding it, which {why} rules out; use a recipe "
            "such as pad_crop_flip"
        )
    elif not request.crops and not request.size and None in manifest.features["image"].shape[:2]:
        raise UsageError(
            f"{manifest.dataset}: its images differ in size; give resize (such as 224x224), or a recipe that crops "
            f"all to one size: {', '.join(sorted(name for name, recipe in RECIPES.items() if recipe.decodes_part))}"
        )


def _image_shape(request: Request, manifest: Manifest) -> tuple[int, int, int] | None:
    if request.parse is not None or request.crops:
        return None
    manifest.require_images()
    height, width, channels = manifest.features["image"].shape
    height, width = request.size or (height, width)
    return int(height or 0), int(width or 0), channels or 3


def _record_bytes(request: Request, manifest: Manifest, selection: Selection) -> int:
    """Returns the bytes of an example in a window: of its decoded pixels, or the stored mean if their number varies."""
    shape = _image_shape(request, manifest) if manifest.has_images else None
    if shape:
        return math.prod(shape)
    shards = {segment.shard.file: segment.shard for segment in selection.segments}.values()
    return max(1, -(-sum(s.num_bytes for s in shards) // max(1, sum(s.num_examples for s in shards))))


@dataclasses.dataclass(frozen=True)
class ResolvedInput:
    """A resolved input: a data set, or a mixture of several.

    Attributes:
      request: the arguments of `input_fn`.
      parts: one for each source; a single data set has one.
    """

    request: Request
    parts: tuple[ResolvedRequest, ...]

    @property
    def first(self) -> ResolvedRequest:
        """The first source, whose epochs count and whose statistics normalise."""
        return self.parts[0]

    @property
    def spec(self) -> Spec:
        """The arguments of the order."""
        request = self.request
        if not request.sources:
            return self.first.spec
        return MixtureSpec(tuple(part.spec for part in self.parts), schedule_of(request), request.skip_steps)

    @property
    def steps_per_epoch(self) -> int:
        """T of the first source; under a schedule, by its rows in the first segment."""
        return nominal_steps(self.request, self.first.order.num_records) or self.first.order.steps_per_epoch

    def place(self, source: int, step: int, row: int) -> tuple[int, int] | None:
        """Returns the global step and the row of the global batch at which a row of a source's own step is fed.

        None: under a schedule, whose units are the source's own steps, the source has ended before that one.
        """
        schedule = schedule_of(self.request)
        if not schedule:
            return step, int(shares.rows_in_blocks([part.spec.global_batch_size for part in self.parts])[source][row])
        found = shares.step_of_unit(schedule, source, step)
        if found is None:
            return None
        units = shares.units_at(schedule, found)
        return found, int(
            shares.rows_in_blocks([shares.unit_of(schedule)] * len(units))[units.index((source, step))][row]
        )

    def own_step(self, source: int, step: int) -> int:
        """Returns the step of a source's own order before a global step; under a schedule its steps are units."""
        schedule = schedule_of(self.request)
        return shares.units_before(schedule, source, step) if schedule else step

    def distorting_on(self, place: str) -> ResolvedInput:
        """Returns the same input with another `distort_on`, on which the order of examples does not depend."""
        parts = (
            dataclasses.replace(part, request=dataclasses.replace(part.request, distort_on=place))
            for part in self.parts
        )
        return ResolvedInput(dataclasses.replace(self.request, distort_on=place), tuple(parts))

    def last_step(self) -> int:
        """Returns the global step before which the input ends, like `ResolvedRequest`."""
        return _last_step(self.request, self.steps_per_epoch)

    def check_pairs(self, num_replicas: int = 1) -> None:
        """Raises UsageError if a recipe mixes pairs of rows, but a replica or stream has an odd number of them."""
        for part, source in zip(self.parts, self.request.sources or (None,), strict=True):
            with of_source(self.request, source):
                part.check_pairs(num_replicas)


def resolve_all(request: Request) -> ResolvedInput:
    """Returns a request with the records and the order of each of its sources.

    Raises:
      DataError: no valid data set.
      UsageError: a value cannot work with these data sets, or the sources do not fit together.
    """
    parts = []
    for part, source in zip(parts_of(request), request.sources or (None,), strict=True):
        with of_source(request, source):
            parts.append(resolve(part))
    check_alike(parts, [str(source) for source in request.sources])
    return ResolvedInput(request, tuple(dataclasses.replace(part, statistics=parts[0].statistics) for part in parts))


def check_alike(parts: Sequence[ResolvedRequest], names: Sequence[str]) -> None:
    """Raises UsageError, with both names and the difference, if the rows of two sources do not fit together."""
    for other, source in zip(parts[1:], names[1:], strict=True):
        for name, own in _facts(parts[0]).items():
            theirs = _facts(other)[name]
            if own != theirs:
                raise UsageError(
                    f"the sources '{names[0]}' and '{source}' differ in {name}: {own} and {theirs}; {_ADVICE}"
                )


def _facts(part: ResolvedRequest) -> dict[str, str]:
    """Returns the properties, in words, that all sources must have in common."""
    manifest, request = part.manifest, part.request
    facts = {"the number of classes": str(len(manifest.class_names)), "class names": ", ".join(manifest.class_names)}
    if request.parse is not None:
        return facts
    image = manifest.features.get("image")
    if image is not None:
        facts["channels"] = str(image.shape[2] or 3)
        facts["the shape of images"] = str(part.image_shape)
    for name in request.features:
        if name in manifest.features:  # else the reader says so
            feature = manifest.features[name]
            facts[f"feature {name!r}"] = f"{feature.dtype} {feature.shape}"
    return facts


def parts_of(request: Request) -> tuple[Request, ...]:
    """Returns the request for each source's rows; for a single data set, the request itself.

    Each part has its share of `shuffle_bytes`, and another seed: with the same seed, sources of the same length would
    be permuted alike, and the same records would meet in every epoch. The first keeps the seed and the run's end. A
    source that begins later has as large a part of `shuffle_bytes` as each would have of equal ones: what it will be
    given may still change when a run resumes before it.

    Raises:
      UsageError: a source has no row, or a value cannot work with its rows.
    """
    if not request.sources:
        return (request,)
    schedule = schedule_of(request)
    rows = schedule[0][1] if schedule else shares.checked_shares(request.global_batch_size, *_weights(request))
    numbered = zip(range(len(rows)), request.sources, rows, strict=True)
    return tuple(_part(request, schedule, number, source, share) for number, source, share in numbered)


def schedule_of(request: Request) -> Segments:
    """Returns the rows of each source in each segment of a mixture's schedule; empty: they never change.

    Raises:
      UsageError: a source with a weight above 0 has no row in a segment.
    """
    return tuple(
        (step, shares.checked_shares(request.global_batch_size, *_weights(request, weights)))
        for step, weights in request.schedule
    )


def _part(request: Request, schedule: Segments, number: int, source: Source, rows: int) -> Request:
    unit = shares.unit_of(schedule) if schedule else rows
    skips, share = request.skip_steps, request.shuffle_bytes * rows // request.global_batch_size
    if not rows:
        share = request.shuffle_bytes // len(request.sources)
    if schedule:  # the source's steps are its units
        units = [tuple(shares.units_before(schedule, number, step) for step in pair) for pair in skips]
        skips = tuple((first, stop) for first, stop in units if first < stop)
    with of_source(request, source):
        return dataclasses.replace(
            request,
            data_dir=source.data_dir,
            split=source.split,
            schedule=(),
            start_step=0 if schedule else request.start_step,
            skip_steps=skips,
            global_batch_size=unit,
            seed=int(derive_key(Domain.SOURCE, request.seed, number) >> np.uint64(1)) if number else request.seed,
            epochs=None if number else request.epochs,
            shuffle_bytes=max(1, share),
            **source.options,
        )


def nominal_steps(request: Request, num_records: int) -> int | None:
    """Returns T under a schedule, from the first source's N and its rows in the first segment; None: no schedule."""
    schedule = schedule_of(request)
    return max(1, orders.steps_per_epoch(num_records, schedule[0][1][0], request.remainder)) if schedule else None


def check_replicas(request: Request, num_replicas: int, what: str = "replicas") -> None:
    """Raises UsageError if the replicas do not divide the global batch or, in a mixture, each source's rows of it."""
    if not request.sources:
        sharding.check_replicas(request.global_batch_size, num_replicas)
    for _, weights in request.schedule or [(0, ())] * bool(request.sources):
        shares.check_divided(request.global_batch_size, *_weights(request, weights), num_replicas, what)


def _weights(request: Request, scheduled: Sequence[tuple[str, float]] = ()) -> tuple[list[float], list[str]]:
    """Returns the weights and names of the sources: those of a schedule's segment, or else their own."""
    given = scheduled or [(str(source), source.weight) for source in request.sources]
    return [weight for _, weight in given], [name for name, _ in given]


@contextlib.contextmanager
def of_source(request: Request, source: object) -> Iterator[None]:
    """Makes a UsageError in the block name the source, if the request has several."""
    try:
        yield
    except UsageError as error:
        if not request.sources:
            raise
        raise UsageError(f"source '{source}': {error}") from None
