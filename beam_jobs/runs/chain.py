"""The Beam pipeline of both commands: one linear chain, which every runner runs correctly.

    shards -> Reshuffle -> work on them -> group by bucket -> find repeated keys -> group all -> write the result

Elements are lists of shards, the result of each shard, and hashes of keys; no pixel goes through a shuffle. Apart from
Reshuffle, the transforms are primitive: `Create` and `CombineGlobally` expand to a dozen each, and setting those up
takes Beam as long as a core needs to convert 10,000 images.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from beam_jobs.runs import runners
from beam_jobs.runs.failures import carried
from beam_jobs.shards.reader import KeyHashes, Repeated

FOUND = -1  # the bucket of the shards' results; buckets of keys are 0 to 255


class ShardJob(abc.ABC):
    """The work of a pipeline on the shards of a data set; it is pickled to every worker.

    Runners retry bundles and may run one twice, so repeating `work` must change nothing.
    """

    @property
    @abc.abstractmethod
    def shards(self) -> Sequence[Any]:
        """The shards."""

    @abc.abstractmethod
    def work(self, shards: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yields (FOUND, result) for each of some shards, and (bucket, hashes) for its keys."""

    @abc.abstractmethod
    def repeated(self, hashes: Iterable[KeyHashes]) -> list[Repeated]:
        """Returns the repeated keys of one bucket: as many as `finish` needs."""

    @abc.abstractmethod
    def finish(self, found: list[Any], repeated: list[Repeated]) -> str:
        """Writes the job's result and returns its path. A retried shard is in `found` twice."""


class OverShards(beam.PTransform):
    """Runs a job; the only output element is the path of its result."""

    def __init__(self, job: ShardJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, pbegin: beam.Pipeline) -> beam.PCollection:
        """Builds the chain."""
        # One element per worker, so that it can begin a shard while it writes another. Runners with machines of their
        # own get one element per shard, to spread as they see fit.
        shards = self._job.shards
        step = runners.workers(pbegin.pipeline) or len(shards)
        parts = [shards[start::step] for start in range(min(step, len(shards)))]
        # No Map: it wraps its function in a lambda, whose code would be sent to every worker by value.
        return (
            pbegin
            | "Begin" >> beam.Impulse()
            | "ShardNumbers" >> beam.FlatMap(_each, parts)
            | "Spread" >> beam.Reshuffle()
            | "MakeShards" >> beam.FlatMap(_work, self._job)
            | "Group" >> beam.GroupByKey()
            | "CheckKeys" >> beam.FlatMap(_check_group, self._job)
            | "Gather" >> beam.GroupByKey()
            | "WriteResult" >> beam.FlatMap(_finish, self._job)
        )


def _each(_: bytes, parts: list[Sequence[Any]]) -> list[Sequence[Any]]:
    return parts


def _work(shards: Sequence[Any], job: ShardJob) -> Iterator[tuple[int, Any]]:
    with carried():
        yield from job.work(shards)


def _check_group(group: tuple[int, Iterable[Any]], job: ShardJob) -> Iterator[tuple[int, Any]]:
    bucket, values = group
    with carried():
        for value in values if bucket == FOUND else job.repeated(values):
            yield FOUND, value


def _finish(group: tuple[int, Iterable[Any]], job: ShardJob) -> list[str]:
    found = list(group[1])
    repeated = [value for value in found if isinstance(value, Repeated)]
    with carried():
        return [job.finish([value for value in found if not isinstance(value, Repeated)], repeated)]
