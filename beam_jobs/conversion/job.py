"""What a conversion does on workers: writes shards and their receipts, and at the end the manifest.

A shard is a pure function of the plan and its number, written under a temporary name, so that a retried or doubled
bundle changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from beam_jobs.plan import Plan
from beam_jobs.runs.chain import FOUND, ShardJob
from beam_jobs.shards import key_check, manifest_writer, writer
from beam_jobs.shards.key_check import KeyHashes, Repeated
from beam_jobs.shards.receipts import Receipt


@dataclasses.dataclass(frozen=True)
class Conversion(ShardJob):
    """Writes the shards and the manifest of a plan into its folder; the result is the manifest."""

    plan: Plan

    @property
    def shards(self) -> list[tuple[str, int]]:
        """(split, shard) of every file."""
        return self.plan.elements

    def work(self, shards: Iterable[tuple[str, int]]) -> Iterator[tuple[int, Any]]:
        """Writes shards and yields their receipts, and their keys unless the source guarantees that these differ."""
        for receipt in writer.write_shards(self.plan, shards):
            yield FOUND, receipt
            if not self.plan.source.unique_keys:
                yield from key_check.by_bucket(self.plan.data_dir, receipt.info)

    def repeated(self, hashes: Iterable[KeyHashes]) -> list[Repeated]:
        """Returns the first pair: it fails the conversion."""
        return key_check.repeats(hashes)[:1]

    def finish(self, found: list[Receipt], repeated: list[Repeated]) -> str:
        """Writes the manifest.

        Raises:
          DataError: two records have one key, a receipt is missing, or too many rows are invalid.
        """
        if repeated:
            raise key_check.as_error(self.plan.data_dir, repeated)
        return str(manifest_writer.write_manifest(self.plan, found))
