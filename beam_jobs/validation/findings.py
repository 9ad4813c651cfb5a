"""Possible problems with data that match their manifest: equal images, rare classes, odd images."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from beam_jobs.report.card import Doubt
from beam_jobs.validation.near import MOST_BITS, NearTwins
from beam_jobs.validation.twins import MOST_PAIRS, Twin, Twins, split_of_shards
from pipeline.commands.text import count_of, some_of
from pipeline.errors import PipelineError
from pipeline.files.paths import StoragePath
from pipeline.manifest import Manifest, SplitInfo
from pipeline.manifest.manifest import BOXES
from pipeline.random_access import RandomAccess
from pipeline.records.annotation import ShardAnnotations

LEAKS, DUPLICATES, LABELS, NEAR, DRIFT = "leaks", "duplicates", "labels", "near", "drift"
KINDS = (LEAKS, DUPLICATES, LABELS, NEAR, DRIFT)  # values of --fail_on
Places = Sequence[tuple[tuple[int, int], ...]]  # (number of the shard, number of the record) of each of a group
_PICTURED = 12  # pairs on the card, for each finding
_FEW = 10  # records of a class in a split
_RARE = 0.1  # share of the classes' median count
_MOST_NAMED = 5  # classes in one line
_KEPT_EXTREMES = 3  # extremes per kind and side, kept per shard and listed
_MANY_NEAR = 0.1  # pairs per record
_ENOUGH = 100  # images needed to tell which ones are odd
_FENCE = 3  # interquartile ranges beyond the quartiles: Tukey's outer fences
_LEAST_RANGE = 8  # grey levels: if images are nearly all alike, the quartiles are practically equal
_SMALL = 4  # times smaller or larger than the median, by the side of a square of the same area


@dataclasses.dataclass(frozen=True)
class Place:
    """A record: base name of its shard, its number there, its key and its label as text; "" for unknown ones."""

    file: str
    record: int
    key: str = ""
    label: str = ""

    def __str__(self) -> str:
        known = [f"key {self.key!r}"] * bool(self.key) + [f"label {self.label}"] * bool(self.label)
        return f"{self.file}, record {self.record}" + (f" ({', '.join(known)})" if known else "")

    def caption(self, split: str) -> str:
        """Returns the caption of its image on the card."""
        return ", ".join(filter(None, (split, self.label, self.key or f"record {self.record}")))


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that may be wrong with the data.

    Attributes:
      kind: `leaks`, `duplicates`, `labels`, `near` (in two splits), `near_duplicates` (in one), `classes`,
        `brightness`, `sizes`, `boxes` or `points`; against another data set `drift`, `shared` (images in both) or
        `compared` (figures, as they are).
      text: description, with figures.
      count: number of records or classes concerned.
      places: example records, each a pair of records with equal images or a single record.
    """

    kind: str
    text: str
    count: int
    places: tuple[tuple[Place, ...], ...] = ()


@dataclasses.dataclass
class Extremes:
    """The records with the smallest and largest values of something.

    Attributes:
      ends: (value, number of the shard, number of the record), unordered.
    """

    ends: list[tuple[float, int, int]] = dataclasses.field(default_factory=list)

    def add(self, value: float, shard: int, record: int) -> None:
        """Adds a record's value; most values are forgotten again."""
        self.ends.append((value, shard, record))
        if len(self.ends) > 64:
            self.trim()

    def trim(self) -> None:
        """Forgets all but the outermost values."""
        self.ends.sort()
        if len(self.ends) > 2 * _KEPT_EXTREMES:
            self.ends = self.ends[:_KEPT_EXTREMES] + self.ends[-_KEPT_EXTREMES:]

    def outside(self, low: float, high: float) -> list[tuple[float, int, int]]:
        """Returns the kept values below `low` or above `high`, at most a few of each."""
        ordered = sorted(set(self.ends))
        below, above = [e for e in ordered if e[0] < low], [e for e in ordered if e[0] > high]
        return below[:_KEPT_EXTREMES] + above[::-1][:_KEPT_EXTREMES]


