"""The arguments of the order of examples, and their consequences for the whole job (docs/order.md).

Positions 0..N-1 of an epoch are cut into K streams, and each stream into W windows, which are permuted one by one. Step
t takes positions tq..(t+1)q-1 of every stream, with q = G / K. `pipeline.order.feed` plans the rows that they fill.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError, unknown
from pipeline.files.fields import OPTIONAL, as_json
from pipeline.order.sharding import (  # noqa: F401, some are re-exported
    REMAINDERS,
    SHUFFLE_BYTES,
    check_replicas,
    check_streams,
    divisors,
)
from pipeline.order.shares import Segments, Shares, segments_text, unit_of, with_unit
from pipeline.order.views import Intervals, Times, covers, skips_text

ORDER_VERSION = 1
MAX_STREAMS = 64  # more readers do not help a job, and leave fewer divisors of G
STREAM_ROWS = 128  # rows per stream in very large batches, so that many workers need not share streams
STREAM_BYTES = 1 << 20  # 1 MiB of a stream's window: one request to an object store
MAX_STEP = 1 << 62  # the end of an endless run

I64 = NDArray[np.int64]
_SKIPS = "skip_steps"
AHEAD = (_SKIPS, "schedule")  # fields that may differ in steps still ahead
_OMITTED = ("view", _SKIPS)  # fields that are not stored if empty
MIXTURE_VERSION = 1  # version of the rules here, in `pipeline.resolved` and in `pipeline.batch.compose`


class _Stored:
    """Base of both kinds of specs.

    Attributes:
      skip_steps: (first, end) of ranges of global steps that are not trained on.
    """

    skip_steps: Intervals

    def is_skipped(self, step: int) -> bool:
        """Returns whether a global step is not trained on."""
        return covers(self.skip_steps, step)

    def fields(self) -> dict[str, Any]:
        """Returns the fields that are stored."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Returns the spec as one line of JSON with sorted keys."""
        return json.dumps(self.fields(), sort_keys=True)

    @property
    def digest(self) -> str:
        """SHA-256 of `to_json()`, hexadecimal, without the `AHEAD` fields, as future steps may change."""
        rest = {name: value for name, value in self.fields().items() if name not in AHEAD}
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()

    def later_changes(self, other: dict[str, Any], step: int) -> str | None:
        """Returns text about `AHEAD` fields of a stored spec that only differ from a step on; None if no field does."""
        mine, found = self.fields(), []
        for name in AHEAD:
            here, there = (_before(name, fields, MAX_STEP) for fields in (mine, other))
            if here != there and _before(name, mine, step) == _before(name, other, step):
                found.append(f"{name} was {there}, is {here}, which differ only from step {step} on")
        return "; ".join(found) or None


