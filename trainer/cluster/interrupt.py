"""Signals: the first SIGTERM, SIGINT or SIGHUP asks to save a checkpoint and end, a second one ends immediately.

SIGHUP comes when a terminal is closed or its connection breaks; if it is ignored, as under nohup, it stays ignored.

SIGUSR1 asks for the run's status, SIGUSR2 for a checkpoint while training continues.

Python's handlers only run between bytecodes, but an inner loop or a hung collective is one long call into TensorFlow.
So `signal.set_wakeup_fd` passes signal numbers to a thread, which runs during such calls.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

from pipeline import errors

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
QUESTION = signal.SIGUSR1  # asks for the run's status
SAVE = signal.SIGUSR2  # asks for a checkpoint now
_ALL = (*SIGNALS, QUESTION, SAVE)


class Interrupt:
    """Context that watches signals. Enter it in the main thread.

    Attributes:
      requested: signal that asked for the end; None if there was none.
      receiver: name of the job's process that received it; empty for this one.
      asked: whether SIGUSR1 arrived; the code that answers resets it.
      saves: whether SIGUSR2 arrived; the code that saves resets it.
    """

    def __init__(self, command: str) -> None:
        self.requested: signal.Signals | None = None
        self.receiver = ""
        self.asked = self.saves = False
        self._command = errors.name_of(command)
        self._deferred = self._received = False
        self._first = ""

    @contextlib.contextmanager
    def deferred(self, first: str = "") -> Iterator[None]:
        """Context in which a signal sets `requested`. Elsewhere a signal ends the process immediately, without a save.

        Args:
          first: text on what comes before the end, such as `stops after the current step and saves`, printed when the
            signal arrives, as a step or its compilation may take minutes. Empty to print nothing.
        """
        self._deferred, self._first = True, first
        try:
            yield
        finally:
            self._deferred = False

    @property
    def reason(self) -> str:
        """Reason for the end: `SIGTERM`, `SIGTERM to ps 0 (host1:2222)`; empty if there is none."""
        if self.requested is None:
            return ""
        return f"{self.requested.name} to {self.receiver}" if self.receiver else self.requested.name

    def forwarded(self, number: signal.Signals, receiver: str) -> None:
        """Asks for the end because another process of the job received a signal before this one did."""
        if self.requested is None:
            self.receiver = receiver
            self._ask(number)

    def end(self, message: str, code: int) -> NoReturn:
        """Ends the process immediately, with a line on stderr. Threads call it if the main thread hangs in a call."""
        self._say(message)
        os._exit(code)  # not sys.exit: the main thread may stay inside TensorFlow for long

    @contextlib.contextmanager
    def left_to_the_system(self) -> Iterator[None]:
        """Context in which signals end the process by default, for calls that hold the interpreter's lock.

        Afterwards signals are handled here again, even if TensorFlow has taken them over: its preemption notifier takes
        SIGTERM when joining a cluster.
        """
        for number in self._handlers.keys() & {*SIGNALS}:
            signal.signal(number, signal.SIG_DFL)
        yield
        self._listen()

    def __enter__(self) -> Interrupt:
        self._stderr = os.dup(2)  # file descriptor 2 may be redirected later
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        handlers = {number: signal.getsignal(number) for number in _ALL}
        is_ignored = handlers[signal.SIGHUP] is signal.SIG_IGN
        self._handlers = {number: it for number, it in handlers.items() if number != signal.SIGHUP or not is_ignored}
        self._listen()
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._write)  # ends the thread

    def _listen(self) -> None:
        for number in self._handlers:
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
        if self._received and number == signal.SIGHUP:
            return  # the system and the shell may each send one
        if self._received:
            self.end(f"{number.name} again: ended without saving", 128 + number)
        self._received = True
        if self.requested is None:
            self._ask(number)

    def _ask(self, number: signal.Signals) -> None:
        self.requested = number
        if not self._deferred:
            self.end(f"{self.reason}: nothing to save; rerun the same command to resume", errors.EXIT_RERUN)
        elif self._first:
            self._say(f"{self.reason}: {self._first}; a second signal ends it at once, without saving")

    def _say(self, message: str) -> None:
        clear = "\r\x1b[K" if os.isatty(self._stderr) else ""  # removes the live line
        with contextlib.suppress(OSError):  # nobody can read it any more
            os.write(self._stderr, f"{clear}{self._command}: {message}\n".encode())