def of_twins(found: Iterable[Twins], manifest: Manifest) -> Iterator[tuple[Finding, Places]]:
    """Yields findings about equal images, each with its pairs of (shard, record)."""
    total = sum({part.bucket: part for part in found}.values(), Twins())
    names, splits = list(manifest.splits), list(manifest.splits.values())
    for (one, other), (of_one, of_other) in sorted(total.across.items()):
        parts = [
            f"{n:,} of {names[i]} ({n / splits[i].num_examples:.2%})" for i, n in ((other, of_other), (one, of_one))
        ]
        text = f"{names[one]} and {names[other]} share images, by their pixels: {' and '.join(parts)}"
        yield Finding(LEAKS, text, of_one + of_other), places_of(total, (one, other), splits)
    split_of = split_of_shards(splits)
    for split, count in sorted(total.within.items()):
        pairs = [p for p in total.pairs if not p.is_leak and split_of[p.first[0]] == split]
        repeat = f"({count / splits[split].num_examples:.2%}) {'repeats' if count == 1 else 'repeat'}"
        text = f"{count_of(count, 'record')} of {names[split]} {repeat} the image of an earlier one, by its pixels"
        yield Finding(DUPLICATES, text, count), _places(pairs)
    if total.disputed:
        text = f"{count_of(total.disputed, 'image')} with conflicting labels: records of equal pixels differ"
        yield Finding(LABELS, text, total.disputed), _places([p for p in total.pairs if p.differ])


def of_near(found: NearTwins | None, manifest: Manifest) -> Iterator[tuple[Finding, Any]]:
    """Yields findings about nearly equal images, each with its pairs of (shard, record)."""
    if found is None:
        return
    names, split_of = list(manifest.splits), split_of_shards(manifest.splits.values())
    for (one, other), count in sorted(found.counts.items(), key=lambda item: item[0][0] == item[0][1]):
        pairs = [p for p in found.pairs if {split_of[p.first[0]], split_of[p.second[0]]} == {one, other}]
        least = "at least " if found.is_cut else ""
        where = f"one in {names[one]}, one in {names[other]}" if one != other else f"in {names[one]}"
        text = f"{least}{count_of(count, 'pair')} of nearly equal images, {where}: at most {MOST_BITS} of the 64 bits "
        text += "of their perceptual hashes differ"
        if count > _MANY_NEAR * manifest.num_examples:
            text += "; of digits and drawings so many say little"
        yield Finding(NEAR if one != other else "near_duplicates", text, count), _places(pairs)


def places_of(total: Twins, pair: tuple[int, int], splits: Iterable[SplitInfo]) -> Places:
    """Returns the first records whose images are in both splits of `pair`, given by their numbers."""
    split_of = split_of_shards(splits)
    return _places(p for p in total.pairs if p.is_leak and {split_of[p.first[0]], split_of[p.second[0]]} == {*pair})


def _places(pairs: Iterable[Twin]) -> Places:
    return [(pair.first, pair.second) for pair in pairs][:MOST_PAIRS]


def of_classes(manifest: Manifest) -> Iterator[Finding]:
    """Yields findings about classes with few records in a split."""
    for name, split in manifest.splits.items():
        counts = np.array(split.label_histogram, np.int64)
        if not counts.any():
            continue
        few = np.flatnonzero((counts > 0) & (counts < _FEW) & (counts < _RARE * np.median(counts[counts > 0]))).tolist()
        elsewhere = {i for other in manifest.splits.values() for i, n in enumerate(other.label_histogram) if n}
        none = [i for i in np.flatnonzero(counts == 0).tolist() if i in elsewhere]
        for found, what in ((few, f"fewer than {_FEW} records"), (none, "no record")):
            if found:
                named = [manifest.class_name(i) + f" ({counts[i]})" * bool(counts[i]) for i in found]
                text = f"{count_of(len(found), 'class', 'classes')} of {name} with {what}: "
                yield Finding("classes", text + some_of(named, _MOST_NAMED), len(found))


def of_brightness(levels: Counter[int], extremes: Extremes) -> Iterator[tuple[Finding, Any]]:
    """Yields a finding about images that are far darker or brighter than most.

    Args:
      levels: {mean of an image's pixels, rounded: images}.
      extremes: means of the darkest and brightest images.
    """
    if levels.total() < _ENOUGH:
        return
    values = np.repeat(*(np.array(column) for column in zip(*sorted(levels.items()), strict=True)))
    low, high = np.quantile(values, (0.25, 0.75)).tolist()
    reach = _FENCE * max(high - low, _LEAST_RANGE)
    odd = sum(count for level, count in levels.items() if not low - reach <= level <= high + reach)
    if odd:
        text = f"{count_of(odd, 'image')} far darker or brighter than most (half of them: mean of the pixels {low:.0f} "
        text += f"to {high:.0f}, these: below {low - reach:.0f} or above {high + reach:.0f})"
        found = extremes.outside(low - reach, high + reach)
        yield Finding("brightness", text, odd), [((shard, record),) for _, shard, record in found]


