"""`python -m pipeline.inspect DATA_DIR`: what is in a data set, as tables and as a picture."""

from __future__ import annotations

from pipeline.commands import commandline
from pipeline.inspect.command import COMMAND, main


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
