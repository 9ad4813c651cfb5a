"""The progress display of a running job: a bar on a terminal, a line every five seconds elsewhere."""

from __future__ import annotations

import abc
import os
import sys
import time
from types import TracebackType
from typing import Self

import tqdm

_SECONDS_BETWEEN_LINES = 5.0
_COLUMNS, _LINES = 80, 24  # for a terminal that reports no size, as in some containers


class Display(abc.ABC):
    """Polls the progress of a job and shows it; a context manager that removes the bar at its end.

    Attributes:
      finished: number of finished shards.
    """

    finished: int

    def __init__(self) -> None:
        """Polls for the first time and draws the bar."""
        self._next_look = self._look()
        self._started = time.monotonic()
        self._next_line = self._started + _SECONDS_BETWEEN_LINES
        self._bar = self._new_bar() if sys.stderr.isatty() else None

    @abc.abstractmethod
    def line(self) -> str:
        """Returns the progress in one line."""

    @abc.abstractmethod
    def _look(self) -> float:
        """Updates the progress; returns when to look again, in seconds of `time.monotonic`."""

    @abc.abstractmethod
    def _new_bar(self) -> tqdm.tqdm:
        """Returns a new bar, made with `bar`."""

    @abc.abstractmethod
    def _move(self, bar: tqdm.tqdm) -> None:
        """Sets the bar's number and text without drawing it."""

    def __enter__(self) -> Self:
        """Returns itself; the bar is drawn already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Removes the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()

    def show(self) -> None:
        """Moves the bar, or prints a line if the last one is five seconds old."""
        now = time.monotonic()
        if self._bar is not None and now >= self._next_look:
            self._next_look = self._look()
            self._move(self._bar)
            self._bar.refresh()
        elif self._bar is None and now >= self._next_line:
            self._next_look = self._look()
            self._next_line = now + _SECONDS_BETWEEN_LINES
            print(self.line(), flush=True)


def bar(text: str, form: str, done: int, total: int) -> tqdm.tqdm:
    """Returns a bar on stderr, as wide as the terminal.

    Args:
      text: tqdm's `desc`.
      form: tqdm's `bar_format`.
      done: the number it starts at.
      total: the number it ends at.
    """
    size = os.get_terminal_size(sys.stderr.fileno())
    return tqdm.tqdm(
        desc=text,
        total=total,
        initial=done,
        bar_format=form,
        smoothing=0,  # shards end in bursts: the mean rate since the start predicts the end better than the latest
        leave=False,
        dynamic_ncols=size.columns > 0 and size.lines > 0,
        ncols=size.columns or _COLUMNS,
        nrows=size.lines or _LINES,
    )
