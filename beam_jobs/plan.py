"""What a conversion will write: decided before the first byte, shipped to every worker."""

from __future__ import annotations

import dataclasses
from typing import Any

from beam_jobs import shards
from beam_jobs.config import MAX_SHARDS
from beam_jobs.sources.base import Source
from pipeline import naming
from pipeline.errors import UsageError, unknown
from pipeline.example import MAX_ONE_BYTE

SMALL_SHARD = 16 << 20  # 16 MiB: enough shards for many readers of a small data set
MANY_SHARDS = 64
LARGE_SHARD = 256 << 20  # 256 MiB: a size that object stores and page caches read well


@dataclasses.dataclass(frozen=True)
class Plan:
    """One conversion. Pickles to about a kilobyte.

    Attributes:
      source: what is converted.
      data_dir: absolute path of the folder.
      seed: of the permutation.
      num_shards: {split: number of shards}.
    """

    source: Source
    data_dir: str
    seed: int
    num_shards: dict[str, int]

    @property
    def options(self) -> dict[str, Any]:
        """The manifest's options: all that shapes the bytes besides the source."""
        return {"num_shards": self.num_shards, "seed": self.seed}

    @property
    def elements(self) -> list[tuple[str, int]]:
        """(split, shard) of every file: the elements of the Beam pipeline."""
        return [(split, shard) for split, count in self.num_shards.items() for shard in range(count)]

    @property
    def file_names(self) -> list[str]:
        """The shards' base names, in the order of `elements`."""
        return [naming.shard_name(split, shard, self.num_shards[split]) for split, shard in self.elements]

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards together."""
        return sum(rows * stride(self.source, split) for split, rows in self.source.splits.items())


def stride(source: Source, split: str) -> int:
    """Returns the bytes from one record of a split to the next."""
    height, width, channels = source.image_shape
    return shards.record_stride(height * width * channels, source.key_sizes[split])


def make_plan(source: Source, data_dir: str, seed: int, requested: int | dict[str, int] | None) -> Plan:
    """Returns the plan of a conversion.

    Args:
      source: an open source.
      data_dir: absolute path.
      seed: of the permutation.
      requested: shards of every split, or {split: shards}, or None; a split without a number gets the default.

    Raises:
      UsageError: more shards than examples, a split that the source has not, or more classes than a record can hold.
    """
    if len(source.class_names) > MAX_ONE_BYTE + 1:
        raise UsageError(
            f"--dataset={source.dataset}: has {len(source.class_names)} classes; "
            f"records hold labels 0..{MAX_ONE_BYTE}, so at most {MAX_ONE_BYTE + 1}"
        )
    wanted = requested if isinstance(requested, dict) else dict.fromkeys(source.splits, requested)
    for split in wanted:
        if split not in source.splits:
            raise unknown("--num_shards: split", split, source.splits)
    counts: dict[str, int] = {}
    for split, rows in source.splits.items():
        counts[split] = wanted.get(split) or default_num_shards(rows, rows * stride(source, split))
        if counts[split] > rows:
            raise UsageError(
                f"--num_shards: {counts[split]} shards for the {rows} examples of split {split!r}; at most {rows}"
            )
    return Plan(source, data_dir, seed, counts)


def default_num_shards(num_examples: int, num_bytes: int) -> int:
    """Returns the number of shards of a split.

    Enough that each is at most 16 MiB, up to 64 shards; of a larger split 64, or as many as keep a shard at most
    256 MiB; never more than there are examples.
    """
    small, large = -(-num_bytes // SMALL_SHARD), -(-num_bytes // LARGE_SHARD)
    return max(1, min(small if small <= MANY_SHARDS else max(MANY_SHARDS, large), num_examples, MAX_SHARDS))
