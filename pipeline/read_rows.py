"""Reads records of one layout as one matrix, a row a record, without a copy: raw images of one shape, label and key.

Every byte is checked: a whole shard by the manifest's CRC32C, parts of one by the CRC of each record.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline import example_proto, framing
from pipeline.errors import DataError
from pipeline.example import Layout
from pipeline.manifest import Manifest
from pipeline.read import Shards, in_parallel
from pipeline.splits import Selection
from pipeline.storage import OpenFile

U8 = NDArray[np.uint8]
_CHUNK = 256 << 10  # 256 KiB: what is read is still in the core's cache when its CRC is computed
_TASK = 8 << 20  # 8 MiB: of one thread
_ALIGNED = 64  # bytes: TensorFlow takes NumPy's memory as it is where it begins at a multiple of this
_FEATURES = ("image", "label", "key")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Records as they lie in their shards.

    Attributes:
      matrix: uint8 (n, stride), frames included.
      labels: int64 (n,).
      keys: bytes (n,), dtype S.
      good: bool (n,): False where a corrupt record was left out; its row is another one's.
    """

    matrix: U8
    labels: NDArray[np.int64]
    keys: NDArray[np.bytes_]
    good: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Records start..stop-1 of a segment's shard, to be read to rows of the result that begin at `row`."""

    segment: int
    start: int
    stop: int
    row: int


