"""The flags of `python -m pipeline.index`."""

from __future__ import annotations

import dataclasses

import simple_parsing

from pipeline.errors import UsageError, unknown
from pipeline.manifest import naming


@dataclasses.dataclass(frozen=True)
class IndexConfig:
    """Reads and checks every record once and writes manifest.json beside the files, which stay unchanged."""

    data_dir: str = simple_parsing.field(positional=True, metavar="DATA_DIR")  # the folder of the files
    # a split's name and its files: train:'train-*.tfrecord'; again for more patterns or splits
    split: list[str] = simple_parsing.field(  # noqa: RUF009
        default_factory=list, action="append", nargs=None, metavar="NAME:PATTERN"
    )
    compression: str = ""  # of the files: GZIP, or none
    overwrite: bool = False  # replace a manifest that this command made

    def __post_init__(self) -> None:
        if self.compression not in naming.COMPRESSIONS:
            raise unknown("--compression", self.compression, [name for name in naming.COMPRESSIONS if name])
        if "://" in self.data_dir:
            raise UsageError(f"{self.data_dir}: must be a local or mounted folder; index it there, then copy all of it")
