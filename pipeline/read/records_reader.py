"""Reads records of any kind as byte strings and checks their CRCs: images of any size, more features, GZIP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.read import frames
from pipeline.read.compressed import KEPT_BYTES, GzipReader, MemberReader, Run
from pipeline.read.memory import aligned_matrix
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records import framing

U8 = NDArray[np.uint8]
Part = tuple[int, int, int]  # segment, first record of its shard, end
_TASK = 4 << 20  # 4 MiB, per thread
_CHUNK = 1 << 20  # 1 MiB, which is still in the core's cache when its CRCs are computed


@dataclasses.dataclass(frozen=True)
class Records:
    """Serialized records, where they were read to.

    Attributes:
      memory: uint8 (1, m).
      bounds: where each record begins and ends in the memory; int64 (n, 2).
      good: bool (n,): False where a corrupt record was skipped, and another takes its place.
    """

    memory: U8
    bounds: NDArray[np.int64]
    good: NDArray[np.bool_]

    def as_bytes(self) -> NDArray[np.object_]:
        """Returns copies of the records: bytes (n,), dtype object."""
        found = np.empty(len(self.bounds), object)
        found[:] = [self.memory[0, begin:end].tobytes() for begin, end in self.bounds.tolist()]
        return found


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

    def read(
        self, pieces: NDArray[np.int64], make_matrix: Callable[[int, int], U8] = aligned_matrix, text: str = ""
    ) -> Records:
        """Returns the records of pieces; an empty one if there are none.

        Args:
          pieces: to read in this order: segment, first record and end; int64 (p, 3).
          make_matrix: returns memory for them, uint8 (1, columns), with any content.
          text: of the bar that shows how far it is; empty: none.

        Raises:
          DataError: a shard is missing or changed, or has a corrupt record that must not be skipped.
        """
        with self.shards.held(pieces):
            parts = [part for piece in pieces for part in self._parts(piece[None])]
            sizes, streamed = zip(*self.shards.in_parallel(self._begun, parts), strict=True) if parts else ((), ())
            ends = np.cumsum(sizes, dtype=np.int64).tolist()
            memory = make_matrix(1, max(1, ends[-1] if ends else 0))

            def fill(n: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
                first = ends[n] - sizes[n]
                bounds, good = self._fill(memory[0, first : ends[n]], parts[n], streamed[n])
                return first + bounds, good

            found = self.shards.in_parallel(fill, range(len(parts)), text)
        bounds = np.concatenate([np.zeros((0, 2), np.int64), *(bounds for bounds, _ in found)])
        good = np.concatenate([np.zeros(0, bool), *(good for _, good in found)])
        if not len(good):
            return Records(memory, np.zeros((1, 2), np.int64), np.ones(1, bool))
        if not good.all():
            bounds[~good] = bounds[self.shards.stand_ins(good, parts[0][0])]
        return Records(memory, bounds, good)

    def read_part(self, segment: int, start: int, stop: int) -> list[bytes | None]:
        """Returns records start..stop-1 of a segment's shard; None in place of a corrupt one that is skipped.

        Raises:
          DataError: as for `read`.
        """
        part = segment, start, stop
        size, streamed = self._begun(part)
        memory = np.empty(size, np.uint8)
        bounds, good = self._fill(memory, part, streamed)
        places = zip(bounds.tolist(), good.tolist(), strict=True)
        return [memory[begin:end].tobytes() if is_good else None for (begin, end), is_good in places]

    def _begun(self, part: Part) -> tuple[int, list[bytes] | None]:
        """Returns the bytes that a part needs; and, of a shard that only its whole stream yields, the records."""
        segment, start, stop = part
        if not self._is_seekable(segment):
            streamed = list(self._gzip.read(segment, start, stop))
            return sum(map(len, streamed)), streamed
        return self.offset(segment, stop) - self.offset(segment, start), None

    def _fill(
        self, memory: U8, part: Part, streamed: list[bytes] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Puts the records of a part into some memory; returns their bounds there, and which are good."""
        if streamed is None:
            return self._checked(memory, part)
        ends = np.cumsum(list(map(len, streamed)), dtype=np.int64)
        memory[:] = np.frombuffer(b"".join(streamed), np.uint8)
        return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1), np.ones(len(ends), bool)

    def _checked(self, memory: U8, part: Part) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Reads the frames of a part into some memory and checks them; returns as `_fill` does."""
        segment, start, stop = part
        offsets, good = np.zeros(stop - start + 1, np.int64), np.ones(stop - start, bool)  # of the frames in the shard
        crcs = np.zeros(stop - start, np.uint32)  # that they store
        by_file, crc = not self._compression and self.shards.is_checked_whole(segment, stop - start), 0
        base = None
        for first, begins, block in self._runs(memory, part):
            base = int(begins[0]) if base is None else base
            run = slice(first - start, first - start + len(begins) - 1)
            offsets[run.start : run.stop + 1] = begins
            if block is None:
                good[run] = False
                continue
            view = memory[begins[0] - base : begins[-1] - base]
            if self._compression:
                view[:] = np.frombuffer(block, np.uint8)
            problems, crcs[run] = frames.check(view, begins)
            for i in np.flatnonzero(problems).tolist():
                begin, end = (begins[i : i + 2] - begins[0]).tolist()
                fault = framing.check(view[begin:end].data)
                self.shards.corrupt(segment, first + i, int(begins[i]), fault.text if fault else "")
                good[run.start + i] = False
            if by_file:
                crc = crc32c.crc32c(view.data, crc)
        # The records are intact, but may be those of another conversion: only the manifest's CRCs show that.
        if by_file and good.all():
            self.shards.check_crc(segment, crc)
        else:
            whole = np.flatnonzero(good)
            self.sidecars.check_crcs(segment, start + whole, crcs[whole], lambda i: int(offsets[whole[i]]))
        places = offsets - offsets[0]
        return np.stack([places[:-1] + framing.HEADER, places[1:] - framing.FOOTER], axis=1), good

    def _runs(self, memory: U8, part: Part) -> Iterator[Run]:
        """Yields the runs of frames of a part. If they are not compressed, they are read into the memory."""
        if self._compression:
            yield from self._members.read(*part)
            return
        segment, start, stop = part
        ends = self.sidecars.offsets(segment)
        with self.shards.opened(segment) as file:
            for first, last in self.shards.runs(segment, start, stop, _CHUNK):
                view = memory[ends[first] - ends[start] : ends[last] - ends[start]].data
                file.read_into(view, int(ends[first]))
                yield Run(first, ends[first : last + 1], view)

    def offset(self, segment: int, record: int) -> int:
        """Returns the byte offset of a record in a segment's decompressed shard.

        Raises:
          DataError: the shard's sidecar is missing or corrupt.
        """
        if self._compression:
            return self.sidecars.members(segment).begin(record)
        return int(self.sidecars.offsets(segment)[record])

    def _parts(self, piece: NDArray[np.int64]) -> list[Part]:
        if self._compression and self._is_seekable(int(piece[0, 0])):
            return self._members.parts(piece)
        return self.shards.parts(piece, None if self._compression else _TASK)

    def _is_seekable(self, segment: int) -> bool:
        return self.shards.segments[segment].shard.is_seekable(self._compression)

    def probe(self) -> None:
        """Reads the first and the last record of every seekable shard, which shows if it is of another conversion.

        Raises:
          DataError: as for `read`.
        """
        counts = {n: taken.shard.num_examples for n, taken in enumerate(self.shards.segments) if self._is_seekable(n)}
        ends = {(n, record) for n, count in counts.items() if count for record in (0, count - 1)}
        self.shards.in_parallel(lambda part: self.read_part(*part, part[1] + 1), sorted(ends))
