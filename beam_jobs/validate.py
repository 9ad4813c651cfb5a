"""Checks a data set against its manifest, byte by byte: `python -m beam_jobs.validate --help`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from beam_jobs.runs import entry

COMMAND = "beam_jobs.validate"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: bad flags, no data set, or a data set that differs from its manifest, in one line of text.
    """
    from pipeline.commands import commandline  # noqa: PLC0415 (as in `entry`)

    commandline.require("pyarrow")  # imported by the modules of a conversion
    from beam_jobs.validation import command as validation  # noqa: PLC0415 (0.3 s to import, in which Ctrl-C is answered already)

    validation.validate(COMMAND, argv)


def entry_point() -> NoReturn:
    """Runs the command and exits."""
    entry.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
