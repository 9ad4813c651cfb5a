"""Notices that another worker no longer answers: a thread that ends collective operations which wait for too long.

TensorFlow can bound each collective operation by itself, with two threads that sleep until the bound is over, even if
the operation ended long before. Short steps leave tens of thousands of them behind. Here one thread watches all
operations, however many there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

import tensorflow as tf

from trainer import runtime
from trainer.cluster.rendezvous import LostError
from trainer.cluster.stops import Stops
from trainer.cluster.tf_config import Cluster
from trainer.runtime import context

_TICK = 0.5  # seconds between two looks, unless the timeout asks for more
_LOOKS = 10  # at least, within the timeout
_MISSED = 5.0  # seconds of a stop after which TensorFlow may have missed this worker's heartbeats


class Watchdog:
    """Context in which no collective operation of this worker waits for another one for longer than a timeout.

    Only the time that an operation waits counts: not that of compiling, reading, saving or computing here, however long
    they take. The operations count themselves, at their begin and at their end, in two variables in host memory. If
    one has begun that has not ended, and neither number changes for the timeout, all operations are ended, with
    tf.errors.DeadlineExceededError for whoever waits for their results.
    """

    def __init__(self, timeout: float, cluster: Cluster) -> None:
        """Begins to watch when it has operations to watch; see `watch`.

        Args:
          timeout: seconds.
          cluster: the workers.
        """
        self._timeout, self._cluster = timeout, cluster
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        """Watches the sums and gathers of a strategy; call it before any of them is traced."""
        with tf.device("CPU:0"):
            self._begun, self._ended = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))
        extended = strategy.extended
        for operations in (extended._cross_device_ops, extended._host_cross_device_ops):
            for launcher in operations._launchers:  # of each local device
                # What all reductions and gathers of tf.distribute are made of.
                launcher.all_reduce = self._counted(launcher.all_reduce)
                launcher._all_gather = self._counted(launcher._all_gather)
        self._stops = Stops()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Ends the thread, which may not call TensorFlow while the interpreter ends.

        Raises:
          LostError: instead of an error about another worker, where this one was stopped before it.
        """
        self._over.set()
        if not self._thread:
            return
        self._thread.join()
        stopped = self._stops.recent(min(self._timeout, _MISSED))
        if stopped and isinstance(error, tf.errors.OpError) and not runtime.is_own(error):
            name = self._cluster.name(self._cluster.rank)
            raise LostError(
                f"{name} was stopped, or stuck, for {stopped:.0f} s, and has lost the "
                f"others since ({runtime.first_line(error)}); rerun the same commands on all {self._cluster.size} to "
                "resume from the last checkpoint"
            ) from None

    def _counted(self, operation: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def counted(tensor: tf.Tensor, *arguments: Any) -> tf.Tensor:
            # Control edges alone, so that the bits of the result do not depend on them. Nothing waits for the counts.
            with tf.control_dependencies([tensor]):
                self._begun.assign_add(1, read_value=False)
            result = operation(tensor, *arguments)
            with tf.control_dependencies([result]):
                self._ended.assign_add(1, read_value=False)
            return result

        return counted

    def _look(self) -> None:
        tick, before = min(_TICK, self._timeout / _LOOKS), (0, 0)
        waited = 0.0
        while not self._over.wait(tick):
            # A longer gap is one in which this process was stopped, or its machine slept: it was not waiting then.
            passed = min(self._stops.tick(min(self._timeout, _MISSED)), 2 * tick)
            counts = int(self._ended.numpy()), int(self._begun.numpy())
            waited = waited + passed if counts == before and counts[0] < counts[1] else 0.0
            before = counts
            if waited >= self._timeout:
                reason = f"no answer for {self._timeout:g} s, --collective_timeout"
                context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, reason)
                return
