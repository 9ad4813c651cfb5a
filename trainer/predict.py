"""`python -m trainer.predict`: prints the classes of your images by a trained model.

Exit codes: 0 done; 1 an image or a checkpoint cannot be read; 2 a flag is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from pipeline.commands import commandline
from pipeline.commands.text import count_of
from pipeline.errors import DataError, name_of, named
from trainer import lazy_imports
from trainer.checkpoint import files
from trainer.config.trained import PredictConfig

COMMAND = "trainer.predict"
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jp2", ".avif", ".heic", ".heif", ".ppm")
_DESCRIPTION = (
    f"Prints the most likely classes of images, by a checkpoint of {name_of('trainer.run')} or a file of "
    f"{name_of('trainer.export')}. Images of "
    "any size are cut or stretched as those of the run were."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: whatever a user can cause.
    """
    config = commandline.parse(COMMAND, _DESCRIPTION, PredictConfig, argv)
    commandline.require("tensorflow")
    paths = image_files(config.images)
    found = files.candidates(pathlib.Path(config.model_dir), config.checkpoint) if config.model_dir is not None else []
    with lazy_imports.loading():
        from trainer.exporting import predictions  # noqa: PLC0415, here because it loads TensorFlow

    predictions.run(config, paths, found)


def image_files(given: Sequence[str]) -> list[str]:
    """Returns the given files, and those in given folders whose names end like an image's, sorted.

    Raises:
      DataError: there is no such file or folder, it cannot be listed, or there is no image.
    """
    found, others = list[str](), 0
    for path in given:
        with named(path, "cannot be read"):
            if not os.path.isdir(path):
                os.stat(path)
                found.append(path)
                continue
            inside = sorted(
                os.path.join(place, name)
                for place, _, names in os.walk(path, onerror=_refuse)
                for name in names
                if not name.startswith(".")
            )
        chosen = [name for name in inside if name.lower().endswith(ENDINGS)]
        found, others = found + chosen, others + len(inside) - len(chosen)
    if others:
        skipped = f"{count_of(others, 'file')} not named like an image ({', '.join(ENDINGS[:3])}, ...)"
        if not found:
            raise DataError(f"{' '.join(given)}: no images, but {skipped}")
        print(f"skipped {skipped}", file=sys.stderr)
    if not found:
        raise DataError(f"{' '.join(given)}: no images")
    return found


def _refuse(error: OSError) -> None:
    raise error


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
