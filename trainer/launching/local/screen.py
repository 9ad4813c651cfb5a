"""What the launcher shows: the lines of all processes, each after the name of its process, and its own."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import time
from typing import Literal, TextIO, TypeAlias

from pipeline import errors
from pipeline.commands import commandline
from trainer.callbacks.terminal import without_time
from trainer.launching.local.report import JobReport

_COMMAND = "trainer.launch"
Kind: TypeAlias = Literal["job", "failure", "end"]  # of an event


class Screen:
    """Plain lines. If stdout or stderr is gone, as when a terminal closes, the job goes on without it.

    Lines can be held back, so that a first cause is shown before what followed from it.

    Args:
      hides_time: whether lines that begin with a date and time are shown without them on a terminal.
      events: file to which the launcher's own lines are added, for `trainer.watch`; None: nobody reads it.
    """

    def __init__(self, hides_time: bool = False, events: pathlib.Path | None = None) -> None:
        self._events = events
        self._hides_time = hides_time and sys.stdout.isatty()
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
            shown = without_time(text) if self._hides_time and not is_error else text
            self._show(f"{name:<{self._width}} | ", shown, is_error)

    def say(self, text: str, kind: Kind = "job") -> None:
        """Shows a line of the launcher itself, which is also an event of a kind."""
        self._show(f"{errors.name_of(_COMMAND)}: ", text, is_error=True)
        self.note(text, kind)

    def note(self, text: str, kind: Kind = "job") -> None:
        """Adds an event to the file of them, without showing it."""
        if self._events is not None:
            with contextlib.suppress(OSError), self._events.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps({'time': round(time.time(), 3), 'kind': kind, 'text': text})}\n")

    def hold(self) -> None:
        """Holds back the lines of processes from now on."""
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
    except (OSError, ValueError):  # its reader is gone; Python would try to write the rest again at its end
        with contextlib.suppress(OSError, ValueError):
            commandline.discard(stream)
