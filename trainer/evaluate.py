"""`python -m trainer.evaluate`: evaluates a trained model, once or during the run that trains it.

Exit codes: 0 done; 1 the data or a checkpoint is bad; 2 a flag is invalid; 130 Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from pipeline.commands import commandline
from pipeline.errors import name_of
from trainer import lazy_imports
from trainer.checkpoint import files
from trainer.config.trained import EvaluateConfig

COMMAND = "trainer.evaluate"
_DESCRIPTION = (
    f"Evaluates a checkpoint of {name_of('trainer.run')} on exactly the whole split: loss and metrics, precision and "
    "recall of each class, the confusion matrix and the worst mistakes. It only reads the run's folder, but for "
    "--continuous, which writes scalars for TensorBoard to logs/evaluate in it."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: any error that a user can cause.
    """
    config = commandline.parse(COMMAND, _DESCRIPTION, EvaluateConfig, argv)
    commandline.require("tensorflow")
    if config.continuous:
        files.check_run_folder(config.folder)
    found = [] if config.continuous else files.candidates(config.folder.path, config.checkpoint)
    if config.output is not None:
        from trainer import plan as plans  # noqa: PLC0415, NumPy: 0.1 s after --help

        plans.prepare_folder("--output", config.output)
    with lazy_imports.loading():
        from trainer.evaluation import command  # noqa: PLC0415, here because it loads TensorFlow

    command.run(config, found)


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
