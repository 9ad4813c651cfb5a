"""The Beam pipeline: one linear chain, which runs right on every runner.

    shard numbers -> Reshuffle -> write a shard -> all receipts in one list -> publish the manifest

Elements are shard numbers and receipts; no pixel goes through a shuffle. A shard is a pure function of the plan and
its number, written under a temporary name, so a retried or doubled bundle changes nothing.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import apache_beam as beam
import google_crc32c

from beam_jobs import shards, write
from beam_jobs.plan import Plan
from beam_jobs.receipts import Receipt, make_manifest
from pipeline import naming
from pipeline.manifest import ShardInfo


class ConvertDataset(beam.PTransform):
    """Writes the shards and the manifest of a plan into its folder; the output is the manifest's path, once."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def expand(self, pbegin: beam.Pipeline) -> beam.PCollection:
        """Builds the chain."""
        return (
            pbegin
            | "ShardNumbers" >> beam.Create(self._plan.elements, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "WriteShard" >> beam.ParDo(_WriteShard(self._plan))
            | "Receipts" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "PublishManifest" >> beam.ParDo(_PublishManifest(self._plan))
        )


class _WriteShard(beam.DoFn):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, element: tuple[str, int]) -> Iterator[Receipt]:
        yield write_shard(self._plan, *element)


class _PublishManifest(beam.DoFn):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, element: list[Receipt]) -> Iterator[str]:
        path = pathlib.Path(self._plan.data_dir) / naming.MANIFEST
        write.publish(path, make_manifest(self._plan, element).to_bytes())
        yield os.fspath(path)


def write_shard(plan: Plan, split: str, shard: int) -> Receipt:
    """Writes one shard of a plan.

    Raises:
      DataError: the source cannot be read, changed or has a label out of range, or the file cannot be written.
    """
    count = plan.num_shards[split]
    rows = shards.shard_rows(plan.seed, split, plan.source.splits[split], shard, count)
    block = plan.source.read(split, rows)
    shards.check_labels(block, len(plan.source.class_names))
    matrix = shards.shard_bytes(block)
    name = naming.shard_name(split, shard, count)
    write.publish(pathlib.Path(plan.data_dir) / name, matrix.data)
    crc = google_crc32c.value(matrix.tobytes())
    info = ShardInfo(name, len(matrix), matrix.nbytes, f"{crc:08x}", matrix.shape[1])
    return Receipt(split, shard, info, shards.statistics(block, len(plan.source.class_names)))
