"""How far a validation is, by counting the marks of shards that are done: no runner tells it while it runs."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

import tqdm

from pipeline.manifest import Manifest

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_LOOKS = 0.5
_BAR = "{percentage:3.0f}%|{bar}| {desc}, {elapsed}<{remaining}"


class Progress:
    """A bar on a terminal, a line every five seconds elsewhere.

    Attributes:
      finished: shards that are done.
    """

    def __init__(self, manifest: Manifest, marks: str) -> None:
        """Makes it; the bar is drawn from here on.

        Args:
          manifest: the data set.
          marks: the folder that gets a file for each shard that is done, of its number as the name.
        """
        self._marks = marks
        self._sizes = [shard.num_bytes for shard in manifest.shards]
        self._total = sum(self._sizes)
        self.finished = 0
        self._bytes = 0
        self._started = time.monotonic()
        self._next_line = self._started + _SECONDS_BETWEEN_LINES
        self._next_look = self._started
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm.tqdm(desc=self.line(), total=self._total, bar_format=_BAR, smoothing=0, leave=False)

    def __enter__(self) -> Progress:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Takes the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()

    def show(self) -> None:
        """Moves the bar, or prints a line if the last one is five seconds old."""
        now = time.monotonic()
        if self._bar is not None and now >= self._next_look:
            self._look()
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
            self._bar.set_description_str(self.line(), refresh=False)
            self._bar.n = self._bytes
            self._bar.refresh()
        elif self._bar is None and now >= self._next_line:
            self._look()
            self._next_line = now + _SECONDS_BETWEEN_LINES
            print(self.line(), flush=True)

    def line(self) -> str:
        """Returns what there is to say."""
        rate = self._bytes / max(time.monotonic() - self._started, 1e-9)
        return (
            f"{self.finished} of {len(self._sizes)} shards, {_mib(self._bytes)} of {_mib(self._total)} MiB, "
            f"{_mib(rate)} MiB/s"
        )

    def _look(self) -> None:
        try:
            done = [int(name) for name in os.listdir(self._marks) if name.isdecimal()]
        except OSError:
            return
        self.finished = len(done)
        self._bytes = sum(self._sizes[number] for number in done)


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / (1 << 20):,.1f}"
