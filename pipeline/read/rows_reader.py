"""Reads records of one layout into the rows of a matrix: raw images of one shape, with label and key.

Every byte is checked by the CRC of its record, and that by the manifest's list of CRCs. Where it has none, a shard that
is read whole is checked by the manifest's CRC32C.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.files.reading import OpenFile
from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import IMAGE_FEATURES
from pipeline.manifest.splits import Selection
from pipeline.read import frames
from pipeline.read.compressed import MemberReader
from pipeline.read.memory import aligned_matrix
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records import framing, tf_example
from pipeline.records.tf_example import Layout

U8 = NDArray[np.uint8]
_CHUNK = 1 << 20  # 1 MiB, which is still in the core's cache when its CRC is computed
_TASK = 8 << 20  # 8 MiB, per thread


@dataclasses.dataclass(frozen=True)
class Rows:
    """Decoded records, one row each.

    Attributes:
      images: uint8 (n, pixels of an image).
      labels: int64 (n,).
      keys: bytes (n,), dtype S; None: not wanted.
      good: bool (n,): False where a corrupt record was skipped, and its row is a copy of another.
    """

    images: U8
    labels: NDArray[np.int64]
    keys: NDArray[np.bytes_] | None
    good: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class RowsReader:
    """Reads pieces of shards whose records have one layout per shard.

    Attributes:
      shards: to read.
      sidecars: of the shards.
      layouts: of each segment's records.
      features: of the manifest: image, label and key.
      with_keys: whether the keys are wanted.
      members: reads the shards if they are compressed; else None.
    """

    shards: Shards
    sidecars: Sidecars
    layouts: tuple[Layout, ...]
    features: Mapping[str, Feature]
    with_keys: bool
    members: MemberReader | None = None

    @classmethod
    def fit(cls, manifest: Manifest, shards: Shards, with_keys: bool) -> RowsReader | None:
        """Returns the reader of a selection; None: the records of a shard differ in layout."""
        if set(manifest.features) != set(IMAGE_FEATURES) or manifest.features["image"].encoding != "raw":
            return None
        layouts = []
        for segment in shards.segments:
            size = (segment.shard.stride or 0) - framing.HEADER - framing.FOOTER
            layout = Layout.fit(size, math.prod(manifest.image_shape)) if size > 0 else None
            if layout is None:
                return None
            layouts.append(layout)
        sidecars = Sidecars(shards)
        members = MemberReader(shards, sidecars) if manifest.compression else None
        return cls(shards, sidecars, tuple(layouts), manifest.features, with_keys, members)

    @property
    def pixels(self) -> int:
        """Number of values of an image."""
        return self.layouts[0].image.stop - self.layouts[0].image.start

    def read(
        self,
        pieces: NDArray[np.int64],
        row_of: NDArray[np.int64] | None = None,
        make_matrix: Callable[[int, int], U8] = aligned_matrix,
        text: str = "",
    ) -> Rows:
        """Returns the records of pieces; one row of zeros if there are none.

        Args:
          pieces: to read in this order: segment, first record and end; int64 (p, 3).
          row_of: the row of each record, int64 (n,); None: in the same order.
          make_matrix: returns memory for the images, uint8 (rows, columns), with any content.
          text: of the bar that shows how far it is; empty: none.

        Raises:
          DataError: a shard is missing or changed, or has a corrupt record that must not be skipped.
        """
        sizes = pieces[:, 2] - pieces[:, 1]
        images = make_matrix(max(1, int(sizes.sum())), self.pixels)
        if not sizes.any():
            images[:] = 0
        key_bytes = max(layout.key.stop - layout.key.start for layout in self.layouts)
        keys = np.zeros(len(images), f"S{max(1, key_bytes)}") if self.with_keys else None
        rows = Rows(images, np.zeros(len(images), np.int64), keys, np.ones(len(images), bool))
        parts = self.members.parts(pieces) if self.members else self.shards.parts(pieces, _TASK)
        groups = self.shards.together(parts, 0 if self.members else _TASK)
        ends = np.cumsum([sum(stop - start for _, start, stop in group) for group in groups])[:-1]
        of_groups = np.split(np.arange(len(images)) if row_of is None else row_of, ends)
        with self.shards.held(pieces):
            self.shards.in_parallel(lambda n: self._read_group(rows, groups[n], of_groups[n]), range(len(groups)), text)
        if not rows.good.all():
            bad, other = ~rows.good, self.shards.stand_ins(rows.good, parts[0][0])
            images[bad], rows.labels[bad] = images[other], rows.labels[other]
            if keys is not None:
                keys[bad] = keys[other]
        return rows

    def _read_group(self, rows: Rows, parts: list[tuple[int, int, int]], row_of: NDArray[np.int64]) -> None:
        """Reads parts of one shard into their rows."""
        opened = contextlib.nullcontext() if self.members else self.shards.opened(parts[0][0])
        with opened as file:
            done = 0
            for segment, start, stop in parts:
                self._read_part(rows, file, segment, start, stop, row_of[done : done + stop - start])
                done += stop - start

    def _read_part(
        self, rows: Rows, file: OpenFile | None, segment: int, start: int, stop: int, row_of: NDArray[np.int64]
    ) -> None:
        """Reads records start..stop-1 of a shard into their rows, a block at a time, and checks their CRCs."""
        stride, size = self._stride(segment), stop - start
        by_file, crc = not self.members and self.shards.is_checked_whole(segment, size), 0
        crcs, is_good = np.empty(size, np.uint32), np.ones(size, bool)
        for first, count, block in self._blocks(file, segment, start, stop):
            run = slice(first - start, first - start + count)
            if block is None:
                is_good[run] = rows.good[row_of[run]] = False
                continue
            is_good[run] = self._place(rows, block, segment, first, row_of[run])
            if by_file:
                crc = crc32c.crc32c(block.reshape(-1).data, crc)
            crcs[run] = np.ascontiguousarray(block[:, -framing.FOOTER :]).view("<u4")[:, 0]
        if by_file and is_good.all():
            self.shards.check_crc(segment, crc)
        else:
            good = np.flatnonzero(is_good)
            self.sidecars.check_crcs(segment, start + good, crcs[good], lambda i: (start + int(good[i])) * stride)

    def _blocks(
        self, file: OpenFile | None, segment: int, start: int, stop: int
    ) -> Iterator[tuple[int, int, U8 | None]]:
        """Yields blocks: (first record, number of records, frames uint8 (records, stride)).

        The next block may overwrite the frames. They are None if a corrupt member has the records, and is skipped.
        """
        stride = self._stride(segment)
        if file is None:
            assert self.members
            for run in self.members.read(segment, start, stop):
                block = None if run.frames is None else np.frombuffer(run.frames, np.uint8).reshape(-1, stride)
                yield run.first, len(run.begins) - 1, block
            return
        chunk = np.empty((max(1, min(_CHUNK // stride, stop - start)), stride), np.uint8)
        for first in range(start, stop, len(chunk)):
            block = chunk[: stop - first]
            file.read_into(block.reshape(-1).data, first * stride)
            yield first, len(block), block

    def _place(self, rows: Rows, block: U8, segment: int, first: int, to_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Copies a block of framed records to their rows; returns which are good: bool (m,)."""
        layout = self.layouts[segment]
        if rows.keys is not None and layout.key.stop > layout.key.start:
            keys = np.ascontiguousarray(block[:, framing.HEADER : -framing.FOOTER][:, layout.key])
            rows.keys[to_rows] = keys.view(f"S{keys.shape[1]}")[:, 0]
        problems = frames.unpack(block, layout, to_rows, rows.images, rows.labels)
        is_good = np.ones(len(block), bool)
        for i in np.flatnonzero(problems).tolist():
            is_good[i] = self._settle(rows, block[i].data, int(problems[i]), segment, first + i, int(to_rows[i]))
        return is_good

    def _stride(self, segment: int) -> int:
        """Returns the bytes from one record to the next in a segment's shard, before compression."""
        return self.shards.segments[segment].shard.stride or 0

    def _settle(self, rows: Rows, frame: memoryview, problems: int, segment: int, number: int, row: int) -> bool:
        """Copies a record of another layout to its row; returns False if it is corrupt and skipped."""
        offset = number * len(frame)
        if problems & (frames.BAD_LENGTH | frames.BAD_RECORD):
            fault = framing.check(frame)
            self.shards.corrupt(segment, number, offset, fault.text if fault else "")
            rows.good[row] = False
            return False
        file = self.shards.file(segment)
        try:
            found = tf_example.example(bytes(frame[framing.HEADER : -framing.FOOTER]), self.features)
        except tf_example.BadExampleError as error:
            raise error.at(file, number, offset) from None
        rows.images[row], rows.labels[row] = found["image"].reshape(-1), found["label"]
        if rows.keys is not None:
            if len(found["key"]) > rows.keys.dtype.itemsize:
                raise DataError(
                    f"a key of {len(found['key'])} bytes, longer than the others'",
                    path=file,
                    record=number,
                    offset=offset,
                    advice="convert again",
                )
            rows.keys[row] = found["key"]
        return True


def all_pieces(selection: Selection) -> NDArray[np.int64]:
    """Returns the pieces of a whole selection, in its order: int64 (segments, 3)."""
    return np.array([[i, 0, s.num_examples] for i, s in enumerate(selection.segments)], np.int64).reshape(-1, 3)
