"""Reads the bytes of records as the readers do, without looking at them; and the same records by the readers."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
from numpy.typing import NDArray

from pipeline.manifest.storage import folder
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.read.window import LocalReader

MOST_BYTES = 128 << 20  # 128 MiB of shards in a round
_BLOCK, _TASK = 1 << 20, 8 << 20  # as of `RowsReader`
_FROM_DISK = 0.05  # of the bytes; less is the system's own
_IO = pathlib.Path("/proc/self/io")


@dataclasses.dataclass
class Traffic:
    """Bytes that were read, and how many of them disks had to deliver; None where the system does not say."""

    asked: int = 0
    delivered: int | None = 0

    def add(self, asked: int, before: int | None, after: int | None) -> None:
        """Adds a read; `before` and `after` it are those of `bytes_from_disks`."""
        self.asked += asked
        known = self.delivered is not None and before is not None and after is not None
        self.delivered = (self.delivered or 0) + (after or 0) - (before or 0) if known else None

    @property
    def source(self) -> str:
        """Where the bytes came from."""
        if self.delivered is None:
            return "a disk or the page cache, this system does not say which"
        share = min(1.0, self.delivered / max(1, self.asked))
        if share < _FROM_DISK:
            return "the page cache"
        return "disk" if share > 1 - _FROM_DISK else f"disk ({share:.0%}) and the page cache"


@dataclasses.dataclass(frozen=True)
class Reads:
    """What a window, or a whole split, reads; of much, a part.

    Attributes:
      shards: of the selection.
      compression: of the shards.
      pieces: int64 (p, 3): segment, first record and end.
      row_of: int64 (n,): the row of each record; None: a split that is read once, in its order.
      traffic: what `bytes_only` has read.
    """

    shards: Shards
    compression: str
    pieces: NDArray[np.int64]
    row_of: NDArray[np.int64] | None
    traffic: Traffic = dataclasses.field(default_factory=Traffic)

    @property
    def rows(self) -> int:
        """Records."""
        return int((self.pieces[:, 2] - self.pieces[:, 1]).sum())

    def bytes_only(self, passes: int) -> int:
        """Reads the bytes `passes` times; returns the rows."""
        sidecars = Sidecars(self.shards)
        parts = self.shards.parts(self.pieces, None if self.compression else _TASK)
        for _ in range(passes):
            before = bytes_from_disks()
            asked = self.shards.in_parallel(lambda part: self._read_part(sidecars, *part), parts)
            self.traffic.add(sum(asked), before, bytes_from_disks())
        return passes * self.rows

    def _read_part(self, sidecars: Sidecars, segment: int, start: int, stop: int) -> int:
        shard = self.shards.segments[segment].shard
        if not shard.is_seekable(self.compression):  # whole
            begin, end = 0, shard.num_bytes
        elif self.compression:
            table = sidecars.members(segment)
            begin, end = table.offsets[[table.member_of(start), table.member_of(stop - 1) + 1]].tolist()
        else:
            offsets = sidecars.offsets(segment)
            begin, end = int(offsets[start]), int(offsets[stop])
        block = memoryview(bytearray(min(_BLOCK, max(1, end - begin))))
        with self.shards.opened(segment) as file:
            for offset in range(begin, end, len(block)):
                file.read_into(block[: end - offset], offset)
        return end - begin

    @property
    def source(self) -> str:
        """Where the bytes came from."""
        is_remote = folder(self.shards.data_dir).is_remote
        return f"{self.shards.data_dir}, a remote folder" if is_remote else self.traffic.source

    def checked(self, reader: LocalReader, passes: int) -> int:
        """Has the reader read, check and place the records `passes` times; returns the rows."""
        for _ in range(passes):
            reader.arrays(self.pieces, self.row_of)
        return passes * self.rows


def limited(shards: Shards, pieces: NDArray[np.int64], row_of: NDArray[np.int64] | None, compression: str) -> Reads:
    """Returns the first of some pieces, as many as hold `MOST_BYTES`; whole shards where they are read forward only."""
    counts = [segment.num_examples for segment in shards.segments]
    is_forward = not all(segment.shard.is_seekable(compression) for segment in shards.segments)
    if is_forward:
        pieces, row_of = np.array([[s, 0, n] for s, n in enumerate(counts) if n], np.int64), None
    taken, left = [], MOST_BYTES
    for segment, start, stop in pieces.tolist():
        shard = shards.segments[segment].shard
        record = max(1, shard.num_bytes // max(1, shard.num_examples))
        count = min(stop - start, max(1, left // record)) if not is_forward else stop - start
        taken.append([segment, start, start + count])
        left -= count * record
        if left < record:
            break
    reads = Reads(shards, compression, np.array(taken, np.int64).reshape(-1, 3), None)
    if row_of is None:
        return reads
    return dataclasses.replace(reads, row_of=np.argsort(np.argsort(row_of[: reads.rows])))


def bytes_from_disks() -> int | None:
    """Returns the bytes that this process has had read from disks so far; None where the system does not say."""
    try:
        lines = dict(line.split(": ") for line in _IO.read_text(encoding="ascii").splitlines())
        return int(lines["read_bytes"])
    except (OSError, ValueError, KeyError):
        return None
