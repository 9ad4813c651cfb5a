"""Keeps the output of Beam's threads off the terminal: what matters of it comes back as an error of one line."""

from __future__ import annotations

import threading
from typing import Any, TextIO


class MainThreadOnly:
    """A text stream that drops what other threads write.

    A worker thread of Beam prints the traceback of an error that it also sends to the runner, and its other threads
    end with tracebacks of their own when a worker process goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, if this is the main thread."""
        return self._stream.write(text) if threading.current_thread() is threading.main_thread() else len(text)
