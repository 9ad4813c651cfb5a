"""Compares the values that `input_fn` feeds with the values of the same records in a plain walk over the shards.

The walk shares no code with the readers, the parser or the batches: it reads a shard from its first byte, counts the
records, and decodes them one by one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.audit.contract import Contract
from pipeline.audit.proof import Check, Fault
from pipeline.commands.text import count_of, size_of
from pipeline.decode.images import resize
from pipeline.decode.records import ImageJudge
from pipeline.errors import location
from pipeline.files.paths import folder
from pipeline.manifest import ShardInfo
from pipeline.order.reading import Topology
from pipeline.records import tf_example
from pipeline.records.stream import records_of
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest, resolve
from pipeline.step_iterator import StepIterator

_ROWS = 1000  # roughly, per worker: a third each from the beginning, middle and end of the epoch
_MOST_BYTES = 4 << 30  # 4 GiB: most bytes of shards to walk, but at least one shard
_SIDE = 64  # images of different sizes are resized to at most this if the run's flags set no size
_SHOWN = 40  # most characters of a value to show


class Fed(NamedTuple):
    """A row that was fed: its place as errors name it, its step and row, record id, and values by field."""

    where: str
    step: int
    row: int
    record: int
    values: dict[str, Any]


def content_check(source: ResolvedRequest, epoch: int, topology: Topology) -> Check:
    """Returns a check of the values fed to the first and last worker of a job in an epoch."""
    return (
        "the values that are fed are those of the records, as a plain walk over the shards finds them",
        lambda: _check(source, epoch, topology),
    )


def _check(source: ResolvedRequest, epoch: int, topology: Topology) -> str:
    fed = defaultdict[str, dict[int, list[Fed]]](lambda: defaultdict(list))
    size = None
    for worker in sorted({0, topology.workers - 1}):
        request = unaugmented(source, topology, worker)
        size = request.size
        for row in rows_fed(request, epoch, topology, worker):
            file, number = source.selection.locate(row.record)
            fed[file][number].append(row)
    shards = {segment.shard.file: segment.shard for segment in source.selection.segments}
    compared, walked, left = 0, 0, 0
    for file, rows in sorted(fed.items(), key=lambda item: -len(item[1])):
        if walked and walked + shards[file].num_bytes > _MOST_BYTES:
            left += len(rows)
            continue
        walked += shards[file].num_bytes
        for where, number, values in _stored(source, shards[file], max(rows), size):
            for row in rows.get(number, ()):
                _compare(row, where, values)
                compared += 1
    features = source.manifest.features
    fields = ", ".join([name for name, feature in features.items() if not feature.convention] or ["record"])
    more = f"; {count_of(left, 'record')} of other shards left out: at most {size_of(_MOST_BYTES)} are walked through"
    resized = f"; images resized to {size[0]}x{size[1]}" if size else ""
    return (
        f"{count_of(compared, 'row')} compared, of {size_of(walked)} of shards: {fields}{resized}{more if left else ''}"
    )


def unaugmented(source: ResolvedRequest, topology: Topology, worker: int) -> Request:
    """Returns the request for a worker's rows, without augmentation and with all features."""
    request, features = source.request, source.manifest.features
    request = dataclasses.replace(request, record_ids=True, augment=None, shard=topology.shard(worker))
    if not source.manifest.has_images:
        return dataclasses.replace(request, parse=lambda records: records, resize=None)
    height, width, channels = features["image"].shape
    size = request.size
    if size is None and None in (height, width):
        side = min(_SIDE, max(1, math.isqrt(source.spec.record_bytes // (channels or 3))))  # no larger than in the run
        size = (side, side)
    names = tuple(
        name
        for name, feature in features.items()
        if name not in ("image", "label") and not feature.convention
        if not (None in feature.shape and len(feature.shape) > 1)
    )
    return dataclasses.replace(request, features=names, resize=size)


def rows_fed(request: Request, epoch: int, topology: Topology, worker: int) -> Iterator[Fed]:
    """Yields the rows of some steps of a worker, after checking their records against the contract.

    Raises:
      Fault: a row has a different record than the contract requires.
      DataError: a shard is missing, changed or corrupt.
    """
    resolved = resolve(request)
    contract, steps = Contract.of(resolved), resolved.order.steps_per_epoch
    size = topology.global_batch_size // topology.replicas
    run = max(1, _ROWS // 3 // (size * topology.local_replicas))
    begins = {0, max(0, (steps - run) // 2), max(0, steps - run)} if steps > 3 * run else {0}
    for begin in sorted(begins):
        first = epoch * steps + begin
        count = run if len(begins) > 1 else steps
        epochs = None if resolved.order.training else epoch + 1
        batches = StepIterator(**vars(dataclasses.replace(request, start_step=first, epochs=epochs)))
        for number in range(count * topology.local_replicas):
            step, local = first + number // topology.local_replicas, number % topology.local_replicas
            replica = worker * topology.local_replicas + local
            yield from _of_element(next(batches), contract, step, replica * size, topology)


def _of_element(element: Any, contract: Contract, step: int, first: int, topology: Topology) -> Iterator[Fed]:
    *parts, weights, records = element
    values = parts[0] if isinstance(parts[0], dict) else {"image" if len(parts) > 1 else "record": parts[0]}
    if len(parts) > 1:
        values = {**values, "label": parts[1]}
    expected, real = contract.batch(step)
    for i, (record, weight) in enumerate(zip(records.tolist(), weights.reshape(-1).tolist(), strict=True)):
        row = first + i
        where = f"step {step}, row {row} of the global batch, {topology.name_of_row(row)}"
        if (record, weight > 0) != (expected[row], real[row]):
            kinds = {True: "real", False: "padding"}
            raise Fault(
                f"{where}: is fed record {record} ({kinds[weight > 0]}), and the order has {expected[row]} "
                f"({kinds[bool(real[row])]})"
            )
        yield Fed(where, step, row, record, {name: column[i] for name, column in values.items()})


def _stored(
    source: ResolvedRequest, shard: ShardInfo, last: int, size: tuple[int, int] | None
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields (location, number, values) of a shard's records up to number `last`."""
    features, is_compressed = source.manifest.features, bool(shard.compression)
    judge = ImageJudge(source.manifest) if source.manifest.has_images else None
    path = folder(source.request.folder) / shard.file
    for number, (offset, record) in enumerate(itertools.islice(records_of(path, shard.compression), last + 1)):
        where = location(path, number, offset, is_compressed)
        if judge is None:
            yield where, number, {"record": record}
            continue
        try:
            values = tf_example.example(record, features, decode_image=False)
            pixels = judge.pixels(values["image"])
        except tf_example.BadExampleError as error:
            raise error.at(path, number, offset, is_compressed) from None
        if size is not None and pixels.shape[:2] != size:
            pixels = resize(tf.constant(pixels), size).numpy()
        yield where, number, {**values, "image": pixels, "label": source.label_of(values["label"])}


def _compare(row: Fed, where: str, stored: dict[str, Any]) -> None:
    for name, fed in row.values.items():
        one, other = np.asarray(fed), np.asarray(stored[name])
        if one.shape == other.shape and np.all(_same(one, other)):
            continue
        at, shown = "", (fed, stored[name])
        if one.shape != other.shape:
            shown = (f"an array of shape {one.shape}", f"one of shape {other.shape}")
        elif one.ndim:
            place = tuple(int(i) for i in np.argwhere(~_same(one, other))[0])
            at, shown = f" at {place if len(place) > 1 else place[0]}", (one[place], other[place])
        fed_text, stored_text = (str(value)[:_SHOWN] for value in shown)
        raise Fault(f"{where}: {name}{at} is fed as {fed_text}, and the record has {stored_text} ({row.where})")


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns where two arrays are equal; NaN is equal to NaN."""
    same: np.ndarray = one == other
    if one.dtype.kind == "f":
        same = same | (np.isnan(one) & np.isnan(other))
    return np.asarray(same)
