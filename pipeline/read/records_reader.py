"""Reads records of any kind as byte strings, each checked by its CRC: images of any size, more features, GZIP."""

from __future__ import annotations

import dataclasses
import itertools

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.read.gzip_reader import GzipReader
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records import framing, walk

_TASK = 4 << 20  # 4 MiB, per thread


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

    def __init__(self, shards: Shards, compression: str) -> None:
        """Makes the reader of `shards`; `compression` is the manifest's."""
        self.shards, self.sidecars = shards, Sidecars(shards)
        self._gzip = GzipReader(shards, self.sidecars) if compression else None

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
        ends = self.sidecars.offsets(segment)
        found: list[bytes | None] = []
        crcs: list[int] = []  # as the frames store them
        crc = 0
        with self.shards.opened(segment) as file:
            for first, last in self.shards.runs(segment, start, stop, _TASK):
                block = file.read_at(int(ends[first]), int(ends[last] - ends[first]))
                crc = crc32c.crc32c(block, crc)
                parts = [end - ends[first] for end in ends[first : last + 1].tolist()]
                frames = [block[begin:end] for begin, end in itertools.pairwise(parts)]
                found += [self._unframed(segment, first + i, int(ends[first + i]), f) for i, f in enumerate(frames)]
                crcs += [int.from_bytes(frame[-framing.FOOTER :], "little") for frame in frames]
        whole = [i for i, record in enumerate(found) if record is not None]
        if len(whole) == self.shards.segments[segment].shard.num_examples:
            self.shards.check_crc(segment, crc)
        else:
            numbers = [start + i for i in whole]
            self.sidecars.check_crcs(segment, numbers, [crcs[i] for i in whole], lambda i: int(ends[numbers[i]]))
        return found

    def probe(self) -> None:
        """Reads the first and the last record of every uncompressed shard: they tell a shard of another conversion.

        Raises:
          DataError: as `read`.
        """
        counts = [] if self._gzip else [segment.shard.num_examples for segment in self.shards.segments]
        ends = {(n, record) for n, count in enumerate(counts) if count for record in (0, count - 1)}
        self.shards.in_parallel(lambda part: self.read_part(*part, part[1] + 1), sorted(ends))

    def _unframed(self, segment: int, number: int, offset: int, frame: memoryview) -> bytes | None:
        fault = walk.check(frame)
        if fault:
            self.shards.corrupt(segment, number, offset, fault.text)
            return None
        return bytes(frame[framing.HEADER : -framing.FOOTER])
