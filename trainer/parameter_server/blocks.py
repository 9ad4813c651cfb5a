"""Schedules blocks of steps on the workers, asynchronously."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from trainer.parameter_server.asynchronous import Asynchronous, Made
from trainer.parameter_server.closures import Closures
from trainer.parameter_server.finished import Finished
from trainer.parameter_server.ledger import Tally
from trainer.parameter_server.worker_lines import WorkerLines

_READY = 2  # blocks per worker: one in work, one that it takes next
_POLL_SECONDS = 0.1


@dataclasses.dataclass
class _Block:
    stop: int
    made: Made | None = None


class Blocks:
    """See `Driver`."""

    def __init__(
        self, graph: Asynchronous, closures: Closures, columns: Any, num_workers: int, most: int, lines: WorkerLines
    ) -> None:
        """Schedules nothing yet.

        Args:
          graph: of a block.
          closures: where it is run.
          columns: each worker's.
          num_workers: in the job.
          most: steps of a block.
          lines: told of every block.
        """
        self.reached = 0
        self._graph, self._closures, self._columns = graph, closures, columns
        self._num_workers, self._most, self._lines = num_workers, most, lines
        self._pending: collections.deque[_Block] = collections.deque()

    def run(self, first: int, end: int, cut: Callable[[int], int], stops: Callable[[], bool]) -> Iterator[Finished]:
        """See `Driver.run`."""
        begun, stopped = first, False
        while begun < end or self._pending:
            stopped = stops() or stopped  # asked in any case: it says that a server is lost
            while begun < end and not stopped and self._closures.waiting < _READY * self._num_workers:
                begun = self._schedule(begun, min(end, cut(begun)))
            if stopped and not self._pending:
                break
            if came := self._closures.next(_POLL_SECONDS):
                block, made = came
                block.made = Made(*(part.numpy() if hasattr(part, "numpy") else part for part in made))
                self._say(block.made)
            while self._pending and self._pending[0].made:
                yield self._finished(self._pending.popleft())
        self.reached = begun

    def tally(self) -> Tally:
        """See `Driver.tally`."""
        return Tally()

    def _schedule(self, first: int, end: int) -> int:
        """Schedules a block; returns the first step after it."""
        in_epoch = self._graph.batches.steps_per_epoch
        stop = min(first + self._most, end, first - first % in_epoch + in_epoch)
        block = _Block(stop)
        self._pending.append(block)
        numbers = (tf.constant(first, tf.int64), tf.constant(stop - first, tf.int64))
        self._closures.schedule(block, self._graph.block, self._columns, *numbers)
        return stop

    def _finished(self, block: _Block) -> Finished:
        made = block.made
        assert made is not None
        rows = {int(step): self._graph.rows.unpacked(text) for step, text in zip(made.steps, made.rows, strict=True)}
        return Finished(block.stop, rows, bool(made.finite), float(made.waited) / self._num_workers)

    def _say(self, made: Made) -> None:
        losses = [self._graph.rows.loss(self._graph.rows.unpacked(text)) for text in made.rows]
        self._lines.add(int(made.worker), int(made.global_step), losses, float(made.seconds))
