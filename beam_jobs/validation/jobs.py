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
from beam_jobs.shards.key_check import Repeated
from beam_jobs.storage import paths, write
from beam_jobs.validation import keys as validate_keys
from beam_jobs.validation import report as validate_report
from beam_jobs.validation import shard as validate_shard
from beam_jobs.validation import totals as validate_totals
from beam_jobs.validation.report import ShardReport
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

    data_dir: str
    manifest: Manifest
    decodes: bool
    report: str
    marks: str


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
            | "CheckShard" >> beam.ParDo(_CheckShard(self._job))
            | "Group" >> beam.GroupByKey()
            | "CheckKeys" >> beam.ParDo(_CheckGroup())
            | "Gather" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "WriteReport" >> beam.ParDo(_WriteReport(self._job))
        )


class _CheckShard(beam.DoFn):
    def __init__(self, job: Job) -> None:
        self._job = job

    def process(self, element: int) -> Iterator[tuple[int, Any]]:
        report, keys = validate_shard.check_shard(self._job.data_dir, self._job.manifest, element, self._job.decodes)
        yield _REPORTS, report
        yield from keys
        with contextlib.suppress(OSError):  # the command is on another machine
            (pathlib.Path(self._job.marks) / str(element)).touch()


class _CheckGroup(beam.DoFn):
    def process(self, element: tuple[int, Iterable[Any]]) -> Iterator[ShardReport | list[Repeated]]:
        bucket, values = element
        if bucket == _REPORTS:
            yield from values
        else:
            yield key_check.all_repeated(values)


class _WriteReport(beam.DoFn):
    def __init__(self, job: Job) -> None:
        self._job = job

    def process(self, element: list[Any]) -> Iterator[str]:
        by_number = {
            value.shard: value for value in element if isinstance(value, ShardReport)
        }  # a retried one comes twice
        shards = [by_number[number] for number in range(len(self._job.manifest.shards))]
        repeated = [pair for value in element if isinstance(value, list) for pair in value]
        keys = validate_keys.problems(self._job.data_dir, self._job.manifest, repeated)
        totals = validate_totals.problems(self._job.manifest, shards, self._job.decodes)
        report = validate_report.combined(shards, [*keys, *totals])
        place = paths.path_of(self._job.report)
        if isinstance(place, pathlib.Path) and not place.parent.is_dir():
            raise DataError(f"{place.parent}: a worker cannot reach this folder; give --report=FILE in one that it can")
        write.publish(place, report.to_bytes())
        yield str(place)