def of_sizes(sizes: Counter[tuple[int, int]], extremes: Extremes) -> Iterator[tuple[Finding, Any]]:
    """Yields a finding about images that are far smaller or larger than most.

    Args:
      sizes: {(height, width): images}.
      extremes: sides of squares of the area of the smallest and largest images.
    """
    if sizes.total() < _ENOUGH or len(sizes) < 2:
        return
    sides = sorted((side_of(*size), count) for size, count in sizes.items())
    middle = float(np.quantile(np.repeat(*(np.array(column) for column in zip(*sides, strict=True))), 0.5))
    odd = sum(count for side, count in sides if not middle / _SMALL <= side <= middle * _SMALL)
    if odd:
        text = f"{count_of(odd, 'image')} more than {_SMALL} times smaller or larger than most, a square of whose area "
        text += f"has sides of {middle:.0f} pixels"
        found = extremes.outside(middle / _SMALL, middle * _SMALL)
        yield Finding("sizes", text, odd), [((shard, record),) for _, shard, record in found]


def of_placed(shards: Sequence[tuple[ShardAnnotations, Mapping[str, Extremes]]]) -> Iterator[tuple[Finding, Any]]:
    """Yields findings about boxes and points that lie outside their image.

    Args:
      shards: counts of each shard, and the records with the most of these.
    """
    for name in shards[0][0].features if shards else ():
        count, unseen = (sum(getattr(each, what)[name] for each, _ in shards) for what in ("counts", "unseen"))
        if unseen:
            what = "have no area in their image" if name == BOXES else "lie outside of their image"
            text = f"{unseen:,} of {count:,} {name} {what}, and are fed with the weight 0"
            most = Extremes([end for _, extremes in shards for end in extremes[name].ends])
            yield Finding(name, text, unseen), [((shard, record),) for _, shard, record in most.outside(0, 0)]


def side_of(height: int, width: int) -> float:
    """Returns the side of a square with the area of an image."""
    return float(np.sqrt(height * width))


def located(
    data_sets: Sequence[tuple[str, StoragePath, Manifest]], found: Iterable[tuple[Finding, Places]]
) -> tuple[Finding, ...]:
    """Returns findings with their records; each record is read once for its key and label, if it can be read.

    Args:
      data_sets: (prefix for names of files, folder, manifest) of each data set that was checked; shards are numbered in
        this order.
      found: findings and their records.
    """
    pairs = list(found)
    wanted = {place for _, groups in pairs for group in groups for place in group}
    named: dict[tuple[int, int], Place] = {}
    first = 0
    for before, data_dir, manifest in data_sets:
        for name, split in manifest.splits.items():
            shards = range(first, first + len(split.shards))
            first += len(shards)
            own = sorted(place for place in wanted if place[0] in shards)
            examples: Any = None
            with contextlib.suppress(PipelineError):  # compressed as one stream, or damaged: then the number must do
                examples = RandomAccess(data_dir.url, name, decode=False) if own else None
            files = list(split.firsts.items())
            for shard, record in own:
                file, begin = files[shard - shards.start]
                named[shard, record] = Place(f"{before}{file}", record)
                with contextlib.suppress(PipelineError):
                    if examples is not None:
                        named[shard, record] = _place(examples[begin + record], f"{before}{file}", record, manifest)
    return tuple(
        dataclasses.replace(finding, places=tuple(tuple(named[place] for place in group) for group in groups))
        for finding, groups in pairs
    )


def doubts_of(data_dir: StoragePath, manifest: Manifest, findings: Iterable[Finding]) -> list[Doubt]:
    """Returns findings as the card shows them, with the images of the first records of each."""
    split_of = {shard.file: name for name, split in manifest.splits.items() for shard in split.shards}
    first_of = {file: first for split in manifest.splits.values() for file, first in split.firsts.items()}

    @functools.cache
    def opened(split: str) -> RandomAccess:
        return RandomAccess(data_dir.url, split, decode=False)

    doubts = []
    for finding in findings:
        groups = []
        for places in finding.places[:_PICTURED]:
            if not all(place.file in split_of for place in places):  # some are in the other data set
                continue
            with contextlib.suppress(PipelineError):  # compressed as one stream, without access by number
                examples = [opened(split_of[place.file])[first_of[place.file] + place.record] for place in places]
                captions = [place.caption(split_of[place.file]) for place in places]
                groups.append([(text, e["image"]) for text, e in zip(captions, examples, strict=True)])
        doubts.append(Doubt(finding.text, groups))
    return doubts


def _place(example: dict[str, Any], file: str, record: int, manifest: Manifest) -> Place:
    label = example.get("label")
    if label is None:
        text = ""
    elif np.ndim(label):
        text = ", ".join(manifest.class_name(i) for i in np.flatnonzero(label).tolist()) or "none"
    else:
        text = manifest.class_name(int(label)) if manifest.features["label"].is_class else f"{float(label):g}"
    return Place(file, record, bytes(example.get("key", b"")).decode(errors="backslashreplace"), text)
