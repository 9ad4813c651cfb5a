"""`python -m pipeline.inspect DATA_DIR`: what is in a data set, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commands import commandline
from pipeline.inspect import command

COMMAND = "pipeline.inspect"


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables and writes the picture.

    Raises:
      DataError: no valid data set, or a shard that is missing or has another size.
      UsageError: a flag that cannot work; a picture of images that the input does not read.
    """
    command.run(commandline.parse(COMMAND, "Show what is in a data set.", command.InspectConfig, argv))


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
