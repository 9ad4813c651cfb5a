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
from beam_jobs.shards.key_check import Repeated
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
        # No Map: it would wrap its function in a lambda, whose code every worker would get by value.
        return (
            pbegin
            | "ShardNumbers" >> beam.Create(parts, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "MakeShards" >> beam.FlatMap(_make_shards, self._plan)
            | "Group" >> beam.GroupByKey()
            | "CheckKeys" >> beam.FlatMap(_check_group)
            | "Gather" >> beam.CombineGlobally(beam.combiners.ToListCombineFn()).without_defaults()
            | "WriteManifest" >> beam.FlatMap(_write_manifest, self._plan)
        )


def _make_shards(elements: list[tuple[str, int]], plan: Plan) -> Iterator[tuple[int, Any]]:
    for receipt in writer.write_shards(plan, elements):
        yield _RECEIPTS, receipt
        if not plan.source.unique_keys:
            yield from key_check.by_bucket(plan.data_dir, receipt.info)


def _check_group(group: tuple[int, Iterable[Any]]) -> Iterable[Any]:
    bucket, values = group
    if bucket == _RECEIPTS:
        return values
    repeated = key_check.first_repeated(values)
    return [repeated] if repeated else []


def _write_manifest(found: list[Any], plan: Plan) -> list[str]:
    repeated = [value for value in found if isinstance(value, Repeated)]
    if repeated:
        raise key_check.as_error(plan.data_dir, repeated)
    receipts = [value for value in found if isinstance(value, Receipt)]
    return [str(manifest_writer.write_manifest(plan, receipts))]
