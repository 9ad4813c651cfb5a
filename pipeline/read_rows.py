"""Reads records of one layout to the rows of a matrix: raw images of one shape, label and key.

Every byte is checked: a whole shard by the manifest's CRC32C, parts of one by the CRC of each record.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline import crc_algebra, framing
from pipeline.buffers import aligned_matrix
from pipeline.example import Layout
from pipeline.manifest import Manifest
from pipeline.read import Shards
from pipeline.rows import FEATURES, Rows
from pipeline.splits import Selection
from pipeline.storage import OpenFile

U8 = NDArray[np.uint8]
_CHUNK = 1 << 20  # 1 MiB: what is read is still in the core's cache when its CRC is computed
_FEW = 256  # records, which are checked as fast one by one
_TASK = 8 << 20  # 8 MiB: of one thread


@dataclasses.dataclass(frozen=True)
class _Part:
    """Records start..stop-1 of a segment's shard, the first of them being the `row`th of all that is read."""

    segment: int
    start: int
    stop: int
    row: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class _Read(NamedTuple):
    """What came of a pass over a part.

    Attributes:
      crc: CRC32C of all its bytes.
      stored: the masked CRCs that its records store, uint32 (n,).
      good: no record is corrupt, as far as they were checked one by one.
      plain: all are of the shard's layout.
    """

    crc: int
    stored: NDArray[np.uint32]
    good: bool
    plain: bool


