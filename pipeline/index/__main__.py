"""`python -m pipeline.index DATA_DIR --split=train:'train-*.tfrecord'`: a data set of TFRecord files as they are."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import simple_parsing

from pipeline.commands import commandline
from pipeline.errors import UsageError, unknown
from pipeline.manifest import naming

COMMAND = "pipeline.index"


@dataclasses.dataclass(frozen=True)
class IndexConfig:
    """Reads and checks every record once and writes manifest.json beside the files, which stay unchanged."""

    data_dir: str = simple_parsing.field(positional=True, metavar="DATA_DIR")  # the folder of the files
    # a split's name and its files: train:'train-*.tfrecord'; repeat for more patterns or splits
    split: list[str] = simple_parsing.field(  # noqa: RUF009
        default_factory=list, action="append", nargs=None, metavar="NAME:PATTERN"
    )
    compression: str = ""  # of the files: GZIP, or none
    overwrite: bool = False  # replace a manifest that this command made

    def __post_init__(self) -> None:
        if not self.data_dir.strip() or ("://" not in self.data_dir and os.path.realpath(self.data_dir) == "/"):
            raise UsageError(
                f"DATA_DIR={self.data_dir!r}: must be the folder of the files; a manifest is written there"
            )
        if self.compression not in naming.COMPRESSIONS:
            raise unknown("--compression", self.compression, [name for name in naming.COMPRESSIONS if name])
        if "://" in self.data_dir:
            raise UsageError(f"{self.data_dir}: must be a local or mounted folder; index it there, then copy all of it")


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the files and writes the manifest.

    Raises:
      DataError: a file cannot be read, a record is corrupt, or the folder cannot be written to.
      UsageError: a flag cannot work, or the manifest must not be replaced.
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
