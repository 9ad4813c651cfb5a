"""A conversion as a Beam job: the work on the workers, its progress, and its one or two passes.

A shard is a pure function of the plan and the shard number, and is written under a temporary name, so that a bundle
that is retried or runs twice changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import sources
from beam_jobs.plan import Origin, Plan
from beam_jobs.runs.run import FOUND, Display, ShardJob, run_job
from beam_jobs.shards import keys, manifest_writer, receipts, writer
from beam_jobs.shards.keys import KeyHashes, Repeated
from beam_jobs.shards.receipts import Receipt
from beam_jobs.sink import staging
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.commands.text import count_of
from pipeline.errors import DataError
from pipeline.manifest import Manifest, naming
from pipeline.manifest.columns import NO_COLUMNS

_SECONDS_BETWEEN_REMOTE_LOOKS = 2.0  # object stores charge more for listing than for reading


@dataclasses.dataclass(frozen=True)
class Conversion(ShardJob):
    """Writes a plan's shards and manifest into its folder; the result is the path of the manifest."""

    plan: Plan

    @property
    def shards(self) -> list[tuple[str, int]]:
        """(split, shard) of every file."""
        return self.plan.elements

    def work(self, shards: Iterable[tuple[str, int]]) -> Iterator[tuple[int, Any]]:
        """Writes shards and yields their receipts, and their keys unless the source guarantees unique ones."""
        for receipt in writer.write_shards(self.plan, shards):
            yield FOUND, receipt
            if not self.plan.source.unique_keys:
                yield from keys.by_bucket(self.plan.data_dir, receipt.info)

    def repeated(self, hashes: Iterable[KeyHashes]) -> list[Repeated]:
        """Returns the first pair, which makes the conversion fail."""
        return keys.repeats(hashes)[:1]

    def finish(self, found: list[Receipt], repeated: list[Repeated]) -> str:
        """Writes the manifest.

        Raises:
          DataError: two records share a key, a receipt is missing, or too many rows are invalid.
        """
        if repeated:
            raise keys.as_error(self.plan.data_dir, repeated)
        return str(manifest_writer.write_manifest(self.plan, found))


class Progress(Display):
    """Shows a conversion's progress: source rows that are in finished shards or rejected."""

    def __init__(self, plan: Plan) -> None:
        self._folder = plan.receipts_dir
        self._waiting = {receipts.name_of(name) for name in plan.file_names}
        self._shards = len(self._waiting)
        number = 1 if plan.receipts_dir.name == staging.FIRST_PASS else 2
        self._label = f"pass {number} of 2: " if plan.config.passes == 2 else ""
        self._bytes = self._rejects = 0
        if self._folder.is_remote:
            self.seconds_between_looks = _SECONDS_BETWEEN_REMOTE_LOOKS
        super().__init__(plan.num_rows)

    def text(self) -> str:
        """Returns the progress in one line."""
        rejects = f", {self._rejects:,} rejects" if self._rejects else ""
        return (
            f"{self._label}{self.finished:,} of {count_of(self._shards, 'shard')}, {self.done:,} of "
            f"{count_of(self.total, 'example')}, "
            f"{self._bytes / (1 << 20):,.1f} MiB, {self.rate:,.0f} examples/s{rejects}"
        )

    def _look(self) -> None:
        try:
            present = self._waiting.intersection(self._folder.names())
        except (OSError, DataError):  # a worker will report it
            present = set()
        for name in present:
            if receipt := receipts.load(self._folder / name):
                self._waiting.discard(name)
                self.finished += 1
                self.done += receipt.info.num_examples + receipt.num_rejects
                self._bytes += receipt.info.num_bytes
                self._rejects += receipt.num_rejects


def finished_part(plan: Plan) -> float:
    """Returns the fraction of a plan's work that is already done, 0 to 1; each of two passes counts for one half."""
    found = receipts.in_folder(plan.receipts_dir)
    return sum(receipt.info.num_examples + receipt.num_rejects for receipt in found) / (
        plan.config.passes * plan.num_rows
    )


def run_passes(plan: Plan, options: PipelineOptions) -> None:
    """Writes a plan's shards and manifest, in one or two passes as the plan requires.

    Raises:
      PipelineError: a worker's own error, or Beam's in one line.
    """
    if plan.config.passes == 2:
        plan = _second_pass(plan, _run_first_pass(plan, options))
    run_job(Conversion(plan), options, Progress(plan))


def _run_first_pass(plan: Plan, options: PipelineOptions) -> Manifest:
    folder = plan.receipts_dir / staging.FIRST_PASS
    folder.make_folder()
    config = dataclasses.replace(plan.config, compression="", columns=NO_COLUMNS)
    first = dataclasses.replace(plan, data_dir=folder, receipts_dir=folder, config=config)
    try:
        run_job(Conversion(first), options, Progress(first))
        (plan.data_dir / naming.REJECTS).remove()  # left by an earlier run
    finally:
        staging.move_rejects(folder, plan.data_dir)  # before the manifest, which is written last
    return manifest.load(folder)


def _second_pass(plan: Plan, made: Manifest) -> Plan:
    encoding = "raw" if made.features["image"].encoding == "raw" else "source"
    images = dataclasses.replace(plan.sample.images, encoding=encoding, size=None)
    return dataclasses.replace(
        plan,
        source=sources.open_source(SourceOptions("tfrecord", (plan.receipts_dir / staging.FIRST_PASS).url)),
        sample=dataclasses.replace(plan.sample, images=images, source_bytes={}),
        origin=Origin(made.source, {name: split.num_rejects for name, split in made.splits.items()}),
    )
