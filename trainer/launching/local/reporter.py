"""Writes and shows the report of a job, about once per second and where its state changes."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence

from trainer.launching.local.records import Records
from trainer.launching.local.report import State
from trainer.launching.local.screen import Screen

_EVERY = 1.0  # seconds


class Reporter:
    """Keeps `status.json` and the table up to date."""

    def __init__(
        self, records: Records, screen: Screen, folder: pathlib.Path, lost: Callable[[], Sequence[int]]
    ) -> None:
        """Has reported nothing yet.

        Args:
          records: of the job.
          screen: with the table.
          folder: for the file.
          lost: slots that are given up.
        """
        self._records, self._screen, self._folder, self._lost = records, screen, folder, lost
        self._state: State = "starting"
        self._written = 0.0

    def set(self, state: State, exit_code: int | None = None) -> None:
        """Reports another state, at once."""
        self._state = state
        report = self._records.report(state, self._lost(), exit_code)
        report.write(self._folder)
        self._screen.update(report)
        self._written = time.monotonic()

    def tick(self) -> None:
        """Reports how it goes, where that is due."""
        now = time.monotonic()
        if self._state == "starting" and self._records.has_stepped:
            self.set("training")
        if is_due := now - self._written >= _EVERY:
            self._written = now
        if is_due or self._screen.is_due:
            report = self._records.report(self._state, self._lost())
            self._screen.update(report)
            if is_due:
                report.write(self._folder)