@dataclasses.dataclass(frozen=True)
class RowsReader:
    """Reads pieces of shards whose records have one length and one layout each.

    Attributes:
      shards: where they are read from.
      layouts: of each segment's records.
      with_keys: whether the keys are wanted.
    """

    shards: Shards
    layouts: tuple[Layout, ...]
    with_keys: bool

    @classmethod
    def fit(cls, manifest: Manifest, shards: Shards, with_keys: bool) -> RowsReader | None:
        """Returns the reader of a selection, or None where a shard's records have not one layout."""
        if set(manifest.features) != set(FEATURES) or manifest.features["image"].encoding != "raw":
            return None
        layouts = []
        for segment in shards.segments:
            size = (segment.shard.stride or 0) - framing.HEADER - framing.FOOTER
            layout = Layout.fit(size, math.prod(manifest.image_shape)) if size > 0 else None
            if layout is None:
                return None
            layouts.append(layout)
        return cls(shards, tuple(layouts), with_keys)

    @property
    def pixels(self) -> int:
        """Values of an image."""
        return self.layouts[0].image.stop - self.layouts[0].image.start

    def read(
        self,
        pieces: NDArray[np.int64],
        place: NDArray[np.int64] | None = None,
        make_matrix: Callable[[int, int], U8] = aligned_matrix,
    ) -> Rows:
        """Returns the records of pieces (p, 3): segment, first record and end; one row of zeros where there is none.

        Args:
          pieces: what is read, in this order.
          place: int64 (n,): the row that each record goes to; None: in this order, too.
          make_matrix: gives the memory of the images, uint8 (rows, columns), of whatever content.

        Raises:
          DataError: a shard is missing or changed, or holds a corrupt record that is not to be skipped.
        """
        sizes = pieces[:, 2] - pieces[:, 1]
        key_bytes = max(layout.key.stop - layout.key.start for layout in self.layouts) if self.with_keys else None
        images = make_matrix(max(1, int(sizes.sum())), self.pixels)
        rows = Rows.of(images, int(sizes.sum()), key_bytes, place)
        parts = [
            part
            for piece, row in zip(pieces.tolist(), (np.cumsum(sizes) - sizes).tolist(), strict=True)
            for part in self._parts(_Part(piece[0], piece[1], piece[2], row))
        ]
        self.shards.in_parallel(functools.partial(self._read_part, rows), parts)
        if not rows.good.all():
            if not rows.good.any():
                raise self.shards.corruption.none_is_good(str(self.shards.file(parts[0].segment)), len(rows.good))
            rows.stand_in()
        return rows

    def _parts(self, piece: _Part) -> list[_Part]:
        """Cuts a piece among threads; a whole shard stays whole, because of its CRC."""
        segment = self.shards.segments[piece.segment]
        start, stop = segment.start + piece.start, segment.start + piece.stop
        step = max(1, _TASK // (segment.shard.stride or 1))
        if (start, stop) == (0, segment.shard.num_examples):
            step = stop
        return [
            _Part(piece.segment, first, min(first + step, stop), piece.row + first - start)
            for first in range(start, stop, step)
        ]

    def _read_part(self, rows: Rows, part: _Part) -> None:
        """Reads records in one pass, which other threads need not wait for; anew, one by one, if a CRC is wrong."""
        shard = self.shards.segments[part.segment].shard
        whole, few = part.size == shard.num_examples, part.size < _FEW
        with self.shards.opened(part.segment) as file:
            read = self._fill(file, rows, part, one_by_one=few)
            if whole:
                agrees = f"{read.crc:08x}" == shard.crc32c
            else:
                agrees = few or read.crc == crc_algebra.crc_of_frames(read.stored, shard.stride or 0)
            if agrees and read.plain:
                return
            if not few:
                read = self._fill(file, rows, part, one_by_one=True)
        if whole and read.good:
            self.shards.check_crc(part.segment, read.crc)

    def _fill(self, file: OpenFile, rows: Rows, part: _Part, one_by_one: bool) -> _Read:
        """Reads records to their rows, without a look at their CRCs or `one_by_one`."""
        stride, layout = self.shards.segments[part.segment].shard.stride or 0, self.layouts[part.segment]
        step = max(1, min(_CHUNK // stride, part.size))
        chunk, crc, good, plain = np.empty((step, stride), np.uint8), 0, True, True
        stored = np.empty(part.size, np.uint32)
        for first in range(0, part.size, step):
            block = chunk[: part.size - first]
            here = _Part(part.segment, part.start + first, part.start + first + len(block), part.row + first)
            file.read_into(block.reshape(-1).data, here.start * stride)
            crc = crc32c.crc32c(block.reshape(-1).data, crc)
            stored[first : first + len(block)] = block[:, -framing.FOOTER :].view("<u4")[:, 0]
            good &= not one_by_one or self._check(block, here, rows)
            records = block[:, framing.HEADER : -framing.FOOTER]
            rows.take(records, layout, here.row)
            if not layout.fits(records):
                plain = False
                if one_by_one:
                    self._take_others(rows, records, here)
        return _Read(crc, stored, good, plain)

    def _check(self, block: U8, part: _Part, rows: Rows) -> bool:
        """Checks each record of a block; says whether all are good."""
        stride = block.shape[1]
        view, size = block.reshape(-1).data, stride - framing.HEADER - framing.FOOTER
        starts = range(framing.HEADER, len(view), stride)
        found = np.fromiter((crc32c.crc32c(view[start : start + size]) for start in starts), np.uint32, len(block))
        bad_record = framing.mask(found) != block[:, -framing.FOOTER :].view("<u4")[:, 0]
        bad_length = (block[:, : framing.HEADER] != np.frombuffer(framing.header(size), np.uint8)).any(axis=1)
        for i in np.flatnonzero(bad_record | bad_length).tolist():
            number = part.start + i
            problem = "its length or the CRC of its length" if bad_length[i] else "the record's CRC"
            self.shards.corrupt(part.segment, number, number * stride, f"{problem} is wrong")
            rows.good[rows.place[part.row + i]] = False
        return not (bad_record | bad_length).any()

    def _take_others(self, rows: Rows, records: U8, part: _Part) -> None:
        """Takes the records of a block that are good, and have the bytes of their features in other places."""
        stride = self.shards.segments[part.segment].shard.stride or 0
        for i in np.flatnonzero(self.layouts[part.segment].mismatch(records)).tolist():
            number, row = part.start + i, int(rows.place[part.row + i])
            if rows.good[row]:
                where = f"{self.shards.file(part.segment)}, record {number}, byte offset {number * stride}"
                rows.take_other(records[i].tobytes(), row, where)


def all_pieces(selection: Selection) -> NDArray[np.int64]:
    """Returns the pieces that hold a whole selection, in its order: int64 (segments, 3)."""
    return np.array([[i, 0, s.num_examples] for i, s in enumerate(selection.segments)], np.int64).reshape(-1, 3)
