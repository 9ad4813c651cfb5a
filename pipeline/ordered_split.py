"""A split of a data set, its records selected and their order fixed: what the input begins with."""

from __future__ import annotations

import dataclasses
import math
import operator
import os

from pipeline import manifest as manifests
from pipeline import order as orders
from pipeline.errors import UsageError, unknown
from pipeline.manifest import Manifest
from pipeline.order import SHUFFLE_BYTES, Order, OrderSpec
from pipeline.splits import Selection, select

_INT64 = 1 << 63


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

    def check_fits(self) -> None:
        """Raises UsageError where the windows do not hold the whole split: reading by windows is not there yet."""
        if self.order.windows == 1:
            return
        streams, size = self.order.streams, math.prod(self.manifest.image_shape)
        needed = streams * -(-self.order.num_records // streams) * size
        raise UsageError(
            f"split {self.spec.split!r}: its {self.order.num_records} decoded images do not fit "
            f"shuffle_bytes={self.spec.shuffle_bytes} and reading in windows is not available yet; "
            f"give shuffle_bytes={needed} or more"
        )


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
) -> OrderedSplit:
    """Returns the split in its order; the arguments are those of `input_fn`.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value that cannot work.
    """
    manifest = manifests.load(data_dir)
    check_readable(manifest, data_dir)
    selection = select(manifest, split)
    size = whole_number("global_batch_size", global_batch_size, 1)
    shuffle_bytes = whole_number("shuffle_bytes", shuffle_bytes, 1)
    if remainder not in orders.REMAINDERS:
        raise unknown("remainder", str(remainder), orders.REMAINDERS)
    record_bytes = math.prod(manifest.image_shape)
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
    )
    counts = tuple(segment.num_examples for segment in selection.segments)
    return OrderedSplit(manifest, selection, spec, orders.make_order(spec, counts, record_bytes))


def check_readable(manifest: Manifest, data_dir: str | os.PathLike[str]) -> None:
    """Checks that the input can read a data set: raw images of one size, in shards that are not compressed.

    Raises:
      UsageError: it cannot, with how to convert the data so that it can.
    """
    image = manifest.features["image"]
    problems = [] if image.encoding == "raw" else [f"has images encoded as {image.encoding}"]
    if None in image.shape:
        problems.append("has images that differ in size")
    if manifest.compression:
        problems.append(f"is compressed with {manifest.compression}")
    if problems:
        resize = " --resize=HxW" if None in image.shape else ""
        raise UsageError(
            f"{os.fspath(data_dir)}: {', '.join(problems)}; the input of this release reads raw images of one size "
            f"that are not compressed: convert it with --image_encoding=raw{resize} and no --compression"
        )


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
