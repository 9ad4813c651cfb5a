"""A request and its data set: the records, their order and their size, without TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import os

from pipeline import manifest as manifests
from pipeline.distort import recipes
from pipeline.errors import UsageError
from pipeline.manifest import Manifest
from pipeline.manifest.splits import Selection, select
from pipeline.order import order as orders
from pipeline.order.counts import check_pairs
from pipeline.order.order import MAX_STEP, Order, OrderSpec
from pipeline.request import Request


@dataclasses.dataclass(frozen=True)
class ResolvedRequest:
    """A request, its data set, and the order of the examples.

    Attributes:
      request: what is asked for.
      manifest: of the data set.
      selection: the records.
      spec: the arguments of the order.
      order: the order.
      statistics: the manifest whose image_mean and image_std normalise.
    """

    request: Request
    manifest: Manifest
    selection: Selection
    spec: OrderSpec
    order: Order
    statistics: Manifest

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of the images before they are distorted; None: the recipe or parser makes them.

        Raises:
          UsageError: there are no images, and no function that parses what there is.
        """
        return _image_shape(self.request, self.manifest)

    def check_pairs(self, num_replicas: int = 1) -> None:
        """Raises UsageError where rows are mixed in pairs, but a replica or a stream has an odd number of them."""
        if self.request.mixes and self.order.training:
            check_pairs(repr(self.request.distort), self.spec.global_batch_size, self.spec.streams, num_replicas)

    def last_step(self) -> int:
        """Returns the global step at which the input ends; MAX_STEP: it is endless.

        Raises:
          UsageError: the input would begin after it.
        """
        start, epochs = self.request.start_step, self.request.epochs
        if epochs is None and self.order.training:
            last, run = MAX_STEP, "a run without end ends"
        else:
            last, run = (epochs or 1) * self.order.steps_per_epoch, f"{epochs or 1} epochs end"
        if not start <= last <= MAX_STEP:
            raise UsageError(f"start_step={start}, epochs={epochs}: {run} at step {min(last, MAX_STEP)}")
        return last


def resolve(request: Request, record_bytes: int | None = None) -> ResolvedRequest:
    """Returns a request with the records and the order that its data set gives.

    Args:
      request: what is asked for.
      record_bytes: that an example took in a window of another run, whatever the request says.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value that cannot work with this data set.
    """
    manifest = manifests.load(request.folder)
    if record_bytes is None:
        _check(request, manifest)
    selection = select(manifest, request.split)
    record_bytes = record_bytes or _record_bytes(request, manifest, selection)
    counts = tuple(segment.num_examples for segment in selection.segments)
    streams = request.streams or orders.default_streams(
        sum(counts), record_bytes, len(counts), request.global_batch_size, request.shuffle_bytes, request.mixes
    )
    spec = OrderSpec(
        manifest_digest=manifest.digest,
        split=selection.text,
        seed=request.seed,
        global_batch_size=request.global_batch_size,
        streams=streams if request.training else 1,
        shuffle_bytes=request.shuffle_bytes,
        remainder=request.remainder,
        training=request.training,
        record_bytes=record_bytes,
    )
    order = orders.make_order(spec, counts, record_bytes)
    resolved = ResolvedRequest(request, manifest, selection, spec, order, _statistics(request, manifest))
    resolved.check_pairs()
    return resolved


def _statistics(request: Request, manifest: Manifest) -> Manifest:
    """Returns the manifest of the data set whose statistics normalise."""
    if request.statistics is None or request.statistics == request.folder:
        return manifest
    found = manifests.load(request.statistics)
    theirs, own = len(found.image_mean), len(manifest.image_mean)
    if theirs and own and theirs != own:
        raise UsageError(
            f"statistics={os.fspath(request.statistics)!r}: are of images of {theirs} channels, those of "
            f"{request.folder} have {own}"
        )
    return found


def _check(request: Request, manifest: Manifest) -> None:
    """Raises UsageError where a data set does not provide what is asked for.

    Without images nothing may be asked of them, but the order is known all the same.
    """
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
            f"all to one size: {', '.join(sorted(recipes.CROPPING))}"
        )


def _image_shape(request: Request, manifest: Manifest) -> tuple[int, int, int] | None:
    if request.parse is not None or request.crops:
        return None
    manifest.require_images()
    height, width, channels = manifest.features["image"].shape
    height, width = request.size or (height, width)
    return int(height or 0), int(width or 0), channels or 3


def _record_bytes(request: Request, manifest: Manifest, selection: Selection) -> int:
    """Returns the bytes that an example takes in a window: decoded pixels, or where they vary the stored mean."""
    shape = _image_shape(request, manifest) if manifest.has_images else None
    if shape:
        return math.prod(shape)
    shards = {segment.shard.file: segment.shard for segment in selection.segments}.values()
    return max(1, -(-sum(s.num_bytes for s in shards) // max(1, sum(s.num_examples for s in shards))))
