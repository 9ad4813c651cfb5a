"""The Beam pipeline of a validation: one linear chain, which every runner runs correctly.

shard numbers -> Reshuffle -> check a shard -> group by bucket -> find repeated keys -> one list -> report
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from beam_jobs.shards import key_check
from beam_jobs.storage import write
from beam_jobs.storage.paths import StoragePath
from beam_jobs.validation import dataset
from beam_jobs.validation import report as validate_report
from beam_jobs.validation.report import ShardReport
from beam_jobs.validation.shard import check_shard
from pipeline.errors import DataError
from pipeline.manifest import Manifest

_REPORTS = -1  # the bucket of the reports; those of keys are 0 and up


@dataclasses.dataclass(frozen=True)
class Job:
    """What every worker needs to know.

    Attributes:
      data_dir: the data set's folder.
      manifest: its manifest.
      decodes: whether to check the pixels too.
      report: the file to write the report to.
      marks: a local folder that gets an empty file for each shard that is done; the command counts them.
    """

    data_dir: StoragePath
    manifest: Manifest
    decodes: bool
    report: StoragePath
    marks: pathlib.Path


class ValidateDataset(beam.PTransform):
    """Checks a data set and writes the report; the output is the report's path, once."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def expand(self, pbegin: beam.Pipeline) -> beam.PCollection:
        """Builds the chain."""
        return (
            pbegin
            | "ShardNumbers" >> beam.Create(range(len(self._job.manifest.shards)), reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "CheckShard" >> beam.FlatMap(_check_shard, self._job)
            | "Group" >> beam.GroupByKey()
            | "CheckKeys" >> beam.FlatMap(_check_group)
            | "Gather" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "WriteReport" >> beam.FlatMap(_write_report, self._job)  # a Map would ship a lambda, by value
        )


def _check_shard(number: int, job: Job) -> Iterator[tuple[int, Any]]:
    report, keys = check_shard(job.data_dir, job.manifest, number, job.decodes)
    yield _REPORTS, report
    yield from keys
    with contextlib.suppress(OSError):  # the command is on another machine
        (job.marks / str(number)).touch()


def _check_group(group: tuple[int, Iterable[Any]]) -> Iterable[Any]:
    bucket, values = group
    return values if bucket == _REPORTS else key_check.all_repeated(values)


def _write_report(found: list[Any], job: Job) -> list[str]:
    by_number = {value.shard: value for value in found if isinstance(value, ShardReport)}  # a retried one comes twice
    shards = [by_number[number] for number in range(len(job.manifest.shards))]
    repeated = [value for value in found if isinstance(value, key_check.Repeated)]
    keys = dataset.key_problems(job.data_dir, job.manifest, repeated)
    report = validate_report.combined(shards, [*keys, *dataset.total_problems(job.manifest, shards, job.decodes)])
    if isinstance(job.report, pathlib.Path) and not job.report.parent.is_dir():
        folder = job.report.parent
        raise DataError(f"{folder}: a worker cannot reach this folder; give --report=FILE in one that it can")
    write.publish(job.report, report.to_bytes())
    return [str(job.report)]
