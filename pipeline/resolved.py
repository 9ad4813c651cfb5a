"""A request with its data sets: their records, order and sizes, without TensorFlow.

Each source is a separate input with its own epochs; a single data set is the only source. The global batch consists of
equal blocks, all with the same number of rows from each source. So with any number of replicas that divides the rows of
every source, all replicas get the same number of rows from each source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import manifest as manifests
from pipeline import segments
from pipeline.augmentation import RECIPES, recipes
from pipeline.errors import UsageError
from pipeline.manifest import Manifest
from pipeline.manifest.columns import Columns
from pipeline.manifest.manifest import BOX_LABELS, BOXES, NO_LABEL, Feature
from pipeline.manifest.sources import Source
from pipeline.manifest.splits import Selection, names_of, select
from pipeline.manifest.succession import are_versions
from pipeline.order import order as orders
from pipeline.order.hashing import Domain, derive_key
from pipeline.order.order import MAX_STEP, MixtureSpec, Order, OrderSpec, Spec
from pipeline.order.sharding import check_pairs
from pipeline.order.views import LABEL, Times, class_numbers
from pipeline.request import Request, check_classes

_ADVICE = "the rows of a step must be alike (resize stretches images to one size)"


@dataclasses.dataclass(frozen=True)
class ResolvedRequest:
    """A request, its data set, and the order of the examples.

    Attributes:
      request: arguments of `input_fn`.
      manifest: manifest of the data set.
      selection: records of the split.
      spec: arguments of the order.
      order: order of the examples.
      statistics: manifest with the image_mean and image_std for recipes that normalise.
    """

    request: Request
    manifest: Manifest
    selection: Selection
    spec: OrderSpec
    order: Order
    statistics: Manifest

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of the images before augmentation; None if the recipe or the parser decides.

        Raises:
          UsageError: the records are not images, and there is no function to parse them.
        """
        return _image_shape(self.request, self.manifest)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names by fed label: the view's, or the data set's."""
        classes: Any = self.request.view.classes
        label = self.placed.get(self.request.label)
        return classes or (self.manifest.class_names if label is None else label.class_names)

    @functools.cached_property
    def placed(self) -> dict[str, Feature]:
        """Masks, boxes and points that are fed, as features or as labels, by name."""
        return _placed(self.request, self.manifest)

    @functools.cached_property
    def new_labels(self) -> NDArray[np.int64] | None:
        """Label to feed for each of the data set's labels, int64 (classes + 1,), the last for -1; None if unchanged."""
        classes = self.request.view.classes
        if classes is None:
            return None
        found = np.full(len(self.manifest.class_names) + 1, NO_LABEL)
        found[class_numbers(classes, self.manifest.class_names)] = np.arange(len(classes))
        return found

    def label_of(self, label: Any) -> Any:
        """Returns the label to feed for a label of the data set."""
        return label if self.new_labels is None else int(self.new_labels[label])

    def check_pairs(self, num_replicas: int = 1) -> None:
        """Raises UsageError if the recipe mixes pairs of rows and a replica or a stream has an odd number of rows."""
        if self.request.mixes and self.order.training:
            check_pairs(repr(self.request.augment), self.spec.global_batch_size, self.spec.streams, num_replicas)


