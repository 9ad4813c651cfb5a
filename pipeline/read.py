"""Reads shards, every byte checked against the manifest before it is decoded."""

from __future__ import annotations

import os
import pathlib

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline import framing
from pipeline.errors import DataError
from pipeline.manifest import ShardInfo

_RECOVER = "the data is not what was converted: convert it again (python -m beam_jobs.convert ... --overwrite)"


def check_present(data_dir: str | os.PathLike[str], shards: tuple[ShardInfo, ...]) -> None:
    """Raises DataError for the first shard that is missing or has another size than the manifest says."""
    for shard in shards:
        path = pathlib.Path(data_dir) / shard.file
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path}: the manifest lists this shard, but: {error.strerror}; {_RECOVER}") from None
        if size != shard.num_bytes:
            raise DataError(f"{path}: {size} bytes, but the manifest says {shard.num_bytes}; {_RECOVER}")


def read_shard(data_dir: str | os.PathLike[str], shard: ShardInfo) -> NDArray[np.uint8]:
    """Returns a shard's bytes, uint8 (num_bytes,), whose CRC32C is the manifest's.

    Raises:
      DataError: the file is missing, has another size or other bytes; a corrupt record is named with its offset.
    """
    path = pathlib.Path(data_dir) / shard.file
    check_present(data_dir, (shard,))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    crc = google_crc32c.value(data)
    if f"{crc:08x}" != shard.crc32c:
        for _ in framing.records(data, str(path)):  # raises at the record that is corrupt
            pass
        raise DataError(
            f"{path}: every record is whole, but the file's CRC32C is {crc:08x}, not {shard.crc32c}; {_RECOVER}"
        )
    return np.frombuffer(data, np.uint8)