@dataclasses.dataclass(frozen=True)
class RowsReader:
    """Reads pieces of shards whose records have one length and one layout.

    Attributes:
      shards: where they are read from.
      stride: bytes from one record to the next.
      layout: where a record's features are.
    """

    shards: Shards
    stride: int
    layout: Layout

    @classmethod
    def fit(cls, manifest: Manifest, shards: Shards) -> RowsReader | None:
        """Returns the reader of a selection, or None where its records have not one layout."""
        image = manifest.features["image"]
        strides = {segment.shard.stride for segment in shards.segments}
        stride = strides.pop() if len(strides) == 1 else None
        if image.encoding != "raw" or set(manifest.features) != set(_FEATURES) or not stride:
            return None
        layout = Layout.fit(stride - framing.HEADER - framing.FOOTER, math.prod(manifest.image_shape))
        return cls(shards, stride, layout) if layout else None

    @property
    def image(self) -> slice:
        """The columns of `Rows.matrix` that hold the image."""
        return slice(framing.HEADER + self.layout.image.start, framing.HEADER + self.layout.image.stop)

    def read(self, pieces: NDArray[np.int64]) -> Rows:
        """Returns the records of pieces (p, 3): segment, first record and end; one row of zeros where there is none.

        Raises:
          DataError: a shard is missing or changed, or holds a corrupt record that is not to be skipped.
        """
        sizes = pieces[:, 2] - pieces[:, 1]
        rows = self._empty(int(sizes.sum()))
        parts = [
            part
            for piece, row in zip(pieces.tolist(), (np.cumsum(sizes) - sizes).tolist(), strict=True)
            for part in self._parts(_Part(piece[0], piece[1], piece[2], row))
        ]
        in_parallel(functools.partial(self._read_part, rows), parts)
        if not rows.good.all():
            self._stand_in(rows, parts)
        return rows

    def _empty(self, count: int) -> Rows:
        matrix = aligned_matrix(max(1, count), self.stride)
        if count == 0:
            matrix[:] = 0
        labels, good = np.zeros(len(matrix), np.int64), np.ones(len(matrix), bool)
        size = self.layout.key.stop - self.layout.key.start
        return Rows(matrix, labels, np.zeros(len(matrix), f"S{max(1, size)}"), good)

    def _parts(self, piece: _Part) -> list[_Part]:
        """Cuts a piece among threads; a whole shard stays whole, because of its CRC."""
        segment = self.shards.segments[piece.segment]
        start, stop = segment.start + piece.start, segment.start + piece.stop
        step = max(1, _TASK // self.stride)
        if (start, stop) == (0, segment.shard.num_examples):
            step = stop
        return [
            _Part(piece.segment, first, min(first + step, stop), piece.row + first - start)
            for first in range(start, stop, step)
        ]

    def _read_part(self, rows: Rows, part: _Part) -> None:
        block = rows.matrix[part.row : part.row + part.stop - part.start]
        shard = self.shards.segments[part.segment].shard
        with self.shards.opened(part.segment) as file:
            if len(block) == shard.num_examples:
                self._read_whole(file, block, part, rows)
            else:
                self._read_records(file, block, part, rows)
        self._features(rows, block, part)

    def _read_whole(self, file: OpenFile, block: U8, part: _Part, rows: Rows) -> None:
        view, crc = block.reshape(-1).data, 0
        for offset in range(0, len(view), _CHUNK):
            chunk = view[offset : offset + _CHUNK]
            file.read_into(chunk, offset)
            crc = crc32c.crc32c(chunk, crc)
        if f"{crc:08x}" != self.shards.segments[part.segment].shard.crc32c and self._check_records(block, part, rows):
            self.shards.check_crc(part.segment, crc)

    def _read_records(self, file: OpenFile, block: U8, part: _Part, rows: Rows) -> None:
        step = max(1, _CHUNK // self.stride)
        for first in range(0, len(block), step):
            chunk = block[first : first + step]
            number = part.start + first
            file.read_into(chunk.reshape(-1).data, number * self.stride)
            self._check_records(chunk, dataclasses.replace(part, start=number, row=part.row + first), rows)

    def _check_records(self, block: U8, part: _Part, rows: Rows) -> bool:
        """Checks the frames of rows; says whether all are good."""
        view, last = block.reshape(-1).data, self.stride - framing.FOOTER
        found = np.fromiter(
            (
                crc32c.crc32c(view[first : first + last - framing.HEADER])
                for first in range(framing.HEADER, len(view), self.stride)
            ),
            np.uint32,
            len(block),
        )
        stored = np.ascontiguousarray(block[:, last:]).view("<u4")[:, 0]
        bad_record = framing.mask(found) != stored
        bad_length = (block[:, : framing.HEADER] != self._header).any(axis=1)
        for i in np.flatnonzero(bad_record | bad_length).tolist():
            number = part.start + i
            problem = "its length or the CRC of its length" if bad_length[i] else "the record's CRC"
            self.shards.corrupt(part.segment, number, number * self.stride, f"{problem} is wrong")
            rows.good[part.row + i] = False
        return not (bad_record | bad_length).any()

    @functools.cached_property
    def _header(self) -> U8:
        return np.frombuffer(framing.header(self.stride - framing.HEADER - framing.FOOTER), np.uint8)

    def _features(self, rows: Rows, block: U8, part: _Part) -> None:
        records = block[:, framing.HEADER : -framing.FOOTER]
        place = slice(part.row, part.row + len(block))
        rows.labels[place] = records[:, self.layout.label.start]
        if self.layout.key.stop > self.layout.key.start:
            rows.keys[place] = np.ascontiguousarray(records[:, self.layout.key]).view(rows.keys.dtype)[:, 0]
        for i in np.flatnonzero(self.layout.mismatch(records) & rows.good[place]).tolist():
            self._other_layout(rows, records[i], part, i)

    def _other_layout(self, rows: Rows, record: U8, part: _Part, i: int) -> None:
        """Takes the features of a record with the bytes of a good one in other places."""
        number, row = part.start + i, part.row + i
        where = f"{self.shards.file(part.segment)}, record {number}, byte offset {number * self.stride}"
        image, rows.labels[row], key = features(record.tobytes(), where)
        size = self.layout.image.stop - self.layout.image.start
        if len(image) != size or len(key) > rows.keys.dtype.itemsize:
            raise DataError(f"{where}: an image of {len(image)} bytes, not of {size}, or a longer key; convert again")
        rows.matrix[row, self.image] = np.frombuffer(image, np.uint8)
        rows.keys[row] = key

    def _stand_in(self, rows: Rows, parts: list[_Part]) -> None:
        """Copies the next good row over each one that is left out."""
        good = np.flatnonzero(rows.good)
        if not len(good):
            raise self.shards.corruption.none_is_good(str(self.shards.file(parts[0].segment)), len(rows.good))
        bad = np.flatnonzero(~rows.good)
        other = good[np.minimum(np.searchsorted(good, bad), len(good) - 1)]
        rows.matrix[bad], rows.labels[bad], rows.keys[bad] = rows.matrix[other], rows.labels[other], rows.keys[other]


def features(record: bytes, where: str) -> tuple[bytes, int, bytes]:
    """Returns the image, the label and the key of an Example.

    Args:
      record: the serialized Example.
      where: for the message.

    Raises:
      DataError: it is none, or has not one of each.
    """
    try:
        found = example_proto.decode(record, _FEATURES)
    except ValueError as error:
        raise DataError(f"{where}: {error}; convert the data again") from None
    image, label, key = (found.get(name, []) for name in _FEATURES)
    if isinstance(image, list) and isinstance(label, np.ndarray) and isinstance(key, list):  # noqa: SIM102
        if (len(image), len(label), len(key)) == (1, 1, 1) and label.dtype == np.int64:
            return image[0], int(label[0]), key[0]
    raise DataError(f"{where}: not an Example with one image, one int64 label and one key; convert the data again")


def aligned_matrix(rows: int, columns: int) -> U8:
    """Returns an uninitialised uint8 (rows, columns) that TensorFlow can take without a copy."""
    memory = np.empty(rows * columns + _ALIGNED, np.uint8)
    first = -memory.ctypes.data % _ALIGNED
    return memory[first : first + rows * columns].reshape(rows, columns)


def all_pieces(selection: Selection) -> NDArray[np.int64]:
    """Returns the pieces that hold a whole selection, in its order: int64 (segments, 3)."""
    return np.array([[i, 0, s.num_examples] for i, s in enumerate(selection.segments)], np.int64).reshape(-1, 3)
