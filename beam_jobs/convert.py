"""Converts a data set into sharded TFRecords and a manifest: `python -m beam_jobs.convert --help`."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

COMMAND = "beam_jobs.convert"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    from beam_jobs import conversion  # noqa: PLC0415 (0.3 s to import, in which Ctrl-C is answered already)

    conversion.convert(COMMAND, argv)


def entry_point() -> NoReturn:
    """Runs the command and exits; Ctrl-C and SIGTERM end it at once, with one line and no manifest."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name need not be valid text
    signals: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        _run()
    except SystemExit:
        if signals:
            # Python's own exit would first wait for Beam's threads, which go on writing shards.
            sys.stdout.flush()
            os._exit(128 + signals[0])
        raise


def _run() -> NoReturn:
    try:
        from pipeline import commandline  # noqa: PLC0415 (as in main)
    except KeyboardInterrupt:
        print(f"{COMMAND}: interrupted", file=sys.stderr, flush=True)
        sys.exit(128 + signal.SIGINT)
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