@dataclasses.dataclass(frozen=True)
class OrderSpec(_Stored):
    """The arguments of the order. Two runs with equal specs see the same examples at the same steps.

    Attributes:
      manifest_digest: identity of the data (`Manifest.digest`).
      split: split argument, including slices.
      seed: seed of every permutation and augmentation.
      global_batch_size: G, batch rows over all replicas.
      streams: K.
      shuffle_bytes: number of decoded bytes that the windows of all streams may take together.
      remainder: `pad` or `drop`.
      training: whether records are permuted; otherwise every permutation is the identity, and K = 1.
      record_bytes: number of bytes of an example in a window.
      version: version of the rules in this module.
      view: choice of records and content of its columns, as text; empty if each record occurs once.
      skip_steps: (first, end) of global steps that are not trained on.

    A spec without a view or skipped steps is stored without these two fields, as in earlier releases.
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
    view: str = dataclasses.field(default="", metadata={OPTIONAL: True})
    skip_steps: Intervals = dataclasses.field(default=(), metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip_steps", tuple((first, stop) for first, stop in self.skip_steps))  # not lists

    def fields(self) -> dict[str, Any]:
        """Returns the fields that are stored."""
        found: dict[str, Any] = as_json(self)
        return found

    def differences(self, other: dict[str, Any], step: int | None = None) -> dict[str, tuple[Any, Any]]:
        """Returns {field: (here, other's)} for the fields in which a stored spec differs.

        Args:
          other: fields of the stored spec.
          step: global step from which a run resumes; steps to skip may differ from there on. None if they must not
            differ.
        """
        if "sources" in other:  # a mixture
            mine, begun = _only_begun(self.fields(), step), _only_begun(other, step)
            return _differing(mine, begun, step) if mine and begun else {"sources": (1, other["sources"])}
        return _differing(self.fields(), other, step)


def _only_begun(fields: dict[str, Any], step: int | None) -> dict[str, Any] | None:
    """Returns the fields of a spec whose sources take turns, without sources that begin at a step or later.

    A single data set counts as the only source. Returns None if sources do not take turns, or no step is given.
    """
    if "sources" not in fields:
        numbered = {f"source 0: {name}": value for name, value in fields.items() if name != _SKIPS}
        skips = {_SKIPS: fields[_SKIPS]} if fields.get(_SKIPS) else {}
        return {**numbered, **skips, "turns": [0]} if step is not None else None
    segments = fields.get("schedule") or ()
    turns = [[source for source, count in enumerate(rows) if count] for _, rows in segments]
    if step is None or turns != [[number] for number in range(fields["sources"])]:
        return None
    starts = [int(first) for first, _ in segments if not first or first < step]
    kept = tuple(f"source {number}: " for number in range(len(starts)))
    own = {name: value for name, value in fields.items() if name.startswith(kept) or name == _SKIPS}
    return {**own, "turns": starts}


def _differing(mine: dict[str, Any], other: dict[str, Any], step: int | None) -> dict[str, tuple[Any, Any]]:
    other = {name: value for name, value in other.items() if value or name not in _OMITTED}
    names = sorted((mine.keys() | other.keys()) - set(AHEAD))
    found = {name: (mine.get(name), other.get(name)) for name in names if mine.get(name) != other.get(name)}
    for name in AHEAD:
        here, there = (_before(name, fields, MAX_STEP if step is None else step) for fields in (mine, other))
        if here != there:
            found[name] = here, there
    return found


def _before(name: str, fields: dict[str, Any], step: int) -> str:
    """Returns, as text, the part of an `AHEAD` field before a step."""
    if name == _SKIPS:
        skips = ((int(first), min(int(stop), step)) for first, stop in fields.get(name, ()))
        return skips_text(tuple(one for one in skips if one[0] < step))
    segments = ((int(first), tuple(map(int, rows))) for first, rows in fields.get(name, ()))
    return segments_text(tuple(one for one in segments if one[0] < step))


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of one selection of records.

    Attributes:
      counts: number of records in each segment (a shard or its selected part), in manifest order; zeros allowed.
      global_batch_size, streams, remainder, seed, training: as in the spec.
      windows: W, the number of windows per stream.
      times: number of times that each record of a view occurs in an epoch; None if each occurs once.
      skip_steps: (first, end) of ranges of global steps whose rows have weight 0.
    """

    counts: tuple[int, ...]
    global_batch_size: int
    streams: int
    windows: int
    remainder: str
    seed: int
    training: bool
    times: Times | None = None
    skip_steps: Intervals = ()

    @functools.cached_property
    def num_records(self) -> int:
        """N, the number of records in an epoch: the selection's, or with a view the sum of their occurrences."""
        return self.num_stored if self.times is None else self.times.total

    @functools.cached_property
    def num_stored(self) -> int:
        """Number of records in the selection."""
        return sum(self.counts)

    @property
    def repeats(self) -> bool:
        """Whether a record may occur more than once in an epoch."""
        return self.times is not None and self.times.repeats

    @functools.cached_property
    def count_array(self) -> I64:
        """`counts` as int64 (S,)."""
        return np.array(self.counts, np.int64)

    @property
    def rows_per_stream(self) -> int:
        """q, the number of rows that a stream fills in each global batch."""
        return self.global_batch_size // self.streams

    @property
    def steps_per_epoch(self) -> int:
        """T."""
        return steps_per_epoch(self.num_records, self.global_batch_size, self.remainder)

    def stream_bounds(self) -> I64:
        """Returns the first position of each stream, and the end of the last: int64 (K + 1,)."""
        return np.arange(self.streams + 1, dtype=np.int64) * self.num_records // self.streams


def make_order(spec: OrderSpec, counts: tuple[int, ...], record_bytes: int, times: Times | None = None) -> Order:
    """Returns the order of segments with `counts` records of `record_bytes` each, for a spec and its resolved view.

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
    longest = -(-(sum(counts) if times is None else times.total) // spec.streams)
    windows = max(1, -(-longest // capacity))
    order = Order(
        counts,
        spec.global_batch_size,
        spec.streams,
        windows,
        spec.remainder,
        spec.seed,
        spec.training,
        times,
        spec.skip_steps,
    )
    checked_steps(spec.split, order.num_records, spec.global_batch_size, spec.remainder, spec.view)
    return order


def steps_per_epoch(num_records: int, global_batch_size: int, remainder: str) -> int:
    """Returns T: N / G rounded up (`pad`) or down (`drop`)."""
    if remainder == "drop":
        return num_records // global_batch_size
    return -(-num_records // global_batch_size)


def checked_steps(split: str, num_records: int, global_batch_size: int, remainder: str, view: str = "") -> int:
    """Returns T, like `steps_per_epoch`.

    Raises:
      UsageError: the remainder is unknown, or an epoch has no step.
    """
    if remainder not in REMAINDERS:
        raise unknown("remainder", str(remainder), REMAINDERS)
    if num_records == 0:
        raise UsageError(f"split {split!r}: has no record")
    steps = steps_per_epoch(num_records, global_batch_size, remainder)
    if steps == 0:
        raise UsageError(
            f"split {split!r}: its {num_records} records{' of the view ' * bool(view)}{view} do not fill one batch of "
            f"{global_batch_size} "
            "and remainder='drop' drops the rest; use remainder='pad' or a smaller global_batch_size"
        )
    return steps


def default_streams(
    num_records: int,
    record_bytes: int,
    num_shards: int,
    global_batch_size: int,
    shuffle_bytes: int,
    in_pairs: bool = False,
) -> int:
    """Returns K: 1 if the decoded split fits shuffle_bytes, else the largest divisor of G up to 64.

    For batches of more than 8,192 rows it may be up to G / 128, but no more than the number of shards, and such that
    each window has 1 MiB. If rows are mixed in pairs, it is a divisor of G / 2.
    """
    if num_records * record_bytes <= shuffle_bytes:
        return 1
    most = min(global_batch_size // STREAM_ROWS, num_shards, shuffle_bytes // max(record_bytes, STREAM_BYTES))
    divided = global_batch_size // 2 if in_pairs and global_batch_size > 1 else global_batch_size
    return max(k for k in divisors(divided) if k <= max(most, MAX_STREAMS))


@dataclasses.dataclass(frozen=True)
class MixtureSpec(_Stored):
    """The arguments of the order of several sources.

    Attributes:
      parts: spec of each source; its `global_batch_size` is its share of G, or the unit of a schedule, in which case
        its `skip_steps` count units.
      schedule: (first step, rows of each source) of each segment; empty if all steps have the same rows.
      skip_steps: (first, end) of ranges of global steps that are not trained on.
    """

    parts: tuple[OrderSpec, ...]
    schedule: Segments = ()
    skip_steps: Intervals = ()

    @property
    def shares(self) -> Shares:
        """Number of rows of each source in a step."""
        units = tuple(part.global_batch_size for part in self.parts)
        return Shares(self.schedule or ((0, units),), units)

    @property
    def global_batch_size(self) -> int:
        """G."""
        return sum(self.shares.rows_at(0))

    def differences(self, other: dict[str, Any], step: int | None = None) -> dict[str, tuple[Any, Any]]:
        """Returns {field: (here, other's)} for the fields in which a stored spec differs, as in `OrderSpec`."""
        mine = self.fields()
        if mine["sources"] != other.get("sources", 1) or self.shares.take_turns:
            here, there = _only_begun(mine, step), _only_begun(other, step)
            if here and there:
                return _differing(here, there, step)
        if other.get("sources", 1) != mine["sources"]:
            return {"sources": (mine["sources"], other.get("sources", 1))}
        found = _differing(mine, other, step)
        if self.schedule and other.get("schedule"):
            sizes = [found.pop(f"source {number}: global_batch_size", None) for number in range(len(self.parts))]
            if pair := next(filter(None, sizes), None):
                found = {"unit of the schedule": (self._unit_text(pair[1], step), f"{pair[1]} rows"), **found}
        return found

    def _unit_text(self, wanted: int, step: int | None) -> str:
        """Returns text about this schedule's unit, and how to give it the wanted one."""
        near = with_unit(self.schedule, wanted, MAX_STEP if step is None else step)
        like = f", such as {segments_text(near)}" if near and near != self.schedule else ""
        return (
            f"{unit_of(self.schedule)}; the rows of all sources and segments must have {wanted} as their greatest "
            f"common divisor{like}"
        )

    def fields(self) -> dict[str, Any]:
        """Returns the fields that are stored."""
        each = {
            f"source {number}: {name}": value
            for number, part in enumerate(self.parts)
            for name, value in part.fields().items()
            if name != _SKIPS
        }
        ahead = {name: getattr(self, name) for name in AHEAD if getattr(self, name)}
        return {"mixture_version": MIXTURE_VERSION, "sources": len(self.parts), **each, **ahead}


Spec: TypeAlias = OrderSpec | MixtureSpec


def times_read(streams: int, workers: int) -> float:
    """Returns how often all workers together read the split in an epoch: 1 if no two share a stream.

    Workers and streams cut the global batch at W - 1 and K - 1 rows, and gcd(W, K) - 1 of these cuts coincide. So there
    are W + K - gcd(W, K) pairs of a worker and a stream that it reads.
    """
    return (workers + streams - math.gcd(workers, streams)) / streams


def streams_read_once(global_batch_size: int, streams: int, workers: int) -> int:
    """Returns the number of streams nearest to K for which no two workers share a stream; W must divide G."""
    return min((workers * k for k in divisors(global_batch_size // workers)), key=lambda k: (abs(k - streams), k))


def sharing_note(spec: OrderSpec, order: Order, workers: int) -> str | None:
    """Returns a note on how often the split is read, with flags that would make it read once.

    Returns None if it is already read once or kept in memory, or this is an evaluation.
    """
    times = times_read(spec.streams, workers)
    if times == 1 or not spec.training or (order.windows == 1 and order.streams == 1):
        return None
    better = streams_read_once(spec.global_batch_size, spec.streams, workers)
    needed = better * spec.record_bytes
    pool = f" --shuffle_bytes={needed}" if needed > spec.shuffle_bytes else ""
    return (
        f"{workers:,} workers with --streams={spec.streams} read the split {times:,.2f} times per epoch all together; "
        f"--streams={better}{pool} (another order) reads it once"
    )
