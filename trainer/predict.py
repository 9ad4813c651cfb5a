"""`python -m trainer.predict`: prints a trained model's predictions for your images or records.

Exit codes: 0 done; 1 an image, a record or a checkpoint cannot be read; 2 a flag is invalid; 130 Ctrl-C.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import NoReturn

from pipeline.commands import commandline
from pipeline.errors import name_of
from trainer import lazy_imports
from trainer.checkpoint import files
from trainer.config.trained import PredictConfig
from trainer.exporting import inputs

COMMAND = "trainer.predict"
_DESCRIPTION = (
    f"Prints the most likely classes of images, by a checkpoint of {name_of('trainer.run')} or a file of "
    f"{name_of('trainer.export')}. Images of "
    "any size are cut or stretched as those of the run were. A run whose task parses records gets TFRecords instead: "
    "files, or a split of a data set."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: any error that a user can cause.
    """
    config = commandline.parse(COMMAND, _DESCRIPTION, PredictConfig, argv)
    commandline.require("tensorflow")
    paths = [] if inputs.are_records(config.inputs) else inputs.image_files(config.inputs)
    if config.model_dir is not None:
        files.candidates(pathlib.Path(config.model_dir), config.checkpoint)
    with lazy_imports.loading():
        from trainer.exporting import answers  # noqa: PLC0415, here because it loads TensorFlow

    answers.run(config, paths)


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
