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
    """A bar on a terminal, a line every five seconds elsewhere.

    A shard is counted when its name is there with another inode than before the start, so that what an earlier,
    killed conversion left under the same name is not taken for done.
    """

    def __init__(self, plan: Plan) -> None:
        self._folder = pathlib.Path(plan.data_dir)
        self._names = plan.file_names
        self._before = self._identities()
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
        """Shards that were written since the start."""
        return sum(identity != self._before.get(name) for name, identity in self._identities().items())

    def show(self) -> None:
        """Moves the bar, or prints a line if the last one is five seconds old."""
        if self._bar is not None:
            self._bar.update(self.finished - self._bar.n)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print(f"{self.finished} of {self._total} shards written", flush=True)

    def _identities(self) -> dict[str, tuple[int, int]]:
        found = {}
        wanted = set(self._names)
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name in wanted:
                    status = entry.stat()
                    found[entry.name] = (status.st_ino, status.st_mtime_ns)
        return found
