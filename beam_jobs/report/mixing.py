"""Whether the labels of a split are mixed over its shards as well as a random assignment of its records would.

Shards of a source that is read in chunks hold whole chunks: if the source is sorted by class, so are they.
"""

from __future__ import annotations

import dataclasses
import math

from beam_jobs.examples.statistics import entropy
from pipeline.manifest import Manifest, SplitInfo

# Simulated random shards of 50 to 5000 records with 2 to 1000 classes, even or not, lack at most 0.06 of what shards
# can lack of the expected entropy (0.02 where classes are even); class-sorted ones nearly all of it.
_MOST_LACKING = 0.1
_DEVIATIONS = 8.0  # of chi-square: beyond chance for the few records of rare classes, too, whose tail is heavier


@dataclasses.dataclass(frozen=True)
class Mixing:
    """How mixed a split is.

    Attributes:
      split: its name.
      bits: entropy of the labels in a shard, mean over all records.
      expected_bits: the same of random shards of these sizes.
      is_bad: whether shards lack over 10% of the entropy that they can lack, beyond chance. They can lack at most all
        of it, or the entropy of a record's shard: which of 2 shards holds a record tells at most 1 bit of its label.
    """

    split: str
    bits: float
    expected_bits: float
    is_bad: bool


def expected_entropy(bits: float, classes: int, collision: float, records: int) -> float:
    """Returns the approximate entropy of the labels of a random sample, in bits; too low rather than too high.

    The larger of two: the entropy of all, less the bias (K - 1) / (2 n ln 2) (Miller 1955, "Note on the bias of
    information estimates"; Madow 1948), which is too low for n < K; and, by Jensen's inequality, -log2 of the expected
    chance that two records of the sample, drawn with replacement, have one class: 1/n + (1 - 1/n) sum p^2.

    Args:
      bits: the entropy of all labels.
      classes: K, the classes that have a record.
      collision: sum of p^2 over the classes.
      records: n, the size of the sample; 1 or more.
    """
    biased = bits - (classes - 1) / (2 * records * math.log(2))
    return max(biased, -math.log2(1 / records + (1 - 1 / records) * collision), 0.0)


def judge(name: str, split: SplitInfo) -> Mixing | None:
    """Returns how mixed a split is; None if there is nothing to mix: one shard, or one class."""
    shards = [shard for shard in split.shards if shard.num_examples and shard.label_entropy is not None]
    bits = entropy(split.label_histogram)
    if len(shards) < 2 or not bits:
        return None
    present = [n for n in split.label_histogram if n]
    total = sum(shard.num_examples for shard in shards)
    collision = sum((n / total) ** 2 for n in present)
    expected = sum(
        shard.num_examples * expected_entropy(bits, len(present), collision, shard.num_examples) for shard in shards
    )
    found = sum(shard.num_examples * (shard.label_entropy or 0.0) for shard in shards)
    mean, expected = found / total, expected / total
    most = min(expected, entropy([shard.num_examples for shard in shards]) or 0.0)
    # The G-test of shard against label: 2 N ln 2 I ~ chi-square of (S - 1)(K - 1), I the bits that one tells of the
    # other; where most of its cells would be empty (n < K), what is expected of random shards is less than that.
    statistic, by_chance = 2 * total * math.log(2) * (bits - mean), 2 * total * math.log(2) * (bits - expected)
    freedom = min((len(shards) - 1) * (len(present) - 1), by_chance)
    beyond_chance = statistic > freedom + _DEVIATIONS * math.sqrt(2 * freedom)
    return Mixing(name, mean, expected, beyond_chance and expected - mean > _MOST_LACKING * most)


def warning(made: Manifest) -> str | None:
    """Returns one line that names the poorly mixed splits, the consequence and the remedy; None if there are none."""
    judged = [judge(name, split) for name, split in made.splits.items()]
    bad = [mixing for mixing in judged if mixing and mixing.is_bad]
    if not bad:
        return None
    found = ", ".join(
        f"{m.split} ({m.bits:.2f} bits of label entropy per shard, {m.expected_bits:.2f} if well mixed)" for m in bad
    )
    remedy = "" if made.options.get("passes", 1) == 2 else "; --passes=2 mixes them row by row"
    return (
        f"the classes are poorly mixed across the shards of {found}: "
        f"unless a trainer shuffles the whole split, its batches hold few classes{remedy}"
    )
