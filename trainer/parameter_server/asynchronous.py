"""Asynchronous training: a worker runs blocks of steps on its own, each step with the current weights."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.parameter_server.compute import Compute, TurnBatches, is_finite, norm_of
from trainer.parameter_server.ledger import Ledger, Rows, Tally
from trainer.parameter_server.scheduling import Closures, Finished, WorkerLines
from trainer.step.state import TrainState

_READY = 2  # blocks per worker: one running, one next
_POLL_SECONDS = 0.1


class Made(NamedTuple):
    """A worker's report on a block.

    Attributes:
      steps: numbers of the steps that it ran, int64 (n,); the others had already been applied.
      rows: packed results of the steps, string (n,); see `Rows`.
      finite: whether all losses and gradients were finite, bool; if not, the last step is the one that was not.
      waited: seconds spent making the batches.
      seconds: seconds that the block took.
      worker: number of the worker.
      global_step: number of updates so far, by all workers.
    """

    steps: Any
    rows: Any
    finite: Any
    waited: Any
    seconds: Any
    worker: Any
    global_step: Any


@dataclasses.dataclass(eq=False)
class Asynchronous:
    """The graph of a block, which workers run.

    Attributes:
      state: model, optimizer and step, on the parameter servers.
      batches: batches from a worker's columns.
      compute: computation and application of gradients.
      ledger: ledger of the steps that were applied.
      rows: packer of a step's results.
    """

    state: TrainState
    batches: TurnBatches
    compute: Compute
    ledger: Ledger
    rows: Rows

    @tf.function(autograph=False)
    def block(self, columns: Any, first: tf.Tensor, count: tf.Tensor, rows: tf.Tensor) -> Made:
        """Runs the steps from `first` to `first + count - 1` that are not applied yet; all are in one epoch.

        Args:
          columns: iterator over the worker's columns.
          first: first step, int64 scalar.
          count: number of steps, int64 scalar.
          rows: rows of all these steps, from `TurnBatches.rows_of`.
        """
        began = tf.timestamp()
        content, worker = next(columns)
        steps = self.ledger.missing(first, count)
        with tf.name_scope("input"):
            batch_of = self.batches.of_steps(content, rows, first)

        def one(i: tf.Tensor, finite: tf.Tensor, waited: tf.Tensor, rows: tf.TensorArray) -> tuple[Any, ...]:
            with tf.name_scope("loop"):
                step = steps[i]
            found, row, seconds = self._step(step, batch_of, finite)
            with tf.name_scope("loop/"), tf.control_dependencies([found]):
                return tf.identity(i + 1), found, waited + seconds, rows.write(i, row)

        texts = tf.TensorArray(tf.string, tf.size(steps), element_shape=[])
        made, finite, waited, texts = tf.while_loop(
            lambda i, finite, *rest: (i < tf.size(steps)) & finite,
            one,
            (tf.constant(0), tf.constant(True), tf.constant(0.0, tf.float64), texts),
            parallel_iterations=1,
        )
        with tf.control_dependencies([made]):
            total, seconds = self.state.global_step.read_value(), tf.timestamp() - began
        return Made(steps[:made], texts.stack()[:made], finite, waited, seconds, worker, total)

    def _step(self, step: tf.Tensor, batch_of: Any, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Runs a step; returns whether it is finite, its row, and the seconds spent on its batch."""
        share = tf.constant(0, tf.int64)
        with tf.name_scope("input"):
            with tf.control_dependencies([before]):  # after the previous step
                began = tf.timestamp()
            with tf.control_dependencies([began]):
                batch = batch_of(step)
            with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                seconds = tf.timestamp() - began
        computed, sent = self.compute.of(step, share, batch)
        with tf.name_scope("metrics"):
            norm = norm_of(sent)
        with tf.name_scope("ledger"), tf.control_dependencies([*sent.gradients, *sent.changes]):
            begun = self.ledger.begin(step)
        with tf.name_scope("optimizer"), tf.control_dependencies([begun]):
            applied = self.compute.apply(step, sent)
        with tf.name_scope("ledger/"), tf.control_dependencies([applied.op]):
            ended = [self.ledger.applied(step), self.state.global_step.assign_add(1, read_value=False)]
        with tf.name_scope("metrics/"):
            with tf.control_dependencies([op for op in ended if op is not None]):
                finite = tf.identity(is_finite(computed, norm))
            return finite, self.rows.packed(computed.sums, computed.penalty, norm), seconds


@dataclasses.dataclass
class _Block:
    stop: int
    made: Made | None = None


class AsyncScheduler:
    """A `Scheduler` of blocks that workers run without waiting for each other."""

    def __init__(
        self, graph: Asynchronous, closures: Closures, columns: Any, num_workers: int, most: int, lines: WorkerLines
    ) -> None:
        """Makes the scheduler of a job.

        Args:
          graph: graph of a block.
          closures: scheduler of functions on workers, which runs the graph.
          columns: columns of each worker.
          num_workers: number of workers in the job.
          most: maximum number of steps in a block.
          lines: lines of the workers, updated with every block.
        """
        self.reached = self._updates = 0
        self._graph, self._closures, self._columns = graph, closures, columns
        self._num_workers, self._most, self._lines = num_workers, most, lines
        self._pending: collections.deque[_Block] = collections.deque()

    def run(self, first: int, end: int, cut: Callable[[int], int], stops: Callable[[], bool]) -> Iterator[Finished]:
        """See `Scheduler.run`."""
        begun, stopped, self._updates = first, False, first
        while begun < end or self._pending:
            stopped = stops() or stopped  # always called, since it raises if a server is lost
            while begun < end and not stopped and self._closures.waiting < _READY * self._num_workers:
                begun = self._schedule(begun, min(end, cut(begun)))
            if stopped and not self._pending:
                break
            if came := self._closures.next(_POLL_SECONDS):
                block, made = came
                block.made = Made(*(part.numpy() if hasattr(part, "numpy") else part for part in made))
                self._updates = max(self._updates, int(block.made.global_step))
                self._say(block.made)
            while self._pending and self._pending[0].made:
                yield self._finished(self._pending.popleft())
        self.reached = begun

    def tally(self) -> Tally:
        """See `Scheduler.tally`."""
        return Tally()

    def _schedule(self, first: int, end: int) -> int:
        """Schedules a block; returns the step after its last one."""
        stop = min(first + self._most, end, self._graph.batches.epoch_end(first))
        block = _Block(stop)
        self._pending.append(block)
        numbers = (tf.constant(first, tf.int64), tf.constant(stop - first, tf.int64))
        rows = self._graph.batches.rows_of(first, stop)
        self._closures.schedule(block, self._graph.block, self._columns, *numbers, rows)
        return stop

    def _finished(self, block: _Block) -> Finished:
        made = block.made
        assert made is not None
        rows = {int(step): self._graph.rows.unpacked(text) for step, text in zip(made.steps, made.rows, strict=True)}
        waited = float(made.waited) / self._num_workers
        return Finished(block.stop, rows, bool(made.finite), waited, max(block.stop, self._updates))

    def _say(self, made: Made) -> None:
        rows = map(self._graph.rows.unpacked, made.rows)
        losses = [self._graph.rows.loss(row) + row.penalty for row in rows]
        self._lines.add(int(made.worker), int(made.global_step), losses, float(made.seconds))
