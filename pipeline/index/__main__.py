"""`python -m pipeline.index DATA_DIR --split=train:'train-*.tfrecord'`: a data set of TFRecord files as they are."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commands import commandline
from pipeline.index.config import IndexConfig

COMMAND = "pipeline.index"


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the files and writes the manifest.

    Raises:
      DataError: a file that cannot be read, or a record that is corrupt; a folder that cannot be written to.
      UsageError: a flag that cannot work, or a manifest that must not be replaced.
    """
    description = "Make TFRecord files of any kind a data set for pipeline.input_fn."
    config = commandline.parse(COMMAND, description, IndexConfig, argv)
    from pipeline.index import command  # noqa: PLC0415, here because --help must be fast

    command.run(config)


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
