"""Reads records of any kind as byte strings and checks their CRCs: images of any size, more features, GZIP."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.read.compressed import KEPT_BYTES, GzipReader, MemberReader, Run
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records import framing

_TASK = 4 << 20  # 4 MiB, per thread


@dataclasses.dataclass(frozen=True)
class Records:
    """Serialized records.

    Attributes:
      records: bytes (n,), dtype object.
      good: bool (n,): False where a corrupt record was skipped, and a copy of another takes its place.
    """

    records: NDArray[np.object_]
    good: NDArray[np.bool_]


class RecordsReader:
    """Reads pieces of shards with records of any kind.

    Args:
      shards: to read.
      compression: of the manifest.
      kept_bytes: of decompressed members to keep, as for `MemberReader`.
    """

    def __init__(self, shards: Shards, compression: str, kept_bytes: int = KEPT_BYTES) -> None:
        self.shards, self.sidecars, self._compression = shards, Sidecars(shards), compression
        self._gzip = GzipReader(shards, self.sidecars)
        self._members = MemberReader(shards, self.sidecars, kept_bytes)

    def read(self, pieces: NDArray[np.int64], text: str = "") -> Records:
        """Returns the records of pieces (segment, first record and end; (p, 3)); an empty one if there are none.

        Args:
          pieces: to read in this order.
          text: of the bar that shows how far it is; empty: none.

        Raises:
          DataError: a shard is missing or changed, or has a corrupt record that must not be skipped.
        """
        with self.shards.held(pieces):
            parts = [part for piece in pieces for part in self._parts(piece[None])]
            read = self.shards.in_parallel(lambda part: self.read_part(*part), parts, text)
        found = [record for part in read for record in part]
        records = np.empty(max(1, len(found)), object)
        records[:] = found or [b""]
        good = np.array([record is not None for record in records], bool)
        if not good.all():
            records[~good] = records[self.shards.stand_ins(good, parts[0][0])]
        return Records(records, good)

    def read_part(self, segment: int, start: int, stop: int) -> list[bytes | None]:
        """Returns records start..stop-1 of a segment's shard; None in place of a corrupt one that is skipped.

        Raises:
          DataError: as for `read`.
        """
        if not self._is_seekable(segment):
            return list(self._gzip.read(segment, start, stop))
        runs = self._members.read(segment, start, stop) if self._compression else self._plain(segment, start, stop)
        found: list[bytes | None] = []
        crcs, offsets = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]  # stored in the frames; of the frames
        crc = 0
        for first, begins, frames in runs:
            offsets.append(begins[:-1])
            if frames is None:
                found += [None] * (len(begins) - 1)
                crcs.append(np.zeros(len(begins) - 1, np.uint32))
                continue
            crc = 0 if self._compression else crc32c.crc32c(frames, crc)
            places = zip(begins.tolist(), itertools.pairwise((begins - begins[0]).tolist()), strict=False)
            for number, (offset, (begin, end)) in enumerate(places, first):
                found.append(self._unframed(segment, number, offset, frames[begin:end]))
            crcs.append(_stored_crcs(frames, begins[1:] - begins[0]))
        whole = [i for i, record in enumerate(found) if record is not None]
        # The records are intact, but may be those of another conversion: only the manifest's CRCs show that.
        if not self._compression and len(whole) == self.shards.segments[segment].shard.num_examples:
            self.shards.check_crc(segment, crc)
        elif whole:
            stored, at = np.concatenate(crcs)[whole], np.concatenate(offsets)[whole]
            self.sidecars.check_crcs(segment, start + np.array(whole, np.int64), stored, lambda i: int(at[i]))
        return found

    def offset(self, segment: int, record: int) -> int:
        """Returns the byte offset of a record in a segment's decompressed shard.

        Raises:
          DataError: the shard's sidecar is missing or corrupt.
        """
        if self._compression:
            return self.sidecars.members(segment).begin(record)
        return int(self.sidecars.offsets(segment)[record])

    def _parts(self, piece: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        if self._compression and self._is_seekable(int(piece[0, 0])):
            return self._members.parts(piece)
        return self.shards.parts(piece, None if self._compression else _TASK)

    def _is_seekable(self, segment: int) -> bool:
        return self.shards.segments[segment].shard.is_seekable(self._compression)

    def _plain(self, segment: int, start: int, stop: int) -> Iterator[Run]:
        ends = self.sidecars.offsets(segment)
        with self.shards.opened(segment) as file:
            for first, last in self.shards.runs(segment, start, stop, _TASK):
                begins = ends[first : last + 1]
                yield Run(first, begins, file.read_at(int(begins[0]), int(begins[-1] - begins[0])))

    def probe(self) -> None:
        """Reads the first and the last record of every seekable shard, which shows if it is of another conversion.

        Raises:
          DataError: as for `read`.
        """
        counts = {n: taken.shard.num_examples for n, taken in enumerate(self.shards.segments) if self._is_seekable(n)}
        ends = {(n, record) for n, count in counts.items() if count for record in (0, count - 1)}
        self.shards.in_parallel(lambda part: self.read_part(*part, part[1] + 1), sorted(ends))

    def _unframed(self, segment: int, number: int, offset: int, frame: memoryview) -> bytes | None:
        fault = framing.check(frame)
        if fault:
            self.shards.corrupt(segment, number, offset, fault.text)
            return None
        return bytes(frame[framing.HEADER : -framing.FOOTER])


def _stored_crcs(block: memoryview, ends: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Returns the CRCs at the ends of frames: uint32 (n,). For a frame that is too short it is any number."""
    at = np.maximum(ends - framing.FOOTER, 0)[:, None] + np.arange(framing.FOOTER)
    stored: NDArray[np.uint8] = np.frombuffer(block, np.uint8)[np.minimum(at, len(block) - 1)]
    return stored.view("<u4")[:, 0]
