"""A run's output on a terminal: lines, and one live line below them. Light to import."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

from pipeline.read import progress
from trainer.callbacks import heartbeat
from trainer.callbacks.base import Callback, Phase

_BETWEEN = 0.1  # seconds between updates of progress
_TICK = 1.0  # seconds between updates of a phase
_CLEAR = "\r\x1b[K"
_COLUMNS = 80  # for terminals that report no size, as in some containers
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}: ")  # prefix of lines, as in cifar10_train.py


class LiveLine(Callback):
    """A line on stderr's terminal, if there is one. A context manager that removes the line at the end.

    It has its own file descriptor, so that it is visible while stderr is held back.

    Attributes:
      is_on: whether there is a terminal and the line is wanted.
    """

    def __init__(self, wanted: bool = True) -> None:
        self.is_on = wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._terminal = os.dup(sys.stderr.fileno()) if self.is_on else -1
        self._text, self._drawn = "", -_BETWEEN
        self._phase: tuple[str, float] | None = None
        self._lock, self._closed = threading.RLock(), threading.Event()
        self._alone = contextlib.ExitStack()
        if self.is_on:
            self._alone.enter_context(progress.hidden())
            threading.Thread(target=self._tick, name="live line", daemon=True).start()

    @property
    def columns(self) -> int:
        """Largest number of columns that the line may have."""
        columns = 0
        with contextlib.suppress(OSError):  # the terminal is gone; the run continues
            columns = os.get_terminal_size(self._terminal).columns
        return (columns or _COLUMNS) - 1

    @property
    def is_due(self) -> bool:
        """Whether there is a terminal and it is time to update the progress."""
        return self.is_on and time.monotonic() >= self._drawn + _BETWEEN

    def on_phase(self, phase: Phase) -> None:
        """Shows the phase and, after a second, its duration: `loading TensorFlow, 3 s`."""
        text = phase.name if phase.shown is None else phase.shown
        with self._lock:
            self._phase = text, time.monotonic()
            self._draw(text)

    def show(self, text: str) -> None:
        """Shows progress."""
        with self._lock:
            self._phase, self._drawn = None, time.monotonic()
            self._draw(text)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Context in which the line is hidden, so that other lines can be printed."""
        with self._lock:
            text = self._text
            self._draw("")
            yield
            self._draw(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._draw("")
            self._closed.set()
            if self.is_on:
                self._alone.close()
                self.is_on = False
                os.close(self._terminal)

    def _draw(self, text: str) -> None:
        if self.is_on and text != self._text:
            self._text = text
            with contextlib.suppress(OSError):  # the terminal is gone; the run continues
                os.write(self._terminal, f"{_CLEAR}{text}".encode())

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self._lock:
                if self._phase and self._text:
                    what, began = self._phase
                    if (passed := int(time.monotonic() - began)) > 0:
                        self._draw(f"{what}, {passed} s")


class Output:
    """Lines on stdout: the chief's, and the few that other processes print.

    Args:
      rank: rank of the worker; the chief's is 0.
      live: live line below these lines, on a terminal.
      is_timed: whether each line begins with the local date and time; None if a launcher follows this process and the
        lines do not go to a terminal.

    Attributes:
      live: live line below these lines, on a terminal.
    """

    def __init__(self, rank: int = 0, live: LiveLine | None = None, is_timed: bool | None = None) -> None:
        self._rank, self.live = rank, live or LiveLine(wanted=False)
        self._is_timed = heartbeat.VARIABLE in os.environ and not sys.stdout.isatty() if is_timed is None else is_timed

    def line(self, text: str) -> None:
        """Prints a line on the chief."""
        if self._rank == 0:
            with self.live.aside():
                self.print(text)

    def other_line(self, text: str) -> None:
        """Prints a line, with the worker's rank, on every worker except the chief."""
        if self._rank > 0:
            self.print(f"worker {self._rank}: {text}")

    def print(self, text: str) -> None:
        """Prints a line on any process."""
        now = f"{datetime.datetime.now().isoformat(' ', 'milliseconds')}: " if self._is_timed else ""
        print(f"{now}{text}", flush=True)


def without_time(line: str) -> str:
    """Returns a line without its leading date and time, if there are any."""
    return _TIME.sub("", line, count=1) if _TIME.match(line) else line
