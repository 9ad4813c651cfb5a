"""What both step schedulers share: reports, functions that survive a lost worker, and the workers' lines."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from trainer import runtime
from trainer.config.steps import Period
from trainer.parameter_server.coordinator import Coordinator
from trainer.parameter_server.ledger import Row, Tally
from trainer.runtime import cluster_coordinator

_ROOT_SECONDS = 1.0  # time for the error that cancelled the others to arrive
# Wrappers around errors in what a function needs, such as its input.
_WRAPPERS = (cluster_coordinator.ClosureAbortedError, cluster_coordinator.ClosureInputError)
_MOST_RETRIES = 5  # number of retries after lost workers without a result in between


class Finished(NamedTuple):
    """Progress of a scheduler: all steps before `stop` are applied.

    Attributes:
      stop: step after the last applied one.
      rows: {step: results} of the steps run since the last report; steps that a lost worker had applied are missing.
      finite: whether all losses and gradients were finite.
      waited: seconds that the batches took, averaged over the workers.
      updates: number of updates so far as a global step, including workers' updates of later steps.
    """

    stop: int
    rows: dict[int, Row]
    finite: bool
    waited: float
    updates: int


class Scheduler(Protocol):
    """Has workers run steps.

    Attributes:
      reached: first step that is not applied yet, valid between runs.
    """

    reached: int

    def run(self, first: int, end: int, cut: Callable[[int], int], stops: Callable[[], bool]) -> Iterator[Finished]:
        """Yields progress as steps are applied, up to `end`, or until all begun steps are done once `stops` is true.

        Args:
          first, end: first step, and the step after the last.
          cut: function that returns the next step after a given one at which a report must end.
          stops: function that returns whether to stop, called often; raises if the job cannot continue.
        """

    def tally(self) -> Tally:
        """Returns the scheduler's own counts of the last run."""


class Closures:
    """Schedules functions on any worker, and runs them again if a worker is lost.

    TensorFlow's coordinator does that itself, unless the loss causes an error that it does not recognise: then it
    cancels all functions, and they are scheduled again here.

    Attributes:
      waiting: number of functions whose results have not arrived.
    """

    def __init__(self, cluster: tf.distribute.coordinator.ClusterCoordinator, check_lost: Callable[[], None]) -> None:
        """Runs functions on the workers of TensorFlow's cluster.

        Args:
          cluster: TensorFlow's coordinator of the workers.
          check_lost: function that waits a moment and raises if anything besides a worker was lost.
        """
        self._cluster, self._check_lost, self.waiting, self._retries = cluster, check_lost, 0, 0
        self._results: queue.SimpleQueue[tuple[_Call, Any, Exception | None]] = queue.SimpleQueue()

    def schedule(self, tag: Any, function: Any, *arguments: Any) -> None:
        """Has a worker run a function; its result comes with the tag."""
        self.waiting += 1
        self._schedule(_Call(tag, function, arguments))

    def next(self, timeout: float) -> tuple[Any, Any] | None:
        """Returns the next tag and result; None if no result arrived in time.

        Raises:
          OpError: a function failed, and not because a worker was lost.
        """
        try:
            call, result, error = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        if error:
            self._retry(call, error)
            return None
        self.waiting -= 1
        self._retries = 0
        return call.tag, result

    def _schedule(self, call: _Call) -> None:
        try:
            remote = self._cluster.schedule(call.function, args=call.arguments)
        except (tf.errors.OpError, *_WRAPPERS) as error:  # error of a function scheduled earlier
            self._results.put((call, None, _original(error)))
            return
        # One daemon thread each: a worker that never comes back must not keep the process from ending.
        threading.Thread(target=self._fetch, args=(call, remote), daemon=True).start()

    def _fetch(self, call: _Call, remote: Any) -> None:
        try:
            self._results.put((call, remote.fetch(), None))
        except Exception as error:  # raised again in the main thread
            self._results.put((call, None, _original(error)))

    def _retry(self, call: _Call, error: Exception) -> None:
        """Reschedules functions that were cancelled or lost."""
        failed: list[tuple[_Call, Exception]] = [(call, error)]
        arrived: list[tuple[_Call, Any]] = []
        # An error cancels all other functions, whose errors may arrive first: wait for the root cause.
        end = time.monotonic() + _ROOT_SECONDS
        while len(failed) + len(arrived) < self.waiting and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                other, result, problem = self._results.get(timeout=left)
                if problem:
                    failed.append((other, problem))
                else:
                    arrived.append((other, result))
        errors = [problem for _, problem in failed if not isinstance(problem, tf.errors.CancelledError)]
        root = errors[0] if errors else error
        self._retries += 1
        if not isinstance(root, tf.errors.OpError) or runtime.is_own(root) or self._retries > _MOST_RETRIES:
            raise root
        self._check_lost()
        for other, result in arrived:
            self._results.put((other, result, None))
        for other, _ in failed:
            self._schedule(other)


