"""How long to wait before the next restart."""

from __future__ import annotations

_MOST = 60.0  # seconds


class BackOff:
    """Delays that double with each restart, until there is progress: a step beyond all earlier ones."""

    def __init__(self, delay: float) -> None:
        """Begins with that delay, in seconds."""
        self._delay, self._next, self._best = delay, delay, -1

    def next(self, step: int | None) -> float:
        """Returns the seconds to wait after a failure.

        Args:
          step: the last one that was made; None: there was none.
        """
        if step is not None and step > self._best:
            self._best, self._next = step, self._delay
        seconds = self._next
        self._next = min(2 * seconds, max(_MOST, self._delay))
        return seconds
