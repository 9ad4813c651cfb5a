"""What a worker says of a shard that it wrote, and the manifest made of all receipts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from beam_jobs.plan import Plan
from beam_jobs.shards import Statistics
from pipeline.errors import DataError
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo

STATISTICS_SPLIT = "train"  # normalisation must not look at the test images


@dataclasses.dataclass(frozen=True)
class Receipt:
    """One finished shard.

    Attributes:
      split, shard: which.
      info: its entry in the manifest.
      statistics: of its examples.
    """

    split: str
    shard: int
    info: ShardInfo
    statistics: Statistics


def make_manifest(plan: Plan, receipts: Iterable[Receipt]) -> Manifest:
    """Returns the manifest of a conversion. Receipts may come in any order, and twice from a retried bundle.

    Raises:
      DataError: a shard's receipt is missing, or two of one shard differ.
    """
    by_element: dict[tuple[str, int], Receipt] = {}
    for receipt in receipts:
        if by_element.setdefault((receipt.split, receipt.shard), receipt) != receipt:
            raise DataError(f"{receipt.info.file}: written twice with different content; did the source change?")
    missing = [name for name, element in zip(plan.file_names, plan.elements, strict=True) if element not in by_element]
    if missing:
        raise DataError(f"{missing[0]}: no worker reported it as written ({len(missing)} missing); run again")
    ordered = [by_element[element] for element in plan.elements]
    mean, std = moments([r.statistics for r in ordered if r.split == STATISTICS_SPLIT])
    return Manifest(
        dataset=plan.source.dataset,
        class_names=plan.source.class_names,
        features={
            "image": Feature("uint8", plan.source.image_shape, "raw"),
            "label": Feature("int64"),
            "key": Feature("string"),
        },
        splits={split: _split_info([r for r in ordered if r.split == split]) for split in plan.num_shards},
        image_mean=mean,
        image_std=std,
        source=plan.source.files,
        options=plan.options,
    )


def moments(statistics: list[Statistics]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns each channel's mean and standard deviation: exact in integers up to the last division.

    With n pixels, sum S and sum of squares Q: mean S / n, standard deviation sqrt(n Q - S^2) / n.
    """
    pixels = sum(part.pixels for part in statistics)
    sums = [sum(channel) for channel in zip(*(part.sums for part in statistics), strict=True)]
    squares = [sum(channel) for channel in zip(*(part.squares for part in statistics), strict=True)]
    mean = tuple(s / pixels for s in sums)
    std = tuple(math.sqrt(pixels * q - s * s) / pixels for s, q in zip(sums, squares, strict=True))
    return mean, std


def _split_info(receipts: list[Receipt]) -> SplitInfo:
    histogram = zip(*(receipt.statistics.label_histogram for receipt in receipts), strict=True)
    return SplitInfo(tuple(receipt.info for receipt in receipts), tuple(sum(counts) for counts in histogram))
