"""`python -m pipeline.inspect DATA_DIR`: what is in a data set, as tables and as a picture."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import simple_parsing

from pipeline import manifest
from pipeline.commands import commandline, quiet
from pipeline.errors import UsageError, named
from pipeline.inspect import tables
from pipeline.manifest import Manifest
from pipeline.read.shards import check_present

COMMAND = "pipeline.inspect"


@dataclasses.dataclass(frozen=True)
class InspectConfig:
    """Look at a data set made by beam_jobs.convert or pipeline.index."""

    data_dir: str = simple_parsing.field(positional=True, metavar="DATA_DIR")  # the data set's folder
    png: str | None = None  # write a contact sheet here: images as stored and distorted
    split: str | None = None  # the split or slice that the contact sheet shows; default: train
    distort: str | None = None  # the contact sheet's recipe; default: one that fits the images
    seed: int | None = None  # of the contact sheet's batch; default: 0

    def __post_init__(self) -> None:
        if self.png is not None and not self.png.endswith(".png"):
            raise UsageError(f"--png={self.png}: the file's name must end in .png")
        given = [name for name in ("split", "distort", "seed") if getattr(self, name) is not None]
        if self.png is None and given:
            raise UsageError(
                f"--{given[0]}={getattr(self, given[0])}: chooses what --png shows; give --png=FILE.png too"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables and writes the picture.

    Raises:
      DataError: there is no valid data set, or a shard is missing or has another size.
      UsageError: a flag cannot work, or the data set has no images to draw.
    """
    config = commandline.parse(COMMAND, "Show what is in a data set.", InspectConfig, argv)
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
    sheet = contact_sheet.draw_contact_sheet(config.data_dir, made, split, recipe, config.seed or 0)
    path = pathlib.Path(config.png or "")
    with named(f"--png={path}", "cannot be written"):
        sheet.save(path)
    print(f"\n{path}: contact sheet of {split}, as stored and by {recipe}")


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