def resolve(request: Request, record_bytes: int | None = None) -> ResolvedRequest:
    """Resolves a request: finds the records and the order of its data set.

    Args:
      request: request for a single data set.
      record_bytes: number of bytes of an example in a window, if known from another run; None to compute it.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value cannot work with this data set.
    """
    manifest = manifests.load(request.folder)
    if record_bytes is None:
        _check(request, manifest)
    selection = select(manifest, request.split)
    record_bytes = record_bytes or _record_bytes(request, manifest, selection)
    if request.record_bytes is not None:
        if request.record_bytes < record_bytes:
            raise UsageError(
                f"record_bytes={request.record_bytes}: a record takes {record_bytes} here; inputs that share an order "
                "are given the most that one of them takes"
            )
        record_bytes = request.record_bytes
    counts = tuple(segment.num_examples for segment in selection.segments)
    times, view = _view_of(request, manifest, selection)
    positions = times.total if times else sum(counts)
    streams = request.streams or orders.default_streams(
        positions, record_bytes, len(counts), request.global_batch_size, request.shuffle_bytes, request.mixes
    )
    spec = OrderSpec(
        manifest_digest=manifest.digest,
        split=selection.text,
        seed=request.seed,
        global_batch_size=request.global_batch_size,
        streams=streams if request.training else 1,  # an evaluation reads in stored order
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


def _view_of(request: Request, manifest: Manifest, selection: Selection) -> tuple[Times | None, str]:
    """Returns how often each record occurs in an epoch, and the view's text in the spec; (None, "") without a view."""
    if not request.view:
        return None, ""
    if request.classes is not None:
        label, column = manifest.features.get("label"), manifest.columns.get(LABEL)
        if label is not None and not label.is_class:
            raise UsageError(f"classes={request.classes!r}: the labels of {manifest.dataset} are {label}, not classes")
        if column is not None and column.is_own:
            raise UsageError(
                f"classes={request.classes!r}: the column {LABEL!r} has values of a file or function; choose records "
                "with where, or add the labels of the records as that column"
            )
    columns = Columns(request.folder, manifest, selection)
    return request.view.resolve(columns, selection.num_examples, request.seed, selection.text)


def _statistics(request: Request, manifest: Manifest) -> Manifest:
    """Returns the manifest with the statistics for recipes that normalise."""
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


def _placed(request: Request, manifest: Manifest) -> dict[str, Feature]:
    wanted = (*request.features, request.label) if request.parse is None else ()
    wanted += (BOX_LABELS,) * (request.label == BOXES)  # boxes alone do not tell what is in them
    return {name: own for name, own in manifest.features.items() if own.convention and name in wanted}


def _check_placed(request: Request, manifest: Manifest) -> None:
    """Raises UsageError if masks, boxes or points cannot be fed as the request asks."""
    placed = _placed(request, manifest)
    if request.label != LABEL and request.label not in placed:
        own = [name for name, feature in manifest.features.items() if feature.convention]
        raise UsageError(
            f"label={request.label!r}: {manifest.dataset} has no {request.label}; "
            + (f"it has {', '.join(own)}" if own else f"index it with --feature_map={request.label}:FEATURE")
        )
    if placed and request.images_per_record > 1:
        name = "copies" if request.training else "eval_copies"
        raise UsageError(
            f"{name}={request.images_per_record} with {', '.join(placed)}: each copy would need its own; leave out one "
            "of them"
        )


def _check(request: Request, manifest: Manifest) -> None:
    """Raises UsageError if a data set does not provide what the request needs.

    The order is known without images, too, so only options that need images are an error.
    """
    if request.class_weight:
        names = request.view.classes or manifest.class_names
        check_classes(request.class_weight, names, None if request.parse else manifest.features.get("label"))
    if request.parse is not None:
        return
    _check_placed(request, manifest)
    if request.training and manifest.needs_labels:
        require_labels(manifest, request.split)
    if request.mixes and manifest.has_images and not manifest.class_names:
        label = manifest.features["label"]
        raise UsageError(f"augment={request.augment!r}: mixes classes; the labels are {label}, without class_names")
    if not manifest.has_images:
        if request.augment is not None or request.size or request.features:
            manifest.require_images()
    elif request.crops and (request.size or manifest.features["image"].encoding == "raw"):
        why = f"resize={request.size}" if request.size else "raw images"
        raise UsageError(
            f"augment={request.augment!r} crops a PNG or JPEG while decoding it, which does not go with {why}; use a "
            "recipe such as pad_crop_flip"
        )
    elif not request.crops and not request.size and None in manifest.features["image"].shape[:2]:
        raise UsageError(
            f"{manifest.dataset}: its images differ in size; give resize (such as 224x224), or a recipe that crops "
            f"all to one size: {', '.join(sorted(name for name, recipe in RECIPES.items() if recipe.decodes_part))}"
        )


def require_labels(manifest: Manifest, split: str) -> None:
    """Raises UsageError if the images of a split have no labels to train on or evaluate with."""
    names = names_of(split) if isinstance(split, str) else []
    known = [name for name in names if name in manifest.splits]
    if missing := [name for name in known if manifest.has_images and not manifest.split(name).has_labels]:
        others = ", ".join(name for name, own in manifest.splits.items() if own.has_labels) or "none"
        if placed := [name for name, feature in manifest.features.items() if feature.convention]:
            others += f"; {placed[0]} can take their place: label={placed[0]!r} of input_fn, or of a Task"
        raise UsageError(
            f"split {missing[0]!r} has no labels: its images can be predicted, but neither trained nor evaluated on; "
            f"these splits have labels: {others}"
        )


def _image_shape(request: Request, manifest: Manifest) -> tuple[int, int, int] | None:
    if request.parse is not None or request.crops:
        return None
    manifest.require_images()
    height, width, channels = manifest.features["image"].shape
    height, width = request.size or (height, width)
    return int(height or 0), int(width or 0), channels or 3


def _record_bytes(request: Request, manifest: Manifest, selection: Selection) -> int:
    """Returns the bytes of an example in a window: decoded pixels or, if their number varies, the mean record."""
    shape = _image_shape(request, manifest) if manifest.has_images else None
    if shape:
        return math.prod(shape)
    shards = {segment.shard.file: segment.shard for segment in selection.segments}.values()
    return max(1, -(-sum(s.num_bytes for s in shards) // max(1, sum(s.num_examples for s in shards))))


@dataclasses.dataclass(frozen=True)
class ResolvedInput:
    """A resolved request: the input of each of its sources.

    Attributes:
      request: arguments of `input_fn`.
      parts: resolved request of each source.
    """

    request: Request
    parts: tuple[ResolvedRequest, ...]

    @property
    def first(self) -> ResolvedRequest:
        """The first source, which defines epochs and the statistics for normalisation."""
        return self.parts[0]

    @property
    def spec(self) -> Spec:
        """The arguments of the order."""
        request = self.request
        if not request.is_mixture:
            return self.first.spec
        schedule = request.shares.segments if request.schedule else ()
        return MixtureSpec(tuple(part.spec for part in self.parts), schedule, request.skip_steps)

    @property
    def steps_per_epoch(self) -> int:
        """T of the first source, for its rows in the first segment."""
        return _steps_per_epoch(self.request, self.first.order.num_records)

    def last_step(self) -> int:
        """Returns the global step before which the input ends; MAX_STEP if it is endless.

        Raises:
          UsageError: the input would begin after its end.
        """
        start, epochs = self.request.start_step, self.request.epochs
        if epochs is None and self.request.training:
            last, run = MAX_STEP, "a run without end ends"
        else:
            last, run = (epochs or 1) * self.steps_per_epoch, f"{epochs or 1} epochs end"
        if not start <= last <= MAX_STEP:
            raise UsageError(f"start_step={start}, epochs={epochs}: {run} at step {min(last, MAX_STEP)}")
        return last

    def with_images(self, **options: Any) -> ResolvedInput:
        """Returns the same input, with the same order of examples, but other options for its images."""
        parts = (dataclasses.replace(part, request=dataclasses.replace(part.request, **options)) for part in self.parts)
        return ResolvedInput(dataclasses.replace(self.request, **options), tuple(parts))

    def in_phase(self, resize: str | None, augment: str | None) -> ResolvedInput:
        """Returns the same records in the same order, with other images.

        Args:
          resize: size of the images, `128x128`; None for this input's.
          augment: recipe for the images; None for this input's.

        Raises:
          UsageError: another option rules them out.
        """
        given = self.request.augment
        if resize is None and augment is None:
            return self
        if augment and callable(given):
            raise UsageError(f"augment={augment!r}: a function augments already; leave out one of them")
        recipe = augment or given
        images: dict[str, Any] = {"augment": recipe, "resize": resize or self.request.resize}
        if resize and isinstance(recipe, str):
            images = recipes.images_of_size(recipe, resize)
        # Defaults that depend on the images of this input, or on the recipe.
        kept = [(name, {getattr(part.spec, name) for part in self.parts}) for name in ("record_bytes", "streams")]
        return self.with_images(**images, **{name: found.pop() for name, found in kept if len(found) == 1})

    def in_phase_of(self, phases: str, step: int) -> ResolvedInput:
        """Returns the same records with the images of a step's phase; `phases` is the value of --phases."""
        _, held = segments.held_at(phases, step, self.steps_per_epoch, "--phases")
        return self.in_phase(held.get("resize"), held.get("augment"))

    def check_pairs(self, num_replicas: int = 1) -> None:
        """Raises UsageError if a recipe mixes pairs of rows and a replica or stream has an odd number of them."""
        for part, source in zip(self.parts, self.request.sources, strict=True):
            with of_source(self.request, source):
                part.check_pairs(num_replicas)


def resolve_all(request: Request) -> ResolvedInput:
    """Resolves a request: finds the records and the order of each of its sources.

    Raises:
      DataError: no valid data set.
      UsageError: a value cannot work with these data sets, or the sources are incompatible.
    """
    parts = []
    for part, source in zip(parts_of(request), request.sources, strict=True):
        with of_source(request, source):
            parts.append(resolve(part))
    check_alike(parts, [str(source) for source in request.sources])
    return ResolvedInput(request, tuple(dataclasses.replace(part, statistics=parts[0].statistics) for part in parts))


def check_alike(parts: Sequence[ResolvedRequest], names: Sequence[str], advice: str = _ADVICE) -> None:
    """Raises UsageError, with both names and the difference, if the rows of two data sets are incompatible."""
    for other, source in zip(parts[1:], names[1:], strict=True):
        for name, own in _facts(parts[0]).items():
            theirs = _facts(other)[name]
            if own != theirs:
                raise UsageError(f"'{names[0]}' and '{source}' differ in {name}: {own} and {theirs}; {advice}")


def _facts(part: ResolvedRequest) -> dict[str, str]:
    """Returns the properties, as text, that all sources must share."""
    manifest, request = part.manifest, part.request
    facts = {"the number of classes": str(len(part.class_names)), "class names": ", ".join(part.class_names)}
    if request.parse is not None:
        return facts
    image = manifest.features.get("image")
    if image is not None:
        facts["labels"] = str(manifest.features["label"])
        facts["channels"] = str(image.shape[2] or 3)
        facts["the shape of images"] = str(part.image_shape)
    for name in (*request.features, *part.placed):
        if name in manifest.features:  # otherwise the reader reports it
            feature = manifest.features[name]
            # The largest number of boxes or points in a record is an axis of the batch; a mask has the shape of its
            # image.
            shape = "" if name in part.placed and feature.encoding else f" {feature.shape}"
            facts[f"feature {name!r}"] = f"{feature.dtype}{shape}"
    return facts


def parts_of(request: Request) -> tuple[Request, ...]:
    """Returns a request for each source's rows, as a separate input.

    Each part has its share of `shuffle_bytes`, and its own seed: with the same seed, sources of equal length would be
    permuted alike, and the same records would meet in every epoch. The first keeps the seed and the run's end. A source
    that begins later gets an equal share of `shuffle_bytes`, as its weight may still change when a run resumes before
    it begins.

    Raises:
      UsageError: a source has no row, or a value cannot work with its rows.
    """
    return tuple(_part(request, number, source) for number, source in enumerate(request.sources))


def _part(request: Request, number: int, source: Source) -> Request:
    shares, total = request.shares, request.shuffle_bytes
    rows = shares.rows_at(0)[number]
    own_bytes = total * rows // request.global_batch_size if rows else total // len(request.sources)
    if request.shares.take_turns and are_versions([one.data_dir for one in request.sources]):
        own_bytes = total  # as if each were alone, so that more versions may follow without changing the order of these

    def own(step: int) -> int:
        return shares.units_before(number, step)

    skips = ((own(first), own(stop)) for first, stop in request.skip_steps)
    with of_source(request, source):
        return dataclasses.replace(
            request,
            data_dir=source.data_dir,
            split=source.split,
            schedule=(),
            start_step=own(request.start_step),
            skip_steps=tuple((first, stop) for first, stop in skips if first < stop),
            global_batch_size=shares.units[number],
            seed=int(derive_key(Domain.SOURCE, request.seed, number) >> np.uint64(1)) if number else request.seed,
            epochs=None if number else request.epochs,
            shuffle_bytes=max(1, own_bytes),
            **source.options,
        )


def steps_per_epoch(request: Request) -> int:
    """Returns T for a request, which only depends on the number of records.

    Raises:
      DataError: no valid data set.
      UsageError: a split or remainder is unknown, a view cannot work, or an epoch has no step.
    """
    part = parts_of(request)[0]
    manifest = manifests.load(part.folder)
    selection = select(manifest, part.split)
    times, view = _view_of(part, manifest, selection)
    count = times.total if times else selection.num_examples
    orders.checked_steps(part.split, count, part.global_batch_size, part.remainder, view)
    return _steps_per_epoch(request, count)


def _steps_per_epoch(request: Request, num_records: int) -> int:
    """Returns T from the first source's records; 1 if they fill units of a schedule but not a whole step."""
    return max(1, orders.steps_per_epoch(num_records, request.shares.rows_at(0)[0], request.remainder))


@contextlib.contextmanager
def of_source(request: Request, source: object) -> Iterator[None]:
    """Makes a UsageError in the block name the source, if the request has several sources."""
    try:
        yield
    except UsageError as error:
        if not request.is_mixture:
            raise
        raise UsageError(f"source '{source}': {error}") from None
