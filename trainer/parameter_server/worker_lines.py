"""The log line of the classic examples, in each worker's own terminal."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from trainer.parameter_server.host import Host


class WorkerLines:
    """Counts the steps of each worker since it was started, and prints a line at every multiple."""

    def __init__(self, host: Host, every: int) -> None:
        """Prints nothing yet.

        Args:
          host: connected to the workers.
          every: steps of a worker between two lines; 0: none.
        """
        self._host, self._every = host, every
        self._counts: collections.Counter[tuple[int, int]] = collections.Counter()

    def add(self, worker: int, global_step: int, losses: Sequence[float], seconds: float) -> None:
        """Takes note of steps.

        Args:
          worker: that made them.
          global_step: after them.
          losses: of each.
          seconds: that they took.
        """
        key = worker, self._host.starts(worker)
        before = self._counts[key]
        self._counts[key] += len(losses)
        if not self._every or not losses:
            return
        for count in range(before + 1, self._counts[key] + 1):
            if count % self._every == 0:
                self._host.print_at(
                    worker,
                    f"After {count} training steps ({global_step} global steps), loss on training batch is "
                    f"{losses[count - before - 1]:g}. ({seconds / len(losses):.3f} sec/batch)",
                )
