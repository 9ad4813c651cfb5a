"""Compares the manifest's totals with what its shards hold, where all of them could be read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from beam_jobs.examples.statistics import moments
from beam_jobs.shards.manifest_writer import STATISTICS_SPLIT, size_histogram
from beam_jobs.validation.report import Problem, ShardReport
from pipeline.manifest import Manifest, SplitInfo, naming

_MOST_NAMED = 3  # labels or sizes in one line
_EXACT, _LOSSY = 1e-9, 0.1  # grey values: releases of the JPEG library decode a little differently


def problems(manifest: Manifest, shards: Sequence[ShardReport], decodes: bool) -> Iterator[Problem]:
    """Yields what is wrong with the manifest's totals.

    Args:
      manifest: the data set.
      shards: the reports, in the manifest's order.
      decodes: whether the pixels were checked.
    """
    by_split, first = {}, 0
    for name, split in manifest.splits.items():
        by_split[name] = shards[first : first + len(split.shards)]
        first += len(split.shards)
        if all(shard.is_whole for shard in by_split[name]):
            for text in _split_problems(split, by_split[name]):
                yield _problem(len(shards), f"split {name!r}: {text}")
    trained = by_split.get(STATISTICS_SPLIT, shards)
    if decodes and all(shard.is_whole for shard in trained):
        for text in _pixel_problems(manifest, trained):
            yield _problem(len(shards), text)


def _problem(shard: int, text: str) -> Problem:
    return Problem(shard, -1, naming.MANIFEST, "", text)


def _split_problems(split: SplitInfo, shards: Sequence[ShardReport]) -> Iterator[str]:
    labels: Counter[int] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    for shard in shards:
        labels.update(shard.labels)
        sizes.update(shard.sizes)
    said = {label: count for label, count in enumerate(split.label_histogram) if count}
    if said != labels:
        yield f"label_histogram says {_differences(said, labels, 'label ')}"
    found = size_histogram(sizes)
    if sizes and split.image_sizes and found != split.image_sizes:
        yield f"image_sizes says {_differences(split.image_sizes, found, '')}"


def _differences(said: dict, found: dict, what: str) -> str:
    names = sorted(name for name in said.keys() | found.keys() if said.get(name, 0) != found.get(name, 0))
    named = [f"{said.get(n, 0)} examples of {what}{n}, there are {found.get(n, 0)}" for n in names[:_MOST_NAMED]]
    more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return "; ".join([*named, *more])


def _pixel_problems(manifest: Manifest, shards: Sequence[ShardReport]) -> Iterator[str]:
    sums = [shard.sums for shard in shards if shard.sums and shard.sums.pixels]
    if not sums:
        return
    tolerance = _EXACT if manifest.features["image"].encoding in ("raw", "png") else _LOSSY
    for name, said, found in zip(
        ("image_mean", "image_std"), (manifest.image_mean, manifest.image_std), moments(sums), strict=True
    ):
        if not all(math.isclose(a, b, rel_tol=_EXACT, abs_tol=tolerance) for a, b in zip(said, found, strict=True)):
            yield f"{name} says {_numbers(said)}, the pixels' is {_numbers(found)}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
