"""Reads records of any kind as byte strings, each checked by its CRC: images of any size, more features, GZIP."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.manifest import ShardInfo, naming
from pipeline.manifest.storage import folder
from pipeline.read.gzip_reader import GzipReader
from pipeline.read.shards import Shards
from pipeline.records import framing, offsets, walk

_TASK = 4 << 20  # 4 MiB, per thread
_KEPT_OFFSETS = 8 << 20  # records whose offsets stay in memory: 64 MiB


@dataclasses.dataclass(frozen=True)
class Records:
    """Serialized records.

    Attributes:
      records: bytes (n,), dtype object.
      good: bool (n,): False where a corrupt record was left out; a copy of another stands in for it.
    """

    records: NDArray[np.object_]
    good: NDArray[np.bool_]


class RecordsReader:
    """Reads pieces of shards, whatever their records are."""

    def __init__(self, shards: Shards, compression: str, kept_offsets: int = _KEPT_OFFSETS) -> None:
        """Makes the reader of `shards`; `compression` is the manifest's."""
        self.shards, self._kept_offsets = shards, kept_offsets
        self._gzip = GzipReader(shards) if compression else None
        self._offsets: dict[int, NDArray[np.int64]] = {}
        self._lock = threading.Lock()

    def read(self, pieces: NDArray[np.int64]) -> Records:
        """Returns the records of pieces (p, 3): segment, first record and end; one empty record if there are none.

        Raises:
          DataError: a shard is missing or changed, or holds a corrupt record that must not be skipped.
        """
        parts = self.shards.parts(pieces, None if self._gzip else _TASK)
        read = self.shards.in_parallel(lambda part: self.read_part(*part), parts)
        found = [record for part in read for record in part]
        records = np.empty(max(1, len(found)), object)
        records[:] = found or [b""]
        good = np.array([record is not None for record in records], bool)
        if not good.all():
            records[~good] = records[self.shards.stand_ins(good, parts[0][0])]
        return Records(records, good)

    def read_part(self, segment: int, start: int, stop: int) -> list[bytes | None]:
        """Returns records start..stop-1 of a segment's shard; None stands for a corrupt one that is skipped.

        Raises:
          DataError: as `read`.
        """
        if self._gzip:
            return list(self._gzip.read(segment, start, stop))
        ends = self.offsets(segment)
        found: list[bytes | None] = []
        crc = 0
        with self.shards.opened(segment) as file:
            for first, last in self.shards.runs(segment, start, stop, _TASK):
                block = file.read_at(int(ends[first]), int(ends[last] - ends[first]))
                crc = crc32c.crc32c(block, crc)
                found += self._unframed(segment, first, ends[first : last + 1].tolist(), block)
        if len(found) == self.shards.segments[segment].shard.num_examples and None not in found:
            self.shards.check_crc(segment, crc)
        return found

    def _unframed(self, segment: int, start: int, ends: Sequence[int], block: memoryview) -> list[bytes | None]:
        found: list[bytes | None] = []
        for i in range(len(ends) - 1):
            record = block[ends[i] - ends[0] : ends[i + 1] - ends[0]]
            fault = walk.check(record)
            if fault:
                self.shards.corrupt(segment, start + i, ends[i], fault.text)
            found.append(None if fault else bytes(record[framing.HEADER : -framing.FOOTER]))
        return found

    def offsets(self, segment: int) -> NDArray[np.int64]:
        """Returns the byte offset of each record of a segment's shard, and the file's size: int64 (records + 1,).

        Raises:
          DataError: the file of offsets is missing or corrupt.
        """
        with self._lock:
            kept = self._offsets.get(segment)
        if kept is not None:
            return kept
        found = shard_offsets(self.shards.data_dir, self.shards.segments[segment].shard)
        with self._lock:
            while self._offsets and len(found) + sum(map(len, self._offsets.values())) > self._kept_offsets:
                self._offsets.pop(next(iter(self._offsets)))
            self._offsets[segment] = found
        return found


def shard_offsets(data_dir: str, shard: ShardInfo) -> NDArray[np.int64]:
    """Returns the byte offset of each record of an uncompressed shard, and its size: int64 (records + 1,).

    Raises:
      DataError: the file of offsets is missing or corrupt.
    """
    if shard.num_examples == 0:
        return np.zeros(1, np.int64)
    if shard.stride is not None:
        return np.arange(shard.num_examples + 1, dtype=np.int64) * shard.stride
    file = folder(data_dir) / naming.offsets_name(shard.file)
    size = file.identity().num_bytes
    with file.open() as opened:
        data = opened.read_at(0, min(size, 8 * (shard.num_examples + 1)))
    try:
        return offsets.parse(data, size, shard.num_examples, shard.offsets_crc32c or "")
    except ValueError as error:
        raise DataError(f"{file}: {error}: the offsets of {shard.file} are corrupt; convert again") from None
