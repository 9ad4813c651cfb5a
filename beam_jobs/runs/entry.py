"""The start and end of commands that run a Beam pipeline: signals, exit codes, errors in one line."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn


def run(command: str, main: Callable[[Sequence[str] | None], Any]) -> NoReturn:
    """Runs a command and exits; Ctrl-C and SIGTERM end it immediately, with one line.

    `main` should import heavy modules itself, not at the top of its module.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name need not be valid text
    signals: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        from pipeline.commands import commandline  # noqa: PLC0415 (0.3 s to import, in which Ctrl-C is answered already)

        commandline.run(command, main)
    except BaseException as error:
        if not signals:
            raise
        if not isinstance(error, SystemExit):  # raised by the import, or by a clean-up that failed after the signal
            from pipeline.errors import name_of  # noqa: PLC0415 (as above)

            print(f"{name_of(command)}: interrupted", file=sys.stderr, flush=True)
        # Python's own exit would wait for Beam's threads, which keep running.
        sys.stdout.flush()
        os._exit(128 + signals[0])


def check_beam_flags(arguments: Sequence[str], our_flags: Sequence[str]) -> None:
    """Raises UsageError for arguments that neither we nor Beam, if it is installed, know."""
    if importlib.util.find_spec("apache_beam") is None:
        return
    from pipeline.commands import quiet  # noqa: PLC0415 (as above)

    with quiet.loading():
        from beam_jobs.runs import runners  # noqa: PLC0415 (2 s to import)
    runners.parse(arguments, our_flags)
