"""What has drifted between two data sets, or versions of one: classes, sizes, pixels, columns, and images in both.

Classes, sizes and the values of columns are compared by the population stability index (PSI), the sum over bins of
(p - q) ln(p / q). By common practice, above 0.25 is "significant change, action required" (Yurdakul and Naranjo,
"Statistical properties of the population stability index", Journal of Risk Model Validation, which also gives its
distribution by chance). Means of pixels may differ by 0.25 standard deviations, and variances by a factor of two
(Rubin, "Using propensity scores to help design observational studies", 2001). Nearly all data are in manifests.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.validation.findings import DRIFT, LEAKS, Finding, Places, places_of
from beam_jobs.validation.twins import Twins
from pipeline.commands.text import count_of, some_of
from pipeline.files.paths import StoragePath
from pipeline.manifest import Manifest, SplitInfo
from pipeline.manifest.columns import Columns
from pipeline.manifest.manifest import rounded_up, sizes_in
from pipeline.manifest.splits import select

MOST_DRIFT = 0.25
COMPARED, SHARED = "compared", "shared"  # kinds of findings other than drift: what was compared, images in both
_VARIANCES = 2.0
_CHANCE = 3.1  # standard deviations: chance alone goes beyond it once in a thousand comparisons
_SURE = 7  # expected records of a class: chance alone leaves out all of them once in a thousand times
_BINS = 10  # bins of a column's numbers: the other data set's deciles
_EXACT_SIZES = 10  # distinct sizes in both data sets; beyond it they are compared by area, in half octaves of the side
_NAMED = 3  # bins and columns named in a line
_MISSING = "missing"
_MANY = 100  # at least this many values, all different, are ids of records

Bins = Mapping[str, int]  # {bin: records}


@dataclasses.dataclass(frozen=True)
class Other:
    """The data set to compare with.

    Attributes:
      data_dir: folder of the data set.
      manifest: manifest of the data set.
      shown: folder, and version if given, as the user named it.
      most: largest PSI, and largest distance of means in standard deviations, that does not count as drift.
    """

    data_dir: StoragePath
    manifest: Manifest
    shown: str
    most: float = MOST_DRIFT


def psi(ours: Bins, other: Bins) -> tuple[float, float, list[str]]:
    """Returns the population stability index of two histograms, its limit by chance, and the bins that add most first.

    Half a record is added to each bin, so that an empty one adds a finite amount. For samples of one population, the
    index of n and m records in b bins is (1/n + 1/m) times a chi-square variable with b - 1 degrees of freedom.
    """
    bins = sorted(one for one in ours.keys() | other.keys() if ours.get(one) or other.get(one))
    counts = np.array([[each.get(one, 0) for one in bins] for each in (ours, other)], np.float64)
    p, q = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    parts = (p - q) * np.log(p / q)
    freedom = len(bins) - 1
    chance = (1 / counts.sum(axis=1)).sum() * (freedom + _CHANCE * math.sqrt(2 * freedom))
    return float(parts.sum()), float(chance), [bins[i] for i in np.argsort(-parts, kind="stable")]


def of_data(data_dir: StoragePath, made: Manifest, other: Other) -> Iterator[Finding]:
    """Yields findings about drift in manifests and columns, and one of kind `COMPARED` with the figures of each split.

    Args:
      data_dir: folder of the data set.
      made: manifest of the data set.
      other: data set to compare with.

    Raises:
      DataError: a column cannot be read.
    """
    there, shown = other.manifest, other.shown
    yield from _of_names(COMPARED, "split", {*made.splits}, {*there.splits}, shown)
    yield from _of_names(DRIFT, "feature", {*made.features}, {*there.features}, shown)
    yield from _of_names(DRIFT, "column", {*made.columns}, {*there.columns}, shown)
    for split in made.splits:
        if split in there.splits:
            yield from _of_split(data_dir, made, split, other)
    yield from _of_pixels(made, other)


def _of_names(kind: str, what: str, ours: set[str], theirs: set[str], shown: str) -> Iterator[Finding]:
    for names, where in ((theirs - ours, f"only in {shown}"), (ours - theirs, f"not in {shown}")):
        if names:
            text = f"{count_of(len(names), what)} {where}: {some_of(sorted(names), _NAMED)}"
            yield Finding(kind, text, len(names))


def _of_split(data_dir: StoragePath, made: Manifest, split: str, other: Other) -> Iterator[Finding]:
    ours, theirs = made.splits[split], other.manifest.splits[split]
    if not (ours.num_examples and theirs.num_examples):
        return
    classes, classes_there = _classes(made, ours), _classes(other.manifest, theirs)
    yield from _of_classes(split, "gained", (classes, theirs.num_examples / ours.num_examples), classes_there, other)
    yield from _of_classes(split, "lost", (classes_there, ours.num_examples / theirs.num_examples), classes, other)
    figures = []
    histograms = {"classes": (classes, classes_there), "sizes of images": _sizes(ours, theirs)}
    for what, (here, there) in (histograms | dict(_columns(data_dir, made, split, other))).items():
        if not (any(here.values()) and any(there.values())):
            continue
        found, chance, bins = psi(here, there)
        figures.append(f"{what} {found:.3f}")
        if found > max(other.most, chance):
            shares = [f"{_share(here, one)} ({_share(there, one)})" for one in bins[:_NAMED]]
            named = [f"{one} {share}" for one, share in zip(bins, shares, strict=False)]
            text = f"{what} of {split} drifted from {other.shown}: PSI {found:.2f}, over {other.most:g}; most of it: "
            yield Finding(DRIFT, text + ", ".join(named), ours.num_examples)
    change = ours.num_examples / theirs.num_examples - 1
    text = f"{split}: {count_of(ours.num_examples, 'record')}, {theirs.num_examples:,} in {other.shown} ({change:+.1%})"
    yield Finding(COMPARED, f"{text}; PSI: {', '.join(figures) or 'of nothing'}", ours.num_examples)


def _of_classes(split: str, what: str, there: tuple[Bins, float], missing: Bins, other: Other) -> Iterator[Finding]:
    """Yields a finding about classes that only one data set has, and that the other does not lack by chance.

    `there` has the first one's histogram and the ratio of the other's records to its own; `missing` is the other's
    histogram, in which known classes may have 0 records.
    """
    counts, factor = there
    only = {name: n for name, n in counts.items() if n and not missing.get(name, 0)}
    sure = {name: n for name, n in only.items() if name not in missing or n * factor > _SURE}
    if sure and any(missing.values()):
        named = [f"{name} ({count:,})" for name, count in sorted(sure.items(), key=lambda item: -item[1])]
        text = f"{split} has {what} {count_of(len(named), 'class', 'classes')} against {other.shown}: "
        yield Finding(DRIFT, text + some_of(named, _NAMED), len(named))


def _share(bins: Bins, one: str) -> str:
    return f"{bins.get(one, 0) / sum(bins.values()):.1%}"


def _classes(made: Manifest, split: SplitInfo) -> Bins:
    return {made.class_name(label): count for label, count in enumerate(split.label_histogram)}


def _sizes(ours: SplitInfo, theirs: SplitInfo) -> tuple[Bins, Bins]:
    if len({*ours.image_sizes, *theirs.image_sizes}) <= _EXACT_SIZES:
        return ours.image_sizes, theirs.image_sizes
    return _areas(ours), _areas(theirs)


def _areas(split: SplitInfo) -> Bins:
    found: Counter[str] = Counter()
    for size, count in sizes_in(split.image_sizes).items():
        height, width = map(rounded_up, size)  # as in a manifest with many sizes
        found[f"about {2 ** (round(math.log2(height * width)) / 2):.0f} pixels"] += count
    return found


def _columns(
    data_dir: StoragePath, made: Manifest, split: str, other: Other
) -> Iterator[tuple[str, tuple[Bins, Bins]]]:
    """Yields (name, histograms) of each column of a split that both have; ids have none."""
    for name in sorted(made.columns.keys() & other.manifest.columns.keys()):
        if name == "label" and made.features["label"].is_class:  # compared as classes
            continue
        sets = (data_dir, made), (other.data_dir, other.manifest)
        one, two = (Columns(place.url, each, select(each, split)) for place, each in sets)
        if not all(split in each.columns[name].files for _, each in sets) or bool(one.names_of(name)) != bool(
            two.names_of(name)
        ):
            continue
        if one.names_of(name):
            yield f"column {name}", (_named(one, name), _named(two, name))
        elif not (_are_ids(one[name]) and _are_ids(two[name])):
            yield f"column {name}", _binned(np.asarray(one[name], np.float64), np.asarray(two[name], np.float64))


def _named(columns: Columns, name: str) -> Bins:
    names = columns.names_of(name)
    codes, counts = np.unique(columns[name], return_counts=True)
    return {
        names[code] if 0 <= code < len(names) else _MISSING: count
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
    }


def _are_ids(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "i" and len(values) >= _MANY and len(np.unique(values)) == len(values)


def _binned(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[Bins, Bins]:
    """Returns two histograms of numbers between the deciles of the second, with one bin for missing numbers."""
    there = theirs[np.isfinite(theirs)]
    edges = np.unique(np.quantile(there, np.linspace(0, 1, _BINS + 1)[1:-1])) if len(there) else np.zeros(0)
    inner = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges.tolist())]
    names = [f"up to {edges[0]:g}", *inner, f"above {edges[-1]:g}"] if len(edges) else ["all"]

    def of(values: NDArray[np.float64]) -> Bins:
        finite = values[np.isfinite(values)]
        counts = np.bincount(np.searchsorted(edges, finite), minlength=len(names)).tolist()
        return dict(zip(names, counts, strict=True)) | {_MISSING: len(values) - len(finite)}

    return of(ours), of(theirs)


def _of_pixels(made: Manifest, other: Other) -> Iterator[Finding]:
    mean, std = np.array(made.image_mean), np.array(made.image_std)
    mean_there, std_there = np.array(other.manifest.image_mean), np.array(other.manifest.image_std)
    if not (len(mean) and len(mean_there)):
        return
    if len(mean) != len(mean_there):
        text = f"images have {count_of(len(mean), 'channel')}, {len(mean_there)} in {other.shown}"
        yield Finding(DRIFT, text, len(mean))
        return
    tiny = 1e-9  # images of a single colour have none
    apart = (mean - mean_there) / np.sqrt((std**2 + std_there**2) / 2 + tiny)
    ratio = (std**2 + tiny) / (std_there**2 + tiny)
    means, stds = (f"{_listed(a)} ({_listed(b)} in {other.shown})" for a, b in ((mean, mean_there), (std, std_there)))
    yield Finding(COMPARED, f"pixels: mean {means}, standard deviation {stds}", len(mean))
    if (abs(apart) > other.most).any():
        text = (
            f"the brightness of images has drifted: mean of the pixels {means}, by {_listed(apart, '+.2f')} standard "
        )
        yield Finding(DRIFT, f"{text}deviations; over {other.most:g}", len(mean))
    if (np.maximum(ratio, 1 / ratio) > _VARIANCES).any():
        text = f"the contrast of images has drifted: standard deviation of the pixels {stds}; variances are more than "
        yield Finding(DRIFT, f"{text}{_VARIANCES:g} times apart", len(mean))


def _listed(values: Iterable[float], form: str = ".1f") -> str:
    return ", ".join(f"{value:{form}}" for value in values)


def of_shared(found: Iterable[Twins], made: Manifest, other: Other) -> Iterator[tuple[Finding, Places]]:
    """Yields findings about equal images in both data sets, each with its pairs of (shard, record).

    Shards and splits of the other data set are numbered after those of this one.
    """
    total = sum({part.bucket: part for part in found}.values(), Twins())
    splits = [*made.splits.items(), *other.manifest.splits.items()]
    for (one, there), counts in sorted(total.across.items()):
        if not one < len(made.splits) <= there:
            continue
        (name, info), (name_there, info_there) = splits[one], splits[there]
        shown_there = f"{name_there} of {other.shown}"
        sides = zip(counts, (name, shown_there), (info, info_there), strict=True)
        parts = [f"{n:,} of {where} ({n / split.num_examples:.2%})" for n, where, split in sides]
        text = f"{name} and {shown_there} share images, by their pixels: {' and '.join(parts)}"
        pairs = places_of(total, (one, there), [split for _, split in splits])
        yield Finding(SHARED if name == name_there else LEAKS, text, sum(counts)), pairs
