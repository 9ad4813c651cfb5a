"""The order of examples: a pure function of the order spec (docs/order.md). NumPy only.

Positions 0..N-1 of an epoch are cut into K streams, a stream into W windows, each window is permuted on its own;
step t takes positions tq..(t+1)q-1 of every stream, q = G / K.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UsageError, unknown
from pipeline.order import hashing
from pipeline.order.divisibility import check_replicas, check_streams
from pipeline.order.hashing import Domain

ORDER_VERSION = 1
MAX_STREAMS = 64  # more readers than this do not help one job; fewer divisors of G would be left
SHUFFLE_BYTES = 1 << 30  # 1 GiB: MNIST, CIFAR and the like fit and are shuffled as a whole
REMAINDERS = ("pad", "drop")
MAX_STEP = 1 << 62  # where an endless run ends

I64 = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class OrderSpec:
    """The arguments of the order. Two runs with equal specs see the same examples at the same steps.

    Attributes:
      manifest_digest: identity of the data (`Manifest.digest`).
      split: the split argument, slices included.
      seed: of every permutation and distortion.
      global_batch_size: G, rows of a step over all replicas.
      streams: K.
      shuffle_bytes: decoded bytes that the windows of all streams may take together.
      remainder: `pad` or `drop`.
      training: False: the identity instead of every permutation, K = 1.
      record_bytes: that an example takes in a window.
      version: of the rules in this module.
    """

    manifest_digest: str
    split: str
    seed: int
    global_batch_size: int
    streams: int
    shuffle_bytes: int
    remainder: str
    training: bool
    record_bytes: int = 0
    version: int = ORDER_VERSION

    def to_json(self) -> str:
        """Returns the spec as one line of JSON with sorted keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @property
    def digest(self) -> str:
        """SHA-256 of `to_json()`, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def differences(self, other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Returns {field: (here, other's)} of the fields in which a stored spec differs."""
        mine = dataclasses.asdict(self)
        fields = sorted(mine.keys() | other.keys())
        return {name: (mine.get(name), other.get(name)) for name in fields if mine.get(name) != other.get(name)}


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of one selection of records.

    Attributes:
      counts: records of each segment (a shard or the selected part of one), in the manifest's order; zeros allowed.
      global_batch_size, streams, windows, remainder, seed, training: as in the spec; `windows` a stream.
    """

    counts: tuple[int, ...]
    global_batch_size: int
    streams: int
    windows: int
    remainder: str
    seed: int
    training: bool

    @functools.cached_property
    def num_records(self) -> int:
        """N."""
        return sum(self.counts)

    @property
    def rows_per_stream(self) -> int:
        """q, the rows that a stream fills in each global batch."""
        return self.global_batch_size // self.streams

    @property
    def steps_per_epoch(self) -> int:
        """T."""
        return steps_per_epoch(self.num_records, self.global_batch_size, self.remainder)

    def stream_bounds(self) -> I64:
        """Returns positions where the streams begin and the last ends, int64 (K + 1,)."""
        return np.arange(self.streams + 1, dtype=np.int64) * self.num_records // self.streams

    def window_bounds(self, stream: int) -> I64:
        """Returns positions where the windows of a stream begin and the last ends, int64 (W + 1,)."""
        start, stop = self.stream_bounds()[stream : stream + 2]
        return start + np.arange(self.windows + 1, dtype=np.int64) * (stop - start) // self.windows

    def shard_order(self, epoch: int) -> I64:
        """Returns the segments' indices in the order in which the epoch lays them end to end, int64 (S,)."""
        if not self.training:
            return np.arange(len(self.counts), dtype=np.int64)
        return hashing.permutation(hashing.derive_key(Domain.SHARDS, self.seed, epoch), len(self.counts))

    def records_by_position(self, epoch: int) -> I64:
        """Returns the record id at each position of the epoch, int64 (N,): a permutation of 0..N-1."""
        order = self._laid_records(epoch)
        if not self.training:
            return order
        for stream in range(self.streams):
            bounds = self.window_bounds(stream).tolist()
            for window in range(self.windows):
                place = order[bounds[window] : bounds[window + 1]]
                place[:] = place[self.window_permutation(epoch, stream, window, len(place))]
        return order

    def window_permutation(self, epoch: int, stream: int, window: int, size: int) -> I64:
        """Returns which of a window's laid records is at each of its positions, int64 (size,), when training."""
        return hashing.permutation(hashing.derive_key(Domain.WINDOW, self.seed, epoch, stream, window), size)

    def pieces(self, epoch: int, start: int, stop: int) -> I64:
        """Returns what lies at positions start..stop-1 before the windows are permuted.

        Returns:
          int64 (n, 3): segment, its first record there and the one after its last; by position, without empty ones.
        """
        shards = self.shard_order(epoch)
        counts = np.asarray(self.counts, np.int64)[shards]
        laid = np.cumsum(counts) - counts
        first, last = np.maximum(start - laid, 0), np.minimum(stop - laid, counts)
        return np.stack([shards, first, last], axis=1)[first < last]

    def _laid_records(self, epoch: int) -> I64:
        counts = np.asarray(self.counts, np.int64)
        first = np.cumsum(counts) - counts
        laid, position = np.empty(self.num_records, np.int64), 0
        for shard in self.shard_order(epoch).tolist():
            count = self.counts[shard]
            laid[position : position + count] = np.arange(first[shard], first[shard] + count)
            position += count
        return laid

    def spans(self, steps: ArrayLike) -> tuple[I64, I64]:
        """Returns where the real rows of steps of an epoch begin and end in each stream.

        Args:
          steps: t, 0..T-1, integers (n,).

        Returns:
          first and stop, positions int64 (n, K): stream k fills its rows of step t with first[t, k]..stop[t, k]-1.
        """
        bounds, q = self.stream_bounds(), self.rows_per_stream
        first = bounds[:-1] + np.asarray(steps, np.int64)[:, None] * q
        return np.minimum(first, bounds[1:]), np.minimum(first + q, bounds[1:])

    def positions(self, step_of_epoch: int) -> tuple[I64, NDArray[np.bool_]]:
        """Returns the positions of a step's rows and which rows are real.

        A padding row takes a position of its stream's last window, from the stream's end backwards, cyclically; the
        rows of an empty stream take the position where it would begin.

        Args:
          step_of_epoch: t, 0..T-1.

        Returns:
          positions int64 (G,) and real bool (G,), row k * q + j being row j of stream k.
        """
        bounds, rows = self.stream_bounds(), np.arange(self.rows_per_stream, dtype=np.int64)
        start, length = bounds[:-1, None], np.diff(bounds)[:, None]
        first, stop = (span[0, :, None] for span in self.spans([step_of_epoch]))
        real = rows < stop - first
        last_window = np.maximum(length - (self.windows - 1) * length // self.windows, 1)
        beyond = step_of_epoch * self.rows_per_stream + rows - length
        padding = start + np.maximum(length - 1 - beyond % last_window, 0)
        return np.where(real, first + rows, padding).ravel(), real.ravel()

    def batch(self, step: int) -> tuple[I64, NDArray[np.bool_]]:
        """Returns the record ids (G,) of a global step, int64, and which rows are real, bool (G,)."""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        positions, real = self.positions(step_of_epoch)
        return self.records_by_position(epoch)[positions], real


def make_order(spec: OrderSpec, counts: tuple[int, ...], record_bytes: int) -> Order:
    """Returns the order that a spec gives to segments of `counts` records, each `record_bytes` decoded.

    Raises:
      UsageError: G, K or shuffle_bytes cannot work with this data; the message names the values and the nearest ones.
    """
    check_streams(spec.global_batch_size, spec.streams)
    capacity = spec.shuffle_bytes // spec.streams // record_bytes
    if capacity < 1:
        least = spec.streams * record_bytes
        raise UsageError(
            f"shuffle_bytes={spec.shuffle_bytes}: {spec.streams} streams of records of {record_bytes} decoded "
            f"bytes need at least {least}"
        )
    longest = -(-sum(counts) // spec.streams)
    windows = max(1, -(-longest // capacity))
    order = Order(counts, spec.global_batch_size, spec.streams, windows, spec.remainder, spec.seed, spec.training)
    checked_steps(spec.split, order.num_records, spec.global_batch_size, spec.remainder)
    return order


def steps_per_epoch(num_records: int, global_batch_size: int, remainder: str) -> int:
    """Returns T: N / G rounded up (`pad`) or down (`drop`)."""
    if remainder == "drop":
        return num_records // global_batch_size
    return -(-num_records // global_batch_size)


def checked_steps(split: str, num_records: int, global_batch_size: int, remainder: str) -> int:
    """Returns T as `steps_per_epoch`.

    Raises:
      UsageError: an unknown remainder, or no step in an epoch.
    """
    if remainder not in REMAINDERS:
        raise unknown("remainder", str(remainder), REMAINDERS)
    if num_records == 0:
        raise UsageError(f"split {split!r}: has no record")
    steps = steps_per_epoch(num_records, global_batch_size, remainder)
    if steps == 0:
        raise UsageError(
            f"split {split!r}: its {num_records} records do not fill one batch of {global_batch_size} "
            "and remainder='drop' drops the rest; use remainder='pad' or a smaller global_batch_size"
        )
    return steps


def default_streams(decoded_bytes: int, global_batch_size: int, shuffle_bytes: int) -> int:
    """Returns K: 1 where the decoded split fits shuffle_bytes, else the largest divisor of G up to 64."""
    if decoded_bytes <= shuffle_bytes:
        return 1
    return max(k for k in range(1, MAX_STREAMS + 1) if global_batch_size % k == 0)


def replica_rows(replica: int, num_replicas: int, global_batch_size: int) -> tuple[int, int]:
    """Returns the rows [start, stop) of every global batch that a replica gets.

    Raises:
      UsageError: R does not divide G.
    """
    check_replicas(global_batch_size, num_replicas)
    rows = global_batch_size // num_replicas
    return replica * rows, (replica + 1) * rows
