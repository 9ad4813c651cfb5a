"""How far a conversion is, by counting the finished shards: no runner tells it while it runs."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from types import TracebackType

import tqdm

from beam_jobs.plan import Plan

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """A bar on a terminal, a line every five seconds elsewhere; the folder is this conversion's alone."""

    def __init__(self, plan: Plan) -> None:
        self._folder = pathlib.Path(plan.data_dir)
        self._names = frozenset(plan.file_names)
        self._total = len(self._names)
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        self._bar = tqdm.tqdm(total=self._total, unit="shard", leave=False) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        """Returns itself; the bar is drawn already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Takes the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()

    @property
    def finished(self) -> int:
        """Shards that are written."""
        try:
            return len(self._names.intersection(os.listdir(self._folder)))
        except OSError:  # the workers will say what has become of it
            return 0

    def show(self) -> None:
        """Moves the bar, or prints a line if the last one is five seconds old."""
        if self._bar is not None:
            self._bar.update(self.finished - self._bar.n)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print(f"{self.finished} of {self._total} shards written", flush=True)
