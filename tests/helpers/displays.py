"""A terminal to show progress on, and time that passes for it."""

import contextlib
import fcntl
import os
import struct
import sys
import termios


def opened(columns, lines=40):
    """Returns the end of a new terminal that we read, and the file that a program writes to."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    return ours, os.fdopen(theirs, "w")


@contextlib.contextmanager
def terminal(columns, lines=40):
    """Replaces stderr by a terminal of that size; yields a function that returns the terminal's input."""
    ours, theirs = opened(columns, lines)
    before, sys.stderr = sys.stderr, theirs

    def sent():
        sys.stderr.flush()
        os.set_blocking(ours, False)
        found = b""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(ours, 1 << 16):
                found += data
        return found.decode()

    try:
        yield sent
    finally:
        sys.stderr.close()
        sys.stderr = before
        os.close(ours)


def later(progress, seconds):
    """Lets `seconds` pass for it: when it began, looked and spoke is so much longer ago."""
    for name in ("_started", "_next_line", "_next_look"):
        setattr(progress, name, getattr(progress, name) - seconds)
