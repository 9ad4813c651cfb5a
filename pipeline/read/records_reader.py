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
        crcs: list[NDArray[np.uint32]] = []  # as the frames store them
        crc = 0
        with self.shards.opened(segment) as file:
            for first, last in self.shards.runs(segment, start, stop, _TASK):
                block = file.read_at(int(ends[first]), int(ends[last] - ends[first]))
                crc = crc32c.crc32c(block, crc)
                begins = ends[first : last + 1] - ends[first]
                for number, (begin, end) in enumerate(itertools.pairwise(begins.tolist()), first):
                    found.append(self._unframed(segment, number, int(ends[number]), block[begin:end]))
                crcs.append(_stored_crcs(block, begins[1:]))
        whole = [i for i, record in enumerate(found) if record is not None]
        if len(whole) == self.shards.segments[segment].shard.num_examples:
            self.shards.check_crc(segment, crc)
        elif whole:
            numbers = start + np.array(whole, np.int64)
            stored = np.concatenate(crcs)[whole]
            self.sidecars.check_crcs(segment, numbers, stored, lambda i: int(ends[numbers[i]]))
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


def _stored_crcs(block: memoryview, ends: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Returns the CRCs that frames hold at their ends, uint32 (n,); any numbers for frames that are too short."""
    at = np.maximum(ends - framing.FOOTER, 0)[:, None] + np.arange(framing.FOOTER)
    stored: NDArray[np.uint8] = np.frombuffer(block, np.uint8)[np.minimum(at, len(block) - 1)]
    return stored.view("<u4")[:, 0]
