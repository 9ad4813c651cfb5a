"""Sets labels and deletes records of a data set, as its next version: `python -m beam_jobs.edit --help`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from beam_jobs.runs import entry

COMMAND = "beam_jobs.edit"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    from pipeline.commands import commandline  # noqa: PLC0415 (as in `entry`)

    commandline.require("pyarrow")  # reads tables of labels
    from beam_jobs.conversion import editing  # noqa: PLC0415 (0.3 s to import, in which Ctrl-C is answered already)

    editing.edit(COMMAND, argv)


def entry_point() -> NoReturn:
    """Runs the command and exits; Ctrl-C or SIGTERM leaves the old version, or the new one."""
    entry.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
