"""Ctrl-C, SIGTERM and the end of the terminal: the first asks the job to save and end, the second kills it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Context in which the signals are taken.

    Attributes:
      received: which came, in order.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []

    @property
    def is_asked(self) -> bool:
        """Whether the job is to save and end."""
        return bool(self.received)

    @property
    def is_urgent(self) -> bool:
        """Whether it is to end at once."""
        return len(self.received) > 1

    def __enter__(self) -> Self:
        """Takes the signals, but for those that are ignored, as SIGHUP is under nohup."""
        self._handlers = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in self._handlers.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        """Gives them back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received.append(signal.Signals(number))
