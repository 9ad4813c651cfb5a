"""What is trained and evaluated on."""

from __future__ import annotations

import dataclasses

from pipeline import request
from pipeline.distort import recipes
from pipeline.manifest.sources import parse_sources, sources_of
from pipeline.read import corruption
from pipeline.request import parse_size
from trainer.config.flags.checks import check_least, check_name


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """What is trained and evaluated on."""

    data_dir: str  # the data set's folder; or several, with weights: 'a=0.7,b:train[:9000]=0.3'
    train_split: str = "train"  # what to train on; slices such as train[1000:] work
    eval_split: str | None = None
    """what to evaluate on; 'none' for no evaluation (None: test, else validation, else the only split left)"""
    resize: str | None = None  # stretch every image to HxW, such as 32x32, before it is distorted
    distort: str = "none"  # recipes, such as cifar10_tutorial, or 'pad_crop_flip(pad=4) | cutout(size=8) | mixup'
    distort_on: str = request.HOST  # host: as part of the input; device: in the replicas' steps, of uint8 pixels
    on_corrupt: str = "raise"  # a corrupt record: raise an error that names it, or skip it (its row gets weight 0)
    max_corrupt: int = corruption.MAX_CORRUPT  # records that each worker may skip
    cache_dir: str | None = None  # folder on a local disk for copies of a remote data set's shards (None: no copies)
    cache_bytes: int | None = None  # that the copies may take (None: nine tenths of what the disk has left)

    def __post_init__(self) -> None:
        """Checks the values."""
        sources = parse_sources(self.data_dir)
        if not isinstance(sources, str):
            sources_of(sources, self.train_split)
        recipes.check_names(self.distort, "--distort")
        check_name("distort_on", self.distort_on, request.PLACES)
        check_name("on_corrupt", self.on_corrupt, corruption.POLICIES)
        parse_size(self.resize, "--resize")
        check_least(self, 0, "max_corrupt")
        check_least(self, 1, "cache_bytes")

    @property
    def evaluates(self) -> bool:
        """Whether there is a split to evaluate on."""
        return self.eval_split not in ("", "none")
