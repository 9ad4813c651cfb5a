"""A split of a data set, its records selected and their order fixed: what the input begins with."""

from __future__ import annotations

import dataclasses
import operator
import os

from pipeline import manifest as manifests
from pipeline.content import Content
from pipeline.errors import UsageError
from pipeline.manifest import Manifest
from pipeline.manifest.splits import Selection, select
from pipeline.order import order as orders
from pipeline.order.order import SHUFFLE_BYTES, Order, OrderSpec

_INT64 = 1 << 63
IMAGES = Content()  # as they are stored


@dataclasses.dataclass(frozen=True)
class OrderedSplit:
    """A selection of a data set's records in the order of a spec.

    Attributes:
      manifest: the data set.
      selection: the records.
      spec: the arguments of the order.
      order: the order.
    """

    manifest: Manifest
    selection: Selection
    spec: OrderSpec
    order: Order


def ordered_split(
    data_dir: str | os.PathLike[str],
    split: str,
    *,
    global_batch_size: int,
    training: bool,
    seed: int = 0,
    remainder: str = "pad",
    streams: int | None = None,
    shuffle_bytes: int = SHUFFLE_BYTES,
    content: Content = IMAGES,
) -> OrderedSplit:
    """Returns the split in its order; the arguments are those of `input_fn`.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value that cannot work.
    """
    manifest = manifests.load(data_dir)
    content.check(manifest)
    selection = select(manifest, split)
    size = whole_number("global_batch_size", global_batch_size, 1)
    shuffle_bytes = whole_number("shuffle_bytes", shuffle_bytes, 1)
    record_bytes = content.record_bytes(manifest, selection)
    if streams is None:
        streams = orders.default_streams(selection.num_examples * record_bytes, size, shuffle_bytes)
    else:
        streams = whole_number("streams", streams, 1)
        orders.check_streams(size, streams)
    spec = OrderSpec(
        manifest_digest=manifest.digest,
        split=selection.text,
        seed=whole_number("seed", seed, -_INT64),
        global_batch_size=size,
        streams=streams if training else 1,
        shuffle_bytes=shuffle_bytes,
        remainder=remainder,
        training=bool(training),
        record_bytes=record_bytes,
    )
    counts = tuple(segment.num_examples for segment in selection.segments)
    return OrderedSplit(manifest, selection, spec, orders.make_order(spec, counts, record_bytes))


def whole_number(name: str, value: int, least: int) -> int:
    """Returns `value` as an int; NumPy's integers are welcome.

    Raises:
      UsageError: it is no whole number, or not in least..2^63 - 1.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r}: must be a whole number") from None
    if not least <= number < _INT64:
        bound = f"{least} or more" if number < least and least > -_INT64 else "in the range of a signed 64-bit integer"
        raise UsageError(f"{name}={value}: must be {bound}")
    return number
