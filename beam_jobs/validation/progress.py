"""The progress of a validation, counted from the marks of finished shards."""

from __future__ import annotations

import contextlib
import os

from beam_jobs.runs.display import Display
from pipeline.commands.text import count_of
from pipeline.manifest import Manifest


class Progress(Display):
    """Shows a validation, in bytes of its shards."""

    def __init__(self, manifest: Manifest, marks: str) -> None:
        """Draws the bar; the folder `marks` gets a file for each finished shard, named by its number."""
        self._marks = marks
        self._sizes = [shard.num_bytes for shard in manifest.shards]
        super().__init__(sum(self._sizes))

    def text(self) -> str:
        """Returns the progress in one line."""
        done, total, rate = (f"{num_bytes / (1 << 20):,.1f}" for num_bytes in (self.done, self.total, self.rate))
        return f"{self.finished:,} of {count_of(len(self._sizes), 'shard')}, {done} of {total} MiB, {rate} MiB/s"

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            numbers = [int(name) for name in os.listdir(self._marks) if name.isdecimal()]
            self.finished, self.done = len(numbers), sum(self._sizes[number] for number in numbers)
