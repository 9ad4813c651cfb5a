"""Notices that a process is silent: dead without an end, stopped, or alive and achieving nothing."""

from __future__ import annotations

import pathlib

from trainer.actions.heartbeat import Beat

STARTING_SECONDS = 60.0  # that Python may need to start besides, on a busy machine
_LONG = 10.0  # times the timeout, for phases in which nothing can be counted, such as compiling
_MISSED = 4.0  # seconds after which beats are late


class Listener:
    """Reads the heartbeats of a process. Times are those of this process's clock alone.

    Attributes:
      beat: the newest; None: there was none.
    """

    def __init__(self, path: pathlib.Path, timeout: float, now: float) -> None:
        """Has heard nothing yet.

        Args:
          path: of the file.
          timeout: seconds after which a process is silent.
          now: when the process was started.
        """
        self._path, self._timeout = path, timeout
        self.beat: Beat | None = None
        self._heard = self._achieved = self._now = now

    def hear(self, now: float) -> None:
        """Reads the file."""
        self._now = now
        beat = Beat.read(self._path)
        if beat is None or (self.beat and beat.beats == self.beat.beats):
            return
        if self.beat is None or beat.achieved != self.beat.achieved:
            self._achieved = now
        self.beat, self._heard = beat, now

    @property
    def has_stepped(self) -> bool:
        """Whether the process has made a step."""
        return self.beat is not None and self.beat.made > 0

    @property
    def unheard(self) -> float:
        """Seconds since the last beat."""
        return self._now - self._heard

    @property
    def is_late(self) -> bool:
        """Whether beats do not come that should: a sign of which process of several made the others fail."""
        return self.beat is not None and self.unheard > _MISSED + self.beat.quiet

    @property
    def silence(self) -> str:
        """What is missing for too long; empty: nothing is."""
        if self.beat is None:
            is_silent = self.unheard > self._timeout + STARTING_SECONDS
            return f"gave no sign of life for {self.unheard:.0f} s" if is_silent else ""
        if self.unheard > self._timeout + self.beat.quiet:
            return f"gave no sign of life for {self.unheard:.0f} s{self._where()}"
        return f"made no progress for {self._now - self._achieved:.0f} s{self._where()}" if self._hangs() else ""

    def _hangs(self) -> bool:
        assert self.beat is not None
        passed, expected = self._now - self._achieved, self.beat.expects
        if expected == "steps":
            return passed > max(self._timeout, self.beat.patience)
        return expected == "end" and passed > _LONG * self._timeout + self.beat.quiet

    def _where(self) -> str:
        assert self.beat is not None
        step = "" if self.beat.step is None else f" after step {self.beat.step}"
        return f"{step} ({self.beat.phase})"
