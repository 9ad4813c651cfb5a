"""`python -m trainer.predict`: the classes of your images, by a trained model.

Exit codes: 0 done; 1 an image or a checkpoint cannot be read; 2 a flag is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import NoReturn

from pipeline.commands import commandline
from trainer import lazy_imports
from trainer.checkpoint import files
from trainer.exporting.flags import PredictConfig

COMMAND = "trainer.predict"
_DESCRIPTION = (
    "Prints the most likely classes of images, by a checkpoint of trainer.run or a file of trainer.export. Images of "
    "any size are cut or stretched as those of the run were."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: whatever a user can cause.
    """
    config = commandline.parse(COMMAND, _DESCRIPTION, PredictConfig, argv)
    commandline.require("tensorflow")
    found = files.candidates(pathlib.Path(config.model_dir), config.checkpoint) if config.model_dir is not None else []
    with lazy_imports.loading():
        from trainer.exporting import predictions  # noqa: PLC0415, here because it loads TensorFlow

    predictions.run(config, found)


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
