"""Converts a data set into sharded TFRecords and a manifest: `python -m beam_jobs.convert --help`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from beam_jobs.runs import entry

COMMAND = "beam_jobs.convert"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    from pipeline.commands import commandline  # noqa: PLC0415 (as in `entry`)

    commandline.require("pyarrow")  # imported by the modules of a conversion
    from beam_jobs.conversion import command  # noqa: PLC0415 (0.3 s to import, in which Ctrl-C is answered already)

    command.convert(COMMAND, argv)


def entry_point() -> NoReturn:
    """Runs the command and exits; Ctrl-C or SIGTERM leaves no manifest."""
    entry.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
