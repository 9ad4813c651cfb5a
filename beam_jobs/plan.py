"""What a conversion will write: decided before the first byte, shipped to every worker."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs import sample, sources
from beam_jobs.config import ConvertConfig
from beam_jobs.flag_values import MAX_SHARDS
from beam_jobs.sample import Sample
from beam_jobs.shard_rows import shard_rows
from beam_jobs.sources import resplit
from beam_jobs.sources.base import Source
from beam_jobs.storage.paths import StoragePath
from pipeline import manifest
from pipeline.commands.text import count_of
from pipeline.errors import UsageError, unknown
from pipeline.manifest import SourceFile, naming

SMALL_SHARD = 16 << 20  # 16 MiB: enough shards for many readers of a small data set
MANY_SHARDS = 64


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the rows of a second pass came from.

    Attributes:
      files: the files of the first pass's source.
      num_rejects: {split: rows of that source that are in no shard}.
    """

    files: tuple[SourceFile, ...]
    num_rejects: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Plan:
    """One conversion. Pickles to a few kilobytes.

    Attributes:
      source: the source to convert.
      data_dir: the folder that shards and manifest are written to.
      receipts_dir: the folder that the shards' receipts are written to.
      config: the options that the user gave.
      sample: how images are stored, and estimates of sizes and time.
      num_shards: {split: number of shards}.
      origin: where the rows of a second pass came from; else None.
    """

    source: Source
    data_dir: StoragePath
    receipts_dir: StoragePath
    config: ConvertConfig
    sample: Sample
    num_shards: dict[str, int]
    origin: Origin | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The manifest's options: all that shapes the bytes besides the source."""
        return {"num_shards": self.num_shards, "seed": self.config.seed, **self.config.shaping_flags}

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of all that shapes the bytes: two plans with the same digest write the same shards."""
        files = [dataclasses.asdict(file) for file in self.source.files]
        content = [self.format_version, self.source.dataset, self.source.class_names, files, self.options]
        images = [*dataclasses.astuple(self.sample.images), self.config.compression]
        return hashlib.sha256(json.dumps([*content, images], sort_keys=True).encode()).hexdigest()

    @property
    def format_version(self) -> int:
        """Of the manifest: an earlier release cannot read tables of members."""
        return manifest.MEMBERS_VERSION if self.config.compression else manifest.FORMAT_VERSION

    @property
    def elements(self) -> list[tuple[str, int]]:
        """(split, shard) of every file: the elements of the Beam pipeline."""
        return [(split, shard) for split, count in self.num_shards.items() for shard in range(count)]

    @property
    def file_names(self) -> list[str]:
        """The shards' base names, in the order of `elements`."""
        return [self.file_name(split, shard) for split, shard in self.elements]

    @property
    def num_rows(self) -> int:
        """Rows of the source, over all splits."""
        return sum(self.source.splits.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards together, before compression; an estimate if records differ in length."""
        return round(sum(rows * self.sample.record_bytes[split] for split, rows in self.source.splits.items()))

    def rows_at_once(self, split: str) -> int:
        """Returns how many rows of the source are read at a time: as many as fit into `max_shard_bytes`."""
        return max(1, int(self.config.max_shard_bytes / max(1.0, self.sample.source_bytes.get(split, 1.0))))

    def file_name(self, split: str, shard: int) -> str:
        """Returns the base name of a shard."""
        return naming.shard_name(split, shard, self.num_shards[split], self.config.compression)

    def rows(self, split: str, shard: int) -> NDArray[np.int64]:
        """Returns the source's rows of a shard, int64 (n,), in the order they are written in."""
        rows, chunks = self.source.splits[split], self.source.chunks(split)
        return shard_rows(self.config.seed, split, rows, chunks, shard, self.num_shards[split])


def make_plan(config: ConvertConfig, data_dir: StoragePath) -> Plan:
    """Opens the source, reads a sample of it and returns the plan of its conversion into a folder.

    Raises:
      PipelineError: the source or a flag cannot work.
    """
    source = resplit.resplit(sources.open_source(config.source_options), config.split_fractions)
    taken = sample.take(source, config.image_encoding, config.size, config.channels, config.max_rejects)
    return Plan(
        source=source,
        data_dir=data_dir,
        receipts_dir=data_dir,
        config=config,
        sample=taken,
        num_shards=shard_counts(source, taken, config.shards_by_split, config.max_shard_bytes),
    )


def shard_counts(
    source: Source, sample: Sample, requested: int | dict[str, int] | None, max_shard_bytes: int
) -> dict[str, int]:
    """Returns {split: number of shards}.

    Args:
      source: an open source.
      sample: of its records.
      requested: shards of every split, or {split: shards}, or None; a split without a number gets the default.
      max_shard_bytes: of the largest shard.

    Raises:
      UsageError: more shards than examples, shards that would be too large, or a split that the source does not have.
    """
    wanted = requested if isinstance(requested, dict) else dict.fromkeys(source.splits, requested)
    for split in wanted:
        if split not in source.splits:
            raise unknown("--num_shards: split", split, source.splits)
    counts: dict[str, int] = {}
    for split, rows in source.splits.items():
        num_bytes = round(rows * sample.record_bytes[split])
        counts[split] = wanted.get(split) or default_num_shards(rows, num_bytes, max_shard_bytes)
        if counts[split] > rows:
            raise UsageError(
                f"--num_shards: {counts[split]} shards for {count_of(rows, 'example')} of split "
                f"{split!r}; at most {rows}"
            )
        if num_bytes > counts[split] * max_shard_bytes:
            raise UsageError(
                f"--num_shards: {count_of(counts[split], 'shard')} of split {split!r} would have about "
                f"{num_bytes // counts[split]} bytes each, over --max_shard_bytes={max_shard_bytes}; "
                f"give {-(-num_bytes // max_shard_bytes)} or more"
            )
    return counts


def default_num_shards(num_examples: int, num_bytes: int, max_shard_bytes: int) -> int:
    """Returns the number of shards of a split.

    Enough that each is at most 16 MiB, up to 64 shards; of a larger split 64, or as many as keep a shard at most
    `max_shard_bytes` (a quarter more, as records may differ in length); never more than there are examples.
    """
    small, large = -(-num_bytes // min(SMALL_SHARD, max_shard_bytes)), -(-num_bytes * 5 // (4 * max_shard_bytes))
    return max(1, min(small if small <= MANY_SHARDS else max(MANY_SHARDS, large), num_examples, MAX_SHARDS))
