"""The flags of `python -m pipeline.inspect`."""

from __future__ import annotations

import dataclasses

import simple_parsing

from pipeline.errors import UsageError


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
