"""Slices of splits, in TensorFlow Datasets' notation: `train`, `train[:90%]`, `train[1000:]`, `train[:10%]+test`."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable

from pipeline.errors import UsageError
from pipeline.manifest.manifest import Manifest, ShardInfo

_PART = re.compile(r"(?P<name>\w+)(\[(?P<start>-?\d{1,18}%?)?:(?P<stop>-?\d{1,18}%?)?\])?")
EVALUATED = ("test", "validation", "val", "valid", "dev", "eval")  # names of splits to evaluate on, best first


@dataclasses.dataclass(frozen=True)
class Segment:
    """Records start..stop-1 of one shard."""

    shard: ShardInfo
    start: int
    stop: int

    @property
    def num_examples(self) -> int:
        """Records of the shard that are selected."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Selection:
    """The records that a split argument selects, in the manifest's order. Record i among them has id i.

    Attributes:
      text: split argument, without spaces.
      segments: nonempty parts of shards, in order.
    """

    text: str
    segments: tuple[Segment, ...]

    @property
    def num_examples(self) -> int:
        """Records in all segments."""
        return sum(segment.num_examples for segment in self.segments)

    def locate(self, record: int) -> tuple[str, int]:
        """Returns (shard file, row in it) of a record id.

        Raises:
          IndexError: the id is not in 0..num_examples-1.
        """
        left = record
        for segment in self.segments:
            if 0 <= left < segment.num_examples:
                return segment.shard.file, segment.start + left
            left -= segment.num_examples
        raise IndexError(f"record {record} of {self.text!r}: ids are 0..{self.num_examples - 1}")


def select(manifest: Manifest, text: str) -> Selection:
    """Returns the records that `text` selects.

    Percentages are rounded to the nearest record, halves to even, like TFDS's `closest`. A negative bound counts from
    the end. `+` joins parts.

    Raises:
      UsageError: `text` is not a slice, names an unknown split, selects nothing, or selects a record twice.
    """
    if not isinstance(text, str):
        raise UsageError(f"split={text!r}: must be a text, such as 'train' or 'train[:90%]'")
    segments: list[Segment] = []
    for part in "".join(text.split()).split("+"):
        match = _PART.fullmatch(part)
        if not match:
            raise UsageError(f"split {text!r}: {part!r} is not a slice; write train, train[:90%], train[1000:] or a+b")
        shards = manifest.split(match["name"]).shards
        total = sum(shard.num_examples for shard in shards)
        start, stop = _bound(match["start"], 0, total, text), _bound(match["stop"], total, total, text)
        segments += _cut(shards, start, stop)
    if not segments:
        raise UsageError(f"split {text!r}: selects no record")
    for one, other in itertools.pairwise(sorted(segments, key=lambda segment: (segment.shard.file, segment.start))):
        if one.shard.file == other.shard.file and other.start < one.stop:
            raise UsageError(f"split {text!r}: selects record {other.start} of {one.shard.file} twice")
    return Selection("".join(text.split()), tuple(segments))


def to_evaluate(splits: Iterable[str], trained: Collection[str]) -> str | None:
    """Returns the default split to evaluate on: one with a usual name, or the only one that is not trained on."""
    others = [name for name in splits if name not in trained]
    named = [name for name in EVALUATED if name in others]
    return named[0] if named else others[0] if len(others) == 1 else None


def folds(count: int) -> list[str]:
    """Returns the names of folds for cross-validation."""
    return [f"fold{number}" for number in range(count)]


def of_folds(manifest: Manifest) -> tuple[str, str] | None:
    """Returns the splits to train and to evaluate on in a data set of folds: all but the last one, and the last one.

    Returns None if the data set has no folds.
    """
    *first, last = folds(manifest.options.get("folds", 0)) or [""]
    return ("+".join(first), last) if {*first, last} == manifest.splits.keys() else None


def names_of(text: str) -> list[str]:
    """Returns the names of the splits in a split argument; empty if it is not valid."""
    parts = [_PART.fullmatch(part) for part in "".join(text.split()).split("+")]
    return [match["name"] for match in parts if match]


def _bound(text: str | None, default: int, total: int, split: str) -> int:
    if text is None:
        return default
    percent = text.endswith("%")
    value = int(text.rstrip("%"))
    if percent:
        if abs(value) > 100:
            raise UsageError(f"split {split!r}: {text} is not within -100% to 100%")
        value = round(value * total / 100)
    if abs(value) > total:
        raise UsageError(f"split {split!r}: bound {text} is outside its {total} records")
    return value + total if text.startswith("-") else value


def _cut(shards: tuple[ShardInfo, ...], start: int, stop: int) -> list[Segment]:
    segments, first = [], 0
    for shard in shards:
        low, high = max(start - first, 0), min(stop - first, shard.num_examples)
        if low < high:
            segments.append(Segment(shard, low, high))
        first += shard.num_examples
    return segments
