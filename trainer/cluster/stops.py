"""Notices that this process was stopped (by SIGSTOP, a debugger, a paused machine), which makes others give it up."""

from __future__ import annotations

import time

from pipeline.errors import RerunError

_RECENT = 30.0  # seconds for which a stop explains the loss of the others


class Stops:
    """The last stop of this process, detected by a ticking thread when a tick is late."""

    def __init__(self) -> None:
        self._ticked = time.monotonic()
        self._gap, self._until = 0.0, self._ticked

    def tick(self, least: float) -> float:
        """Returns the seconds since the last tick, which count as a stop if they are at least `least`."""
        now = time.monotonic()
        passed, self._ticked = now - self._ticked, now
        if passed >= least:
            self._gap, self._until = passed, now
        return passed

    def recent(self, least: float) -> float:
        """Returns the seconds of a stop that just ended and took at least `least`; 0 if there was none."""
        self.tick(least)
        is_recent = self._gap >= least and self._ticked - self._until < _RECENT
        return self._gap if is_recent else 0.0


def given_up(name: str, stopped: float, timeout: float) -> RerunError:
    """Returns the error of a process that was itself stopped for longer than --collective_timeout."""
    return RerunError(
        f"{name} was stopped, or stuck, for {stopped:.0f} s, longer than --collective_timeout={timeout:g}: the others "
        "have given it up; rerun the same commands to resume from the last checkpoint"
    )