def _original(error: Exception) -> Exception:
    """Returns the error inside TensorFlow's wrappers."""
    return error.original_exception if isinstance(error, _WRAPPERS) else error


@dataclasses.dataclass(frozen=True)
class _Call:
    tag: Any
    function: Any
    arguments: tuple[Any, ...]


class WorkerLines:
    """Counts each worker's steps since it was started, and prints its lines."""

    def __init__(self, coordinator: Coordinator, period: Period) -> None:
        """Sets all counts to 0.

        Args:
          coordinator: coordinator connected to the workers.
          period: period of a worker's lines, in its own steps.
        """
        self._coordinator, self._period = coordinator, period
        self._counts: collections.Counter[tuple[int, int]] = collections.Counter()
        # By worker: time of its last line, start of its measured seconds, and its steps at that time.
        self._said: dict[tuple[int, int], tuple[float, float, int]] = {}
        self._made: dict[int, tuple[int, float]] = {}  # number of each worker's steps, and their seconds
        self._told: dict[int, tuple[int, float]] = {}  # the same at the last call of `scalars`

    def add(self, worker: int, global_step: int, losses: Sequence[float], seconds: float) -> None:
        """Counts a worker's steps, and prints the lines that are due.

        Seconds per batch are measured from the worker's last line or its start; as in the classic programs, they
        include the time that it waited for others.

        Args:
          worker: number of the worker.
          global_step: global step after these steps.
          losses: losses of the steps, with regularisation.
          seconds: seconds that the steps took.
        """
        key = worker, self._coordinator.starts(worker)  # a restarted worker counts from 0 again
        before = self._counts[key]
        self._counts[key] += len(losses)
        steps, spent = self._made.get(worker, (0, 0.0))
        self._made[worker] = steps + len(losses), spent + seconds
        now, made = time.monotonic(), self._counts[key]
        last, since, earlier = self._said.setdefault(key, (now, now - seconds, 0))
        is_time = bool(self._period.seconds) and now - last >= self._period.seconds
        for count, loss in enumerate(losses, before + 1):
            if self._period.is_due(count) or (is_time and count == made):
                self._said[key] = now, now, made
                self._coordinator.print_at(
                    worker,
                    f"After {count} training steps ({global_step} global steps), loss on training batch is {loss:g}. "
                    f"({(now - since) / (made - earlier):.3f} sec/batch)",
                )

    def scalars(self) -> dict[str, float]:
        """Returns each worker's steps since the start of the job, and its seconds per step since the last call."""
        found = {}
        for worker, (steps, seconds) in sorted(self._made.items()):
            before, spent = self._told.get(worker, (0, 0.0))
            found[f"worker/{worker}/steps"] = float(steps)
            if steps > before:
                found[f"worker/{worker}/seconds_per_step"] = (seconds - spent) / (steps - before)
        self._told = dict(self._made)
        return found
