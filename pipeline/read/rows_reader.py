"""Reads records of one layout into the rows of a matrix: raw images of one shape, label and key.

Every byte is checked by the CRC of its record, and a whole shard by the manifest's CRC32C as well.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import IMAGE_FEATURES
from pipeline.manifest.splits import Selection
from pipeline.read.buffers import aligned_matrix
from pipeline.read.rows import Rows
from pipeline.read.shards import Shards
from pipeline.read.unpack import BAD_LENGTH, BAD_RECORD
from pipeline.records import framing, walk
from pipeline.records.layout import Layout

U8 = NDArray[np.uint8]
_CHUNK = 1 << 20  # 1 MiB: still in the core's cache when its CRC is computed
_TASK = 8 << 20  # 8 MiB, per thread


@dataclasses.dataclass(frozen=True)
class _Part:
    """Records start..stop-1 of a segment's shard, of which the first is number `row` of all that is read."""

    segment: int
    start: int
    stop: int
    row: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class RowsReader:
    """Reads pieces of shards in each of which all records have one layout.

    Attributes:
      shards: where they are read from.
      layouts: of each segment's records.
      features: of the manifest: image, label and key.
      with_keys: whether the keys are wanted.
    """

    shards: Shards
    layouts: tuple[Layout, ...]
    features: Mapping[str, Feature]
    with_keys: bool

    @classmethod
    def fit(cls, manifest: Manifest, shards: Shards, with_keys: bool) -> RowsReader | None:
        """Returns the reader of a selection, or None where a shard's records differ in layout."""
        if set(manifest.features) != set(IMAGE_FEATURES) or manifest.features["image"].encoding != "raw":
            return None
        layouts = []
        for segment in shards.segments:
            size = (segment.shard.stride or 0) - framing.HEADER - framing.FOOTER
            layout = Layout.fit(size, math.prod(manifest.image_shape)) if size > 0 else None
            if layout is None:
                return None
            layouts.append(layout)
        return cls(shards, tuple(layouts), manifest.features, with_keys)

    @property
    def pixels(self) -> int:
        """Values of an image."""
        return self.layouts[0].image.stop - self.layouts[0].image.start

    def read(
        self,
        pieces: NDArray[np.int64],
        row_of: NDArray[np.int64] | None = None,
        make_matrix: Callable[[int, int], U8] = aligned_matrix,
    ) -> Rows:
        """Returns the records of pieces (p, 3): segment, first record and end; one row of zeros if there are none.

        Args:
          pieces: what to read, in this order.
          row_of: int64 (n,): the row that each record goes to; None for the same order.
          make_matrix: returns memory for the images, uint8 (rows, columns), with any content.

        Raises:
          DataError: a shard is missing or changed, or holds a corrupt record that must not be skipped.
        """
        sizes = pieces[:, 2] - pieces[:, 1]
        key_bytes = max(layout.key.stop - layout.key.start for layout in self.layouts) if self.with_keys else None
        images = make_matrix(max(1, int(sizes.sum())), self.pixels)
        rows = Rows.of(images, int(sizes.sum()), key_bytes, self.features, row_of)
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
        """Divides a piece among threads; a whole shard stays whole because of its CRC."""
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
        """Reads records into their rows, a chunk at a time, and checks each, as well as a whole shard's CRC."""
        shard = self.shards.segments[part.segment].shard
        stride, layout = shard.stride or 0, self.layouts[part.segment]
        is_whole, is_good, crc = part.size == shard.num_examples, True, 0
        step = max(1, min(_CHUNK // stride, part.size))
        chunk = np.empty((step, stride), np.uint8)
        with self.shards.opened(part.segment) as file:
            for first in range(0, part.size, step):
                block = chunk[: part.size - first]
                view = block.reshape(-1).data
                file.read_into(view, (part.start + first) * stride)
                problems = rows.take(block, layout, part.row + first)
                if problems.any():
                    here = _Part(part.segment, part.start + first, part.start + first + len(block), part.row + first)
                    is_good &= self._settle(rows, block, problems, here)
                if is_whole:
                    crc = crc32c.crc32c(view, crc)
        if is_whole and is_good:
            self.shards.check_crc(part.segment, crc)

    def _settle(self, rows: Rows, block: U8, problems: U8, part: _Part) -> bool:
        """Takes the good records of a block that are of another layout; returns whether none is corrupt."""
        stride, is_good = block.shape[1], True
        for i in np.flatnonzero(problems).tolist():
            number, row = part.start + i, int(rows.row_of[part.row + i])
            if problems[i] & (BAD_LENGTH | BAD_RECORD):
                fault = walk.check(block[i].data)
                self.shards.corrupt(part.segment, number, number * stride, fault.text if fault else "")
                rows.good[row] = is_good = False
            else:
                where = walk.location(self.shards.file(part.segment), number, number * stride)
                rows.take_other(block[i, framing.HEADER : -framing.FOOTER].tobytes(), row, where)
        return is_good


def all_pieces(selection: Selection) -> NDArray[np.int64]:
    """Returns the pieces that hold a whole selection, in its order: int64 (segments, 3)."""
    return np.array([[i, 0, s.num_examples] for i, s in enumerate(selection.segments)], np.int64).reshape(-1, 3)
