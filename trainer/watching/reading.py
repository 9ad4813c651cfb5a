"""Which worker reads which shards in the epoch of a step, computed from the flags and the manifest."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PipelineError, UsageError
from pipeline.files.paths import folder
from pipeline.order.reading import Reading, Topology
from pipeline.resolved import ResolvedInput, ResolvedRequest, resolve_all
from trainer import plan
from trainer.config import TrainConfig
from trainer.watching.snapshot import DataReading, WorkerReading

_MOST_BINS = 96  # number of shards drawn in a row

F64 = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Data:
    """The resolved training data of a run.

    Attributes:
      training: data sets and their order.
      last_step: step at which training ends.
    """

    training: ResolvedInput
    last_step: int

    @classmethod
    def of(cls, config: TrainConfig) -> Data:
        """Returns the data given by flags.

        Raises:
          UsageError: the page cannot know the data: they are remote, or parsed by the user's code, which it does not
            run.
          PipelineError: there is no valid data set.
        """
        if config.model.task:
            raise UsageError(f"--task={config.model.task} may parse its data itself, which a page does not run")
        request = plan.request_of(config, None)
        for source in request.sources:
            if folder(source.data_dir).is_remote:
                raise UsageError(f"{source.data_dir} is remote, and a page reads only files")
        training = resolve_all(request)
        return cls(training, config.last_step(training.steps_per_epoch))

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch, T."""
        return self.training.steps_per_epoch

    def read_at(self, step: int, workers: Sequence[str], replicas: int) -> tuple[DataReading, ...]:
        """Returns what each worker reads in the epoch of a global step, for each data set.

        Args:
          step: global step.
          workers: worker names, in order of rank.
          replicas: number of replicas in the job.

        Raises:
          UsageError: the workers and replicas cannot share a batch.
        """
        is_end, request = step >= self.last_step, self.training.request
        found = [
            _read(part, request.shares.units_before(source, step), workers, replicas, is_end)
            for source, part in enumerate(self.training.parts)
        ]
        if not request.schedule:
            return tuple(found)
        rows = request.shares.rows_at(max(0, step - 1 if is_end else step))
        each = zip(found, request.shares.units, rows, strict=True)
        return tuple(dataclasses.replace(one, unit=unit, rows=n) for one, unit, n in each)


def data_of(config: TrainConfig) -> Data | str:
    """Returns the data given by a run's flags, or the reason why they are unknown."""
    try:
        return Data.of(config)
    except (PipelineError, OSError) as error:
        is_relative = not os.path.isabs(config.data.data_dir)
        return f"{error}{'; a relative --data_dir is looked for where the page is started' if is_relative else ''}"


def _read(part: ResolvedRequest, step: int, workers: Sequence[str], replicas: int, is_end: bool) -> DataReading:
    order, size = part.order, part.spec.global_batch_size
    epoch, done = divmod(step, order.steps_per_epoch)
    if is_end and epoch and not done:  # no other epoch follows
        epoch, done = epoch - 1, order.steps_per_epoch
    reading = Reading(order, part.spec, part.selection, epoch, Topology(len(workers), replicas, size))
    laid = reading.laid.astype(np.float64)
    shards = [part.selection.segments[i].shard.file for i in reading.segments.tolist()]
    group = max(1, -(-len(shards) // _MOST_BINS))
    edges = np.append(laid[:-1:group], laid[-1])
    used = _used(part, done)
    found = []
    for number, name in enumerate(workers):
        streams = range(*reading.streams[number].tolist())
        whole = [interval for k in streams for interval in [(*order.stream_bounds()[k : k + 2].tolist(), 1.0)]]
        so_far = [interval for k in streams for interval in used[k]]
        reads, seen = _overlap(edges, whole), _overlap(edges, so_far)
        width = np.maximum(np.diff(edges), 1.0)
        rows = reading.topology.worker_rows()[number].tolist()
        found.append(
            WorkerReading(
                name,
                (rows[0], rows[1]),
                len(reading.shards_of(number)),
                round(float(reads.sum())),
                round(float(seen.sum())),
                tuple(zip(np.round(reads / width, 3).tolist(), np.round(seen / width, 3).tolist(), strict=True)),
            )
        )
    return DataReading(
        f"{part.manifest.dataset}:{part.spec.split}",
        epoch,
        order.num_records,
        min(order.num_records, done * size),
        (done, order.steps_per_epoch),
        None,
        size,
        len(shards),
        group,
        tuple(shards[::group]),
        tuple(found),
    )


def _used(part: ResolvedRequest, done: int) -> list[list[tuple[float, float, float]]]:
    """Returns the positions that each stream has read after some steps of an epoch: (first, end, share read).

    A window is permuted as a whole, so the same share of each part of the current window has been read.
    """
    order, found = part.order, []
    for start, stop in np.lib.stride_tricks.sliding_window_view(order.stream_bounds(), 2).tolist():
        reached = min(start + done * order.rows_per_stream, stop)
        bounds = [start + w * (stop - start) // order.windows for w in range(order.windows + 1)]
        intervals = []
        for first, end in itertools.pairwise(bounds):
            if reached > first:
                intervals.append((float(first), float(end), min(1.0, (reached - first) / max(1, end - first))))
        found.append(intervals)
    return found


def _overlap(edges: F64, intervals: Sequence[tuple[float, float, float]]) -> F64:
    """Returns how much of each bin is covered by the intervals, each weighted by its share."""
    total = np.zeros(len(edges) - 1)
    for first, end, share in intervals:
        total += share * np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], first), 0, None)
    return total
