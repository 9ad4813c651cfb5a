"""Shows how far a validation is, by counting the marks of finished shards: no runner tells it while it runs."""

from __future__ import annotations

import contextlib
import os
import time

import tqdm

from beam_jobs.runs import display
from beam_jobs.runs.display import Display
from pipeline.manifest import Manifest

_SECONDS_BETWEEN_LOOKS = 0.5
_BAR = "{percentage:3.0f}%|{bar}| {desc}, {elapsed}<{remaining}"


class Progress(Display):
    """Shows a validation."""

    def __init__(self, manifest: Manifest, marks: str) -> None:
        """Draws the bar.

        Args:
          manifest: the data set.
          marks: the folder that gets a file for each finished shard, named by its number.
        """
        self._marks = marks
        self._sizes = [shard.num_bytes for shard in manifest.shards]
        self._total = sum(self._sizes)
        self.finished = self._bytes = 0
        super().__init__()

    def line(self) -> str:
        """Returns the line to show."""
        rate = self._bytes / max(time.monotonic() - self._started, 1e-9)
        return (
            f"{self.finished} of {len(self._sizes)} shards, {_mib(self._bytes)} of {_mib(self._total)} MiB, "
            f"{_mib(rate)} MiB/s"
        )

    def _new_bar(self) -> tqdm.tqdm:
        return display.bar(self.line(), _BAR, self._bytes, self._total)

    def _move(self, bar: tqdm.tqdm) -> None:
        bar.set_description_str(self.line(), refresh=False)
        bar.n = self._bytes

    def _look(self) -> float:
        with contextlib.suppress(OSError):
            done = [int(name) for name in os.listdir(self._marks) if name.isdecimal()]
            self.finished = len(done)
            self._bytes = sum(self._sizes[number] for number in done)
        return time.monotonic() + _SECONDS_BETWEEN_LOOKS


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / (1 << 20):,.1f}"
