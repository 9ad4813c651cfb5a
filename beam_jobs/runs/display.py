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
_LOOKING = 0.05  # of the time, at most: 99,999 shards, or those of an object store, take longer to list
_COLUMNS, _LINES = 80, 24  # for a terminal that reports no size, as in some containers


class Display(abc.ABC):
    """Polls the progress of a job and shows it; a context manager that removes the bar at its end.

    No runner reports progress while it runs, so each display looks at what the workers leave in a folder.

    Attributes:
      seconds_between_looks: at least.
      total: the amount of work.
      done: how much of it is done.
      finished: number of finished shards.
    """

    seconds_between_looks = 0.5

    def __init__(self, total: int) -> None:
        """Polls for the first time and draws the bar."""
        self.total, self.done, self.finished = total, 0, 0
        self._poll()
        self._at_start = self.done
        self._started = time.monotonic()
        self._next_line = self._started + _SECONDS_BETWEEN_LINES
        self._bar = self._new_bar() if sys.stderr.isatty() else None

    @abc.abstractmethod
    def text(self) -> str:
        """Returns the progress in one line."""

    @abc.abstractmethod
    def _look(self) -> None:
        """Updates `done` and `finished`."""

    @property
    def rate(self) -> float:
        """Work per second, of this run only."""
        return (self.done - self._at_start) / max(time.monotonic() - self._started, 1e-9)

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
            self._poll()
            self._bar.n = self.done
            self._bar.set_description_str(self.text())
        elif self._bar is None and now >= self._next_line:
            self._poll()
            self._next_line = now + _SECONDS_BETWEEN_LINES
            left = tqdm.tqdm.format_interval((self.total - self.done) / self.rate) if self.rate else ""
            print(f"{self.text()}{left and f', {left} left'}", flush=True)

    def _poll(self) -> None:
        began = time.monotonic()
        self._look()
        now = time.monotonic()
        self._next_look = now + max(self.seconds_between_looks, (now - began) / _LOOKING)

    def _new_bar(self) -> tqdm.tqdm:
        size = os.get_terminal_size(sys.stderr.fileno())
        return tqdm.tqdm(
            desc=self.text(),
            total=self.total,
            initial=self.done,
            bar_format="{percentage:3.0f}%|{bar}| {desc}, {elapsed}<{remaining}",
            smoothing=0,  # shards end in bursts: the mean rate since the start predicts the end better than the latest
            leave=False,
            dynamic_ncols=size.columns > 0 and size.lines > 0,
            ncols=size.columns or _COLUMNS,
            nrows=size.lines or _LINES,
        )
