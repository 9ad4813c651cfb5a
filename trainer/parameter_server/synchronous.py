"""Synchronous training: a worker computes the gradient of a share of a step, and stores it on the parameter servers.

The chief applies the mean of the gradients that it selects, so that each gradient is applied as a whole or not at all.

The queue holds the shares in the order of the rows. Any M shares make a step. A gradient that comes too late is
dropped, and its share goes back to the front of the queue, so that all rows of an epoch are applied exactly once. When
the queue is empty and a slow worker is still computing a share, another worker computes it as well, and the first
result counts.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.parameter_server.compute import Compute, Sent, Transfer, TurnBatches, is_finite, norm_of
from trainer.parameter_server.ledger import Ledger, Row, Rows, Tally
from trainer.parameter_server.scheduling import Closures, Finished, WorkerLines
from trainer.step.measures import WEIGHT, divisor
from trainer.step.state import TrainState
from trainer.step.train_step import Traced

_POLL_SECONDS = 0.1


class Share(NamedTuple):
    """A worker's report on a share.

    Attributes:
      version: global step of the weights that it used.
      weight: sum of the weights of its rows.
      row: packed results, string scalar; see `Rows`.
      finite: whether loss and gradient are finite.
      waited: seconds spent making the batch.
      seconds: seconds spent in total.
      worker: number of the worker.
    """

    version: Any
    weight: Any
    row: Any
    finite: Any
    waited: Any
    seconds: Any
    worker: Any


class Synchronous:
    """The graph of a share, which workers run, and of an update, which the chief runs.

    Attributes:
      batches: batches of shares.
      rows: packer of a share's results.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: TrainState,
        batches: TurnBatches,
        compute: Compute,
        ledger: Ledger,
        rows: Rows,
        places: int,
    ) -> None:
        """Makes `places` slots for gradients on the parameter servers, one for each gradient computed concurrently."""
        self.batches, self.rows = batches, rows
        self._strategy, self._state, self._compute, self._ledger = strategy, state, compute, ledger
        self._gradients = self._room(compute.trainable, places)
        self._changes = self._room(compute.kept, places)

    def _room(self, transfer: Transfer, places: int) -> list[tf.Variable]:
        """Returns a variable (places, values) for each group, on the group's server."""
        room = []
        for group, indices in transfer.groups.items():
            beside = transfer.variables[indices[0]]
            zeros = tf.zeros([places, sum(transfer.sizes(group))], group[1])
            with self._strategy.scope(), self._strategy.extended.colocate_vars_with(beside):
                room.append(tf.Variable(zeros, trainable=False, name="gradients"))
        return room

    @tf.function(autograph=False)
    def share(self, columns: Any, step: tf.Tensor, number: tf.Tensor, place: tf.Tensor, rows: tf.Tensor) -> Share:
        """Computes the gradient of a step's share with the current weights, and stores it in a place.

        Args:
          columns: iterator over the worker's columns.
          step: global step, int64 scalar.
          number: number of the share in the step, int64 scalar.
          place: index of the place, int32 scalar.
          rows: rows of the share, from `TurnBatches.rows_of`.
        """
        with tf.name_scope("input"):
            began = tf.timestamp()
            content, worker = next(columns)
            version = self._state.global_step.read_value()
            with tf.control_dependencies([version]):  # the weights have this version or a newer one
                batch = self.batches.of_steps(content, rows, step)(step)
            with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                waited = tf.timestamp() - began
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            computed, sent = self._compute.of(step, number, batch)
        with tf.name_scope("send/"):
            kept = [
                tf.raw_ops.ResourceScatterUpdate(resource=room.handle, indices=place, updates=values)
                for room, values in zip(
                    [*self._gradients, *self._changes], [*sent.gradients, *sent.changes], strict=True
                )
            ]
        with tf.name_scope("metrics"):
            norm = norm_of(sent)
            with tf.control_dependencies(kept):
                seconds = tf.timestamp() - began
            row = self.rows.packed(computed.sums, computed.penalty, norm)
            finite = is_finite(computed, norm)
        return Share(version, computed.sums[WEIGHT], row, finite, waited, seconds, worker)

    @tf.function(autograph=False)
    def update(self, step: tf.Tensor, places: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Applies the weighted mean of the gradients in some places; returns its norm.

        Args:
          step: global step of the update, int64 scalar.
          places: indices of the places, int32 (M,).
          weights: sum of the sample weights of each share, float32 (M,).
        """
        self._compute.graphs["update"] = Traced(tf.compat.v1.get_default_graph(), "update", "/job:chief")
        # Workers divide gradients by the weight of their rows; scaled by their parts of the total weight, they add up
        # to the mean over the rows of the step.
        with tf.name_scope("mean"):
            parts = weights / divisor(tf.reduce_sum(weights))
            sent = Sent([_mean(room, places, parts) for room in self._gradients], [])
            equal = tf.ones_like(weights) / tf.cast(tf.size(weights), tf.float32)
            sent = sent._replace(changes=[_mean(room, places, equal) for room in self._changes])
            norm = norm_of(sent)
        with tf.name_scope("ledger"):
            begun = self._ledger.begin(step)
        with tf.name_scope("optimizer"), tf.control_dependencies([begun]):
            applied = self._compute.apply(step, sent)
        with tf.name_scope("ledger/"), tf.control_dependencies([applied.op]):
            marked = self._ledger.applied(step)
        with tf.name_scope("global_step"), tf.control_dependencies([marked]):
            counted = self._state.global_step.assign(step + 1, read_value=False)
        with tf.control_dependencies([counted] if counted is not None else []):
            return tf.identity(norm)


def _mean(room: tf.Variable, places: tf.Tensor, parts: tf.Tensor) -> tf.Tensor:
    with tf.device(room.device):
        chosen = room.sparse_read(places)
        mean: tf.Tensor = tf.linalg.matvec(chosen, tf.cast(parts, chosen.dtype), transpose_a=True)
        return mean


@dataclasses.dataclass(frozen=True)
class _Taken:
    """A gradient that counts for the current step."""

    place: int
    share: Share
    row: Row


class SyncScheduler:
    """A `Scheduler` of shares: the first M gradients make a step."""

    def __init__(
        self,
        graph: Synchronous,
        closures: Closures,
        columns: Any,
        num_workers: int,
        needed: int,
        max_staleness: int,
        lines: WorkerLines,
    ) -> None:
        """Makes the scheduler of a job.

        Args:
          graph: graph of shares and updates.
          closures: scheduler of functions on workers, which computes shares.
          columns: columns of each worker.
          num_workers: number of workers in the job, N.
          needed: number of gradients in a step, M.
          max_staleness: maximum age of a gradient, in steps.
          lines: lines of the workers, updated with every gradient that counts.
        """
        self.reached = 0
        self._graph, self._closures, self._columns, self._lines = graph, closures, columns, lines
        self._needed, self._max_staleness, self._num_workers = needed, max_staleness, num_workers
        self._free = list(range(num_workers))  # places for gradients, one per worker
        self._queue: collections.deque[int] = collections.deque()
        self._in_work: collections.Counter[int] = collections.Counter()
        self._applied: set[int] = set()
        self._taken: list[_Taken] = []
        self._dropped, self._first = 0, 0

    def run(self, first: int, end: int, cut: Callable[[int], int], stops: Callable[[], bool]) -> Iterator[Finished]:
        """See `Scheduler.run`; an epoch ends with exactly its rows."""
        step = first
        while step < end and not stops():
            stop = min(end, self._graph.batches.epoch_end(step))
            for finished in self._steps(step, stop, stops):
                step = finished.stop
                yield finished
        self.reached = step

    def tally(self) -> Tally:
        """See `Scheduler.tally`."""
        dropped, self._dropped = self._dropped, 0
        return Tally(dropped=dropped)

    def _steps(self, first: int, end: int, stops: Callable[[], bool]) -> Iterator[Finished]:
        """Yields steps up to the end of an epoch; once it must stop, hands out only missing shares."""
        step, end_share = first, end * self._needed
        self._first = first * self._needed
        self._queue.extend(range(first * self._needed, end_share))
        while step < end:
            if stops() and self._queue and end_share > (least := self._least_end(step)):
                end_share, end = least, least // self._needed
                self._queue = collections.deque(share for share in self._queue if share < end_share)
            self._hand_out()
            if came := self._closures.next(_POLL_SECONDS):
                self._receive(step, *came)
            if len(self._taken) == self._needed:
                yield self._update(step)
                step += 1
        self._applied.clear()

    def _least_end(self, step: int) -> int:
        """Returns the end of the shares to apply so that none before it is missing."""
        seen = [*self._applied, *(number for number, count in self._in_work.items() if count)]
        last = max([share + 1 for share in seen], default=0)
        return max(-(-last // self._needed), step) * self._needed

    def _hand_out(self) -> None:
        """Gives shares to workers that neither have one nor have contributed to this step."""
        while self._free and (share := self._next_share()) is not None:
            place = self._free.pop()
            self._in_work[share] += 1
            step, number = divmod(share, self._needed)
            arguments = (tf.constant(step, tf.int64), tf.constant(number, tf.int64), tf.constant(place))
            rows = self._graph.batches.rows_of(step, step + 1, number)
            self._closures.schedule((share, place), self._graph.share, self._columns, *arguments, rows)

    def _next_share(self) -> int | None:
        """Returns the next share in the queue or, if it is empty, one that only a single worker is computing."""
        if self._queue:
            return self._queue.popleft()
        missing = self._needed - len(self._taken)
        here = [share for share in self._in_work if share >= self._first and share not in self._applied]
        alone = [share for share in here if self._in_work[share] == 1]
        return alone[0] if alone and missing else None

    def _receive(self, step: int, tag: tuple[int, int], result: Any) -> None:
        share, place = tag
        made = Share(*(part.numpy() if hasattr(part, "numpy") else part for part in result))
        self._in_work[share] -= 1
        if not self._in_work[share]:
            del self._in_work[share]
        if share in self._applied or share < self._first:  # another worker was first
            self._dropped += 1
            self._free.append(place)
            return
        if step - int(made.version) > self._max_staleness:
            self._dropped += 1
            self._free.append(place)
            if not self._in_work[share]:
                self._queue.appendleft(share)  # the oldest share, without which the epoch cannot end
            return
        self._applied.add(share)
        row = self._graph.rows.unpacked(made.row)
        self._taken.append(_Taken(place, made, row))
        self._lines.add(int(made.worker), step + 1, [self._graph.rows.loss(row) + row.penalty], float(made.seconds))

    def _update(self, step: int) -> Finished:
        taken, self._taken = self._taken, []
        weights = np.array([float(one.share.weight) for one in taken], np.float32)
        places = tf.constant([one.place for one in taken], tf.int32)
        norm = self._graph.update(tf.constant(step, tf.int64), places, tf.constant(weights))
        self._free.extend(one.place for one in taken)
        sums = np.sum([one.row.sums for one in taken], axis=0)
        penalty = float(np.mean([one.row.penalty for one in taken]))
        row = Row(penalty, float(norm), sums)
        finite = all(bool(one.share.finite) for one in taken)
        waited = max(float(one.share.waited) for one in taken)
        return Finished(step + 1, {step: row}, finite, waited, step + 1)
