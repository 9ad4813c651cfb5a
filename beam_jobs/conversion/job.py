"""The Beam pipeline: one linear chain, which every runner can run.

    shard numbers -> Reshuffle -> make shards -> group by bucket -> find repeated keys -> one list -> write the manifest

Elements are lists of shard numbers, receipts and hashes of keys; no pixel goes through a shuffle. A shard is a pure
function of the plan and its number, written under a temporary name, so a retried or doubled bundle changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from beam_jobs.plan import Plan
from beam_jobs.runs import runners
from beam_jobs.shards import key_check, manifest_writer, writer
from beam_jobs.shards.key_check import KeyHashes, Repeated
from beam_jobs.shards.receipts import Receipt

_RECEIPTS = -1  # the bucket of the receipts; those of keys are 0 to 255


class ConvertDataset(beam.PTransform):
    """Writes the shards and the manifest of a plan into its folder; the only output element is the manifest's path."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def expand(self, pbegin: beam.Pipeline) -> beam.PCollection:
        """Builds the chain."""
        # One element per worker: it makes the next of its shards while it writes one.
        elements = self._plan.elements
        step = runners.workers(pbegin.pipeline) or len(elements)
        parts = [elements[start::step] for start in range(min(step, len(elements)))]
        return (
            pbegin
            | "ShardNumbers" >> beam.Create(parts, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "MakeShards" >> beam.ParDo(_MakeShards(self._plan))
            | "Group" >> beam.GroupByKey()
            | "CheckKeys" >> beam.ParDo(_CheckGroup())
            | "Gather" >> beam.CombineGlobally(beam.combiners.ToListCombineFn()).without_defaults()
            | "WriteManifest" >> beam.ParDo(_WriteManifest(self._plan))
        )


class _MakeShards(beam.DoFn):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, element: list[tuple[str, int]]) -> Iterator[tuple[int, Any]]:
        for receipt in writer.write_shards(self._plan, element):
            yield _RECEIPTS, receipt
            if not self._plan.source.unique_keys:
                yield from key_check.by_bucket(self._plan.data_dir, receipt.info)


class _CheckGroup(beam.DoFn):
    def process(self, element: tuple[int, Iterable[Receipt | KeyHashes]]) -> Iterator[Receipt | Repeated]:
        bucket, values = element
        if bucket == _RECEIPTS:
            yield from values  # type: ignore[misc]
        elif repeated := key_check.first_repeated(values):  # type: ignore[arg-type]
            yield repeated


class _WriteManifest(beam.DoFn):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, element: list[Receipt | Repeated]) -> Iterator[str]:
        repeated = [value for value in element if isinstance(value, Repeated)]
        if repeated:
            raise key_check.as_error(self._plan.data_dir, repeated)
        yield str(
            manifest_writer.write_manifest(self._plan, [value for value in element if isinstance(value, Receipt)])
        )
