"""`python -m trainer.export`: writes a trained model to files that accept raw images and need none of our code.

Exit codes: 0 done; 1 the data or a checkpoint is bad, or a file and the model disagree; 2 a flag is invalid.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from pipeline.commands import commandline
from pipeline.errors import name_of
from trainer import lazy_imports
from trainer.checkpoint import files
from trainer.config.trained import FORMATS, ExportConfig

COMMAND = "trainer.export"
_DESCRIPTION = (
    f"Exports a checkpoint of {name_of('trainer.run')}, with the preprocessing inside: raw uint8 images in, "
    "probabilities and class names out. If the run's task parses records, the program takes these, with the features "
    "that the parser reads; those that only labels are made of may be missing. Each file is reloaded in another "
    "process, and compared with the trained model on real examples."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: any error that a user can cause.
    """
    config = commandline.parse(COMMAND, _DESCRIPTION, ExportConfig, argv)
    commandline.require("tensorflow", *(library for name in config.formats for library in FORMATS[name].libraries))
    found = files.candidates(config.folder.path, config.checkpoint)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # one kind of device for both sides of the comparison, and any machine
    with lazy_imports.loading():
        from trainer.exporting import command  # noqa: PLC0415, here because it loads TensorFlow

    command.run(config, found)


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
