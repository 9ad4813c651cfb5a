"""Composes the command: manifest -> tables -> contact sheet."""

from __future__ import annotations

import pathlib

from pipeline import manifest
from pipeline.commands import commandline, quiet
from pipeline.errors import DataError
from pipeline.inspect import tables
from pipeline.inspect.config import InspectConfig
from pipeline.manifest import Manifest
from pipeline.read.shards import check_present


def run(config: InspectConfig) -> None:
    """Prints the tables and writes the picture.

    Raises:
      DataError: no valid data set, or a shard that is missing or has another size.
      UsageError: a picture of images that the input does not read.
    """
    made = manifest.load(config.data_dir)
    for split in made.splits.values():
        check_present(config.data_dir, split.shards)
    print("\n".join(tables.summary(made)))
    if config.png is not None:
        made.require_images()
        _write_sheet(config, made)


def _write_sheet(config: InspectConfig, made: Manifest) -> None:
    commandline.require("tensorflow")
    with quiet.loading():
        import tensorflow  # noqa: F401, PLC0415

        from pipeline.inspect import contact_sheet  # noqa: PLC0415

    recipe = config.distort or contact_sheet.default_recipe(made)
    split = config.split or "train"
    sheet = contact_sheet.draw_contact_sheet(config.data_dir, made, split, recipe, seed=config.seed or 0)
    path = pathlib.Path(config.png or "")
    try:
        sheet.save(path)
    except OSError as error:
        raise DataError(f"--png={path}: cannot be written: {error.strerror or error}") from None
    print(f"\n{path}: contact sheet of {split}, as stored and by {recipe}")
