"""Signals: the first SIGTERM or SIGINT asks for a checkpoint and an end, a second one ends the process at once.

SIGUSR1 asks how the run is doing, SIGUSR2 for a checkpoint without an end.

Python's handlers run only between bytecodes, but an inner loop or a hung collective is one long call into TensorFlow.
So `signal.set_wakeup_fd` passes the numbers of the signals to a thread, which runs during such calls.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

from pipeline import errors

SIGNALS = (signal.SIGTERM, signal.SIGINT)
QUESTION = signal.SIGUSR1  # how the run is doing
SAVE = signal.SIGUSR2  # a checkpoint now
_ALL = (*SIGNALS, QUESTION, SAVE)


class Interrupt:
    """Context in which the signals are watched. Enter it in the main thread.

    Attributes:
      requested: the signal that asked for the end; None: none did.
      receiver: the process of the job that received it; empty: this one.
      asked: whether SIGUSR1 came; whoever answers sets it to False.
      saves: whether SIGUSR2 came; whoever saves sets it to False.
    """

    def __init__(self, command: str) -> None:
        self.requested: signal.Signals | None = None
        self.receiver = ""
        self.asked = self.saves = False
        self._command = errors.name_of(command)
        self._deferred = self._received = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Context in which a signal sets `requested`. Elsewhere it ends the process at once: nothing is to be saved."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    @property
    def reason(self) -> str:
        """What asked for the end: `SIGTERM`, `SIGTERM to ps 0 (host1:2222)`; empty: nothing did."""
        if self.requested is None:
            return ""
        return f"{self.requested.name} to {self.receiver}" if self.receiver else self.requested.name

    def forwarded(self, number: signal.Signals, receiver: str) -> None:
        """Asks for the end because another process of the job received a signal; this process has had none yet."""
        if self.requested is None:
            self.receiver = receiver
            self._ask(number)

    def end(self, message: str, code: int) -> NoReturn:
        """Ends the process at once, with a line on stderr. Threads call it while the main one hangs in a call."""
        clear = "\r\x1b[K" if os.isatty(self._stderr) else ""  # removes the live line
        os.write(self._stderr, f"{clear}{self._command}: {message}\n".encode())
        os._exit(code)  # not sys.exit: this is not the main thread, which may be inside TensorFlow for long

    @contextlib.contextmanager
    def left_to_the_system(self) -> Iterator[None]:
        """Context in which signals end the process by default, for calls that hold the interpreter's lock.

        At its end the signals are handled here again, even if TensorFlow has taken them: its preemption notifier takes
        SIGTERM when a cluster is joined.
        """
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        yield
        self._listen()

    def __enter__(self) -> Interrupt:
        """Takes the signals over."""
        self._stderr = os.dup(2)  # file descriptor 2 may be redirected later
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handlers = {number: signal.getsignal(number) for number in _ALL}
        self._listen()
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """Gives the signals back."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._write)  # ends the thread

    def _listen(self) -> None:
        for number in _ALL:
            signal.signal(number, lambda number, frame: None)  # the thread does the work

    def _watch(self) -> None:
        while byte := os.read(self._read, 1):
            if byte[0] in SIGNALS:
                self._receive(signal.Signals(byte[0]))
            self.asked = self.asked or byte[0] == QUESTION
            self.saves = self.saves or byte[0] == SAVE
        os.close(self._read)
        os.close(self._stderr)

    def _receive(self, number: signal.Signals) -> None:
        if self._received:
            self.end(f"{number.name} again: ended without saving", 128 + number)
        self._received = True
        if self.requested is None:
            self._ask(number)

    def _ask(self, number: signal.Signals) -> None:
        self.requested = number
        if not self._deferred:
            self.end(f"{self.reason}: nothing to save; rerun the same command to resume", errors.EXIT_RERUN)
