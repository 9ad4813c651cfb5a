"""Functions that workers run, and their results as they come."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import tensorflow as tf

_ROOT_SECONDS = 1.0  # in which the error comes that had others cancelled


class Closures:
    """Schedules functions on any worker; TensorFlow's coordinator runs them again where a worker is lost.

    Attributes:
      waiting: how many have not come back.
    """

    def __init__(self, coordinator: tf.distribute.coordinator.ClusterCoordinator) -> None:
        self._coordinator, self.waiting = coordinator, 0
        self._results: queue.SimpleQueue[tuple[Any, Any, Exception | None]] = queue.SimpleQueue()

    def schedule(self, tag: Any, function: Any, *arguments: Any) -> None:
        """Has a worker run a function; its result comes with the tag."""
        remote = self._coordinator.schedule(function, args=arguments)
        self.waiting += 1
        # A thread of its own, which does not keep the process from ending where a worker never comes back.
        threading.Thread(target=self._fetch, args=(tag, remote), daemon=True).start()

    def next(self, timeout: float) -> tuple[Any, Any] | None:
        """Returns the next tag and result, None where there is none in time.

        Raises:
          OpError: a function failed.
        """
        try:
            tag, result, error = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        self.waiting -= 1
        if error:
            raise self._root(error)
        return tag, result

    def _fetch(self, tag: Any, remote: Any) -> None:
        try:
            self._results.put((tag, remote.fetch(), None))
        except Exception as error:
            self._results.put((tag, None, error))

    def _root(self, error: Exception) -> Exception:
        """Returns the error that others follow from: once one fails, all others are cancelled."""
        end = time.monotonic() + _ROOT_SECONDS
        while isinstance(error, tf.errors.CancelledError) and (left := end - time.monotonic()) > 0:
            try:
                _, _, other = self._results.get(timeout=left)
            except queue.Empty:
                break
            error = other or error
        return error
