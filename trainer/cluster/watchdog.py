"""Notices that another worker no longer responds: a thread aborts collective operations that wait too long.

TensorFlow can itself limit the time of each collective operation, with two threads that sleep until the limit even if
the operation ended long before: short steps leave tens of thousands of them behind. Here one thread watches all
operations.
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

_TICK = 0.5  # seconds between checks, unless the timeout needs more frequent ones
_LOOKS = 10  # minimum number of checks within the timeout
_MISSED = 5.0  # after a stop this long, TensorFlow may have missed this worker's heartbeats


class Watchdog:
    """Context in which no collective operation of this worker waits for another worker longer than a timeout.

    Only the time that operations wait counts, not compiling, reading, saving or computing here, however long that
    takes. Operations count themselves, when they begin and when they end, in two variables in host memory. If one has
    begun and not ended, and neither count changes within the timeout, all operations are aborted, and waiting for their
    results raises tf.errors.DeadlineExceededError.
    """

    def __init__(self, timeout: float, cluster: Cluster) -> None:
        """Watches nothing until there are operations to watch; see `watch`.

        Args:
          timeout: timeout in seconds.
          cluster: workers of the job.
        """
        self._timeout, self._cluster = timeout, cluster
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        """Watches a strategy's reductions and gathers; call it before any of them is traced."""
        with tf.device("CPU:0"):
            self._begun, self._ended = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))
        extended = strategy.extended
        for operations in (extended._cross_device_ops, extended._host_cross_device_ops):
            for launcher in operations._launchers:  # one per local device
                # All reductions and gathers of tf.distribute are built on this.
                launcher.all_reduce = self._counted(launcher.all_reduce)
                launcher._all_gather = self._counted(launcher._all_gather)
        self._stops = Stops()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Ends the thread, which must not call TensorFlow while the interpreter is exiting.

        Raises:
          LostError: this worker had been stopped; replaces an error about another worker.
        """
        self._over.set()
        if not self._thread:
            return
        self._thread.join()
        stopped = self._stops.recent(min(self._timeout, _MISSED))
        if stopped and isinstance(error, tf.errors.OpError) and not runtime.is_own(error):
            name = self._cluster.name(self._cluster.mine)
            raise LostError(
                f"{name} was stopped, or stuck, for {stopped:.0f} s, and has lost the "
                f"others since ({runtime.first_line(error)}); rerun the same commands on all {self._cluster.size} to "
                "resume from the last checkpoint"
            ) from None

    def _counted(self, operation: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def counted(tensor: tf.Tensor, *arguments: Any) -> tf.Tensor:
            # Only control edges, so that the bits of the result do not depend on them. Nothing waits for the counts.
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
            # A longer gap means that this process was stopped or its machine slept, so it was not waiting.
            passed = min(self._stops.tick(min(self._timeout, _MISSED)), 2 * tick)
            counts = int(self._ended.numpy()), int(self._begun.numpy())
            waited = waited + passed if counts == before and counts[0] < counts[1] else 0.0
            before = counts
            if waited >= self._timeout:
                reason = f"no answer for {self._timeout:g} s, --collective_timeout"
                context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, reason)
                return
