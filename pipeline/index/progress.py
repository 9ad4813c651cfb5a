"""Shows how much has been read, as a bar on a terminal, and stops reading after an error."""

from __future__ import annotations

import threading
from types import TracebackType

import tqdm

from pipeline.errors import PipelineError


class StoppedError(Exception):
    """Another file is faulty, or the command was interrupted: no need to read more."""


class Progress:
    """Counts bytes of several threads. A context manager; leaving it stops the threads that are still reading.

    Attributes:
      failure: the error of the first faulty file.
    """

    def __init__(self, num_bytes: int) -> None:
        """Draws the bar if there is a terminal."""
        self.failure: PipelineError | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._bar = tqdm.tqdm(total=num_bytes, unit="B", unit_scale=True, unit_divisor=1024, disable=None, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_stopped = True
        with self._lock:
            self._bar.close()

    def add(self, num_bytes: int) -> None:
        """Counts bytes that were read.

        Raises:
          StoppedError: there is no need to read more.
        """
        if self._is_stopped or self.failure is not None:
            raise StoppedError
        with self._lock:
            self._bar.update(num_bytes)

    def fail(self, error: PipelineError) -> None:
        """Notes that a file is faulty, and has reading stopped."""
        with self._lock:
            self.failure = self.failure or error
