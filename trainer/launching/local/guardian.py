"""A small process that ends a launcher's processes after the launcher itself has died, for example of SIGKILL.

It learns about the processes from a pipe, which closes when the launcher ends for any reason. The system then asks them
to save and end (`process.py` makes it send SIGTERM; a second one would mean: without saving), and after a while the
guardian kills what is left of their process groups. It runs as a separate program with only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Self

_POLL = 0.05  # seconds


class Guardian:
    """The launcher's side: a context manager that starts the guardian and ends it once it has nothing left to guard."""

    def __init__(self, grace: float) -> None:
        """Creates the guardian, which starts when its context is entered.

        Args:
          grace: seconds that the processes have to save and end.
        """
        self._grace = grace

    def guard(self, pid: int) -> None:
        """Guards a process, which must lead a process group."""
        self._tell(f"+{pid}")

    def release(self, pid: int) -> None:
        """Stops guarding a process that has ended together with its group."""
        self._tell(f"-{pid}")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the guardian was killed; the job continues without it
            os.write(self._pipe, f"{line}\n".encode())

    def __enter__(self) -> Self:
        """Starts the guardian in its own session, so that a signal to the launcher's session does not reach it."""
        read, self._pipe = os.pipe()
        # With -I and -S it starts in 10 ms, whatever the environment.
        command = [sys.executable, "-I", "-S", __file__, str(self._grace)]
        self._process = subprocess.Popen(command, stdin=read, start_new_session=True, cwd="/")
        os.close(read)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._pipe)
        self._process.wait()


def _end(pids: set[int], grace: float) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if not sys.platform.startswith("linux"):
                os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a stopped process could not handle SIGTERM
    end = time.monotonic() + grace
    while time.monotonic() < end and any(map(_is_running, pids)):
        time.sleep(_POLL)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        if not sys.platform.startswith("linux"):
            return True
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def main() -> None:
    """Guards processes until stdin closes, then ends them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pids: set[int] = set()
    for line in sys.stdin:
        (pids.add if line[0] == "+" else pids.discard)(int(line[1:]))
    _end(pids, float(sys.argv[1]))


if __name__ == "__main__":
    main()
