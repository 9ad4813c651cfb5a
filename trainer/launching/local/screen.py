"""What the launcher shows: the lines of all processes, each with its name before it, and its own."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from pipeline.commands import commandline
from trainer.launching.local.report import JobReport

_COMMAND = "trainer.launch"


class Screen:
    """Plain lines. Where stdout or stderr is gone, as with the terminal, the job goes on without.

    Lines can be held back, so that a first cause is shown before what followed from it.
    """

    def __init__(self) -> None:
        self._held: list[tuple[str, str, bool]] | None = None
        self._width = 0

    def name_width(self, width: int) -> None:
        """Sets the width of names before lines."""
        self._width = width

    def line(self, name: str, text: str, is_error: bool) -> None:
        """Shows a line of a process."""
        if self._held is not None:
            self._held.append((name, text, is_error))
        else:
            self._show(f"{name:<{self._width}} | ", text, is_error)

    def say(self, text: str) -> None:
        """Shows a line of the launcher's own."""
        self._show(f"{_COMMAND}: ", text, is_error=True)

    def hold(self) -> None:
        """Holds lines of processes back from now on."""
        self._held = [] if self._held is None else self._held

    def release(self) -> None:
        """Shows what was held back."""
        held, self._held = self._held or [], None
        for line in held:
            self.line(*line)

    @property
    def is_due(self) -> bool:
        """Whether to show again how the job is doing."""
        return False

    def update(self, report: JobReport) -> None:
        """Shows how the job is doing."""

    def close(self) -> None:
        """Ends."""
        self.release()

    def _show(self, prefix: str, text: str, is_error: bool) -> None:
        _write(sys.stderr if is_error else sys.stdout, f"{prefix}{text}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # its reader is gone; what it holds must not be tried again at the end
        with contextlib.suppress(OSError, ValueError):
            commandline.discard(stream)
