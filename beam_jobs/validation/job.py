"""What a validation does on workers: checks shards, and at the end writes the report."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from beam_jobs.runs.chain import FOUND, ShardJob
from beam_jobs.shards import key_check
from beam_jobs.shards.key_check import KeyHashes, Repeated
from beam_jobs.storage import write
from beam_jobs.storage.paths import StoragePath
from beam_jobs.validation import dataset, report
from beam_jobs.validation.report import ShardReport
from beam_jobs.validation.shard import check_shard
from pipeline.errors import DataError
from pipeline.manifest import Manifest


@dataclasses.dataclass(frozen=True)
class Validation(ShardJob):
    """Checks a data set; the result is the report.

    Attributes:
      data_dir: the data set's folder.
      manifest: its manifest.
      decodes: whether to check the pixels too.
      report: the file to write the report to.
      marks: a local folder that gets an empty file for each finished shard, named by its number.
    """

    data_dir: StoragePath
    manifest: Manifest
    decodes: bool
    report: StoragePath
    marks: pathlib.Path

    @property
    def shards(self) -> Sequence[int]:
        """The number of every shard."""
        return range(len(self.manifest.shards))

    def work(self, shards: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Checks shards and yields their reports and keys."""
        for number in shards:
            found, keys = check_shard(self.data_dir, self.manifest, number, self.decodes)
            yield FOUND, found
            yield from keys
            with contextlib.suppress(OSError):  # the command is on another machine
                (self.marks / str(number)).touch()

    def repeated(self, hashes: Iterable[KeyHashes]) -> list[Repeated]:
        """Returns all pairs: they are counted."""
        return key_check.repeats(hashes)

    def finish(self, found: list[ShardReport], repeated: list[Repeated]) -> str:
        """Writes the report.

        Raises:
          DataError: it cannot be written from here.
        """
        by_number = {shard.shard: shard for shard in found}
        shards = [by_number[number] for number in self.shards]
        keys = dataset.key_problems(self.data_dir, self.manifest, repeated)
        totals = dataset.total_problems(self.manifest, shards, self.decodes)
        checks = (dataset.tfds_problems, dataset.card_problems, dataset.stray_problems)
        beside = [problem for check in checks for problem in check(self.data_dir, self.manifest)]
        if not self.report.is_remote and not self.report.parent.is_dir():
            raise DataError(
                f"{self.report.parent}: a worker cannot reach this folder; give --report=FILE in one that it can"
            )
        write.publish(self.report, report.combined(shards, [*keys, *totals, *beside]).to_bytes())
        return str(self.report)
