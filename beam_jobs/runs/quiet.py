"""Keeps Beam's chatter off the terminal: what matters of it comes back as an error of one line."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Silences what Beam warns of at import: optional cloud libraries that are not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class MainThreadOnly(io.TextIOBase):
    """A text stream that drops what other threads write.

    A worker thread of Beam prints the traceback of an error that it also sends to the runner, and its other threads
    end with tracebacks of their own when a worker process goes.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, if this is the main thread."""
        return self._stream.write(text) if threading.current_thread() is threading.main_thread() else len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Says whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Returns the stream's descriptor."""
        return self._stream.fileno()


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
    """Drops what other threads write to stderr; for good after Ctrl-C, because there the threads are still ending."""
    loud = sys.stderr
    sys.stderr = MainThreadOnly(loud)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        sys.stderr = loud
        raise
    sys.stderr = loud
