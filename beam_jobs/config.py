"""The converter's options. `convert --help` is made from this class."""

from __future__ import annotations

import dataclasses
import os
import re

from pipeline import naming
from pipeline.errors import UsageError

_SHARDS_OF_SPLIT = re.compile(r"([A-Za-z][A-Za-z0-9_]*):([0-9]{1,9})")
MAX_SHARDS = 99_999  # five digits in a shard's name
MAX_SEED = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class ConvertConfig:
    """Every other flag goes to Beam: --runner (default FnApiRunner), --direct_num_workers, --direct_running_mode, ...

    Raises:
      UsageError: a value that cannot work, with the bound that it broke.
    """

    dataset: str = ""
    """what to convert: mnist, cifar10 or digits"""
    data_dir: str = ""
    """folder for the shards and manifest.json; made if missing"""
    source: str = ""
    """the data set's files: a folder (mnist, cifar10) or the .tar.gz (cifar10); digits needs none"""
    num_shards: str = ""
    """one number for every split, or split:number,... (train:8,test:2); default: shards of at most 16 MiB up to 64
    shards, then of at most 256 MiB"""
    seed: int = 0
    """of the permutation that spreads the examples over the shards"""
    overwrite: bool = False
    """replace the data set that is in data_dir: once the new one is written, beside it, the old manifest is removed,
    then the files that it lists"""

    def __post_init__(self) -> None:
        """Checks every value."""
        for flag in ("dataset", "data_dir"):
            if not getattr(self, flag):
                raise UsageError(f"--{flag} is missing; see --help")
        for flag in ("data_dir", "source"):
            _check_local(flag, getattr(self, flag))
        if not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"--seed={self.seed}: must be in 0..{MAX_SEED}")
        _ = self.shards_by_split

    @property
    def shards_by_split(self) -> int | dict[str, int] | None:
        """`num_shards` read: a number for every split, {split: number}, or None for the default.

        Raises:
          UsageError: it is neither, or a number is not in 1..99999.
        """
        if not self.num_shards:
            return None
        if re.fullmatch(r"-?[0-9]{1,9}", self.num_shards):
            return _checked(int(self.num_shards), self.num_shards)
        shards: dict[str, int] = {}
        for part in self.num_shards.split(","):
            match = _SHARDS_OF_SPLIT.fullmatch(part.strip())
            if not match or not naming.is_split_name(match[1]):
                raise UsageError(f"--num_shards={self.num_shards}: {part!r} is not a number or split:number")
            if match[1] in shards:
                raise UsageError(f"--num_shards={self.num_shards}: names split {match[1]!r} twice")
            shards[match[1]] = _checked(int(match[2]), self.num_shards)
        return shards


def _checked(number: int, text: str) -> int:
    if not 1 <= number <= MAX_SHARDS:
        raise UsageError(f"--num_shards={text}: must be in 1..{MAX_SHARDS}")
    return number


def _check_local(flag: str, value: str) -> None:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", value):
        raise UsageError(f"--{flag}={value}: must be a local or mounted path, not a URL")
    if "\0" in value:
        raise UsageError(f"--{flag}: holds a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise UsageError(f"--{flag}: holds characters that no path can have") from None
