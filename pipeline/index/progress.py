"""How far the reading is, as a bar on a terminal, and how it is stopped."""

from __future__ import annotations

import threading
from types import TracebackType

import tqdm

from pipeline.errors import PipelineError


class StoppedError(Exception):
    """Another file is at fault, or the command was interrupted: reading on is of no use."""


class Progress:
    """Counts bytes of several threads. A context manager; leaving it stops those that still read.

    Attributes:
      failure: the error of the first file that was at fault.
    """

    def __init__(self, num_bytes: int) -> None:
        """Draws the bar, where there is a terminal."""
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
        """Notes that a file is at fault, and has the others stopped."""
        with self._lock:
            self.failure = self.failure or error
