"""Reads raw images of the same shape, with labels and keys, into the rows of a matrix.

Every byte is checked against the CRC of its record, and that CRC against the manifest's list of CRCs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.files.reading import OpenFile
from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import IMAGE_FEATURES
from pipeline.manifest.splits import Selection
from pipeline.order.views import pieces_of
from pipeline.read import frames
from pipeline.read.compressed import MemberReader
from pipeline.read.memory import aligned_matrix
from pipeline.read.shards import ReadTask, Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records import framing, tf_example
from pipeline.records.tf_example import Layout

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
_CHUNK = 1 << 20  # 1 MiB, still in the core's cache when its CRC is computed
_TASK = 8 << 20  # 8 MiB, per thread
_SCATTERED = 64 << 10  # 64 KiB: if a shard's pieces are smaller on average, it is read record by record
_COPIED = 256  # rows to copy at a time, to avoid a second copy of the window in memory
ONCE = np.zeros(0, np.int64)  # value of `times` if each record fills one row


@dataclasses.dataclass(frozen=True)
class Rows:
    """Decoded records, one row each.

    Attributes:
      images: images, uint8 (n, pixels of an image).
      labels: int64 (n,).
      keys: keys, bytes (n,), dtype object; None if not requested.
      good: mask of good records, bool (n,); the row of a skipped corrupt record is a copy of another row.
    """

    images: U8
    labels: I64
    keys: NDArray[np.object_] | None
    good: NDArray[np.bool_]


class _Block(NamedTuple):
    """Framed records that are read together. The next block may overwrite the frames.

    Attributes:
      numbers, offsets: number of each record in its shard, and byte offset there, int64 (m,).
      places: begin of each frame, and the end, with `frames[0]` at the first one; int64 (m + 1,).
      frames: uint8 (bytes,); None if the records are in a corrupt member that is skipped.
    """

    numbers: I64
    offsets: I64
    places: I64
    frames: U8 | None


@dataclasses.dataclass(frozen=True)
class RowsReader:
    """Reads pieces of shards of raw images.

    Attributes:
      shards: shards to read.
      sidecars: sidecars of the shards.
      features: image, label and key features of the manifest.
      pixels: number of values in an image.
      with_keys: whether to read the keys.
      members: reader of compressed shards; None if they are not compressed.
    """

    shards: Shards
    sidecars: Sidecars
    features: Mapping[str, Feature]
    pixels: int
    with_keys: bool
    members: MemberReader | None = None

    @classmethod
    def fit(cls, manifest: Manifest, shards: Shards, with_keys: bool) -> RowsReader | None:
        """Returns the reader for a selection.

        Returns None if there are no raw images, or there are other features, labels that are not class numbers, or
        shards without offsets or a list of CRCs.
        """
        if set(manifest.features) != set(IMAGE_FEATURES) or manifest.features["image"].encoding != "raw":
            return None
        if not manifest.features["label"].is_class or manifest.features["label"].texts:
            return None
        pixels = math.prod(manifest.image_shape)
        least = len(Layout.build(pixels, 0).template) + framing.OVERHEAD
        packings = {segment.shard.compression for segment in shards.segments}
        if len(packings) > 1:
            return None
        for shard in (segment.shard for segment in shards.segments):
            if not shard.is_seekable or (shard.stride is not None and shard.stride < least):
                return None
            if shard.num_examples and shard.crcs_crc32c is None:
                return None
        sidecars = Sidecars(shards)
        members = MemberReader(shards, sidecars) if any(packings) else None
        return cls(shards, sidecars, manifest.features, pixels, with_keys, members)

    def read(
        self,
        pieces: I64,
        row_of: I64 | None = None,
        make_matrix: Callable[[int, int], U8] = aligned_matrix,
        text: str = "",
        times: I64 = ONCE,
    ) -> Rows:
        """Returns the records of pieces; a single row of zeros if there are none.

        Args:
          pieces: segment, first record and end of each piece to read, in order, int64 (p, 3).
          row_of: row of each record, followed by its copies' rows, int64 (n,); None for reading order.
          make_matrix: function that returns memory for the images, uint8 (rows, columns), with any content.
          text: label of the progress bar; empty for none.
          times: number of rows that each record fills, (records,); empty if each fills one.

        Raises:
          DataError: a shard is missing or changed, or has a corrupt record that must not be skipped.
        """
        sizes = pieces[:, 2] - pieces[:, 1]
        count = int(times.sum() if len(times) else sizes.sum())
        images = make_matrix(max(1, count), self.pixels)
        if not count:
            images[:] = 0
        keys = np.full(len(images), b"", object) if self.with_keys else None
        rows = Rows(images, np.zeros(len(images), np.int64), keys, np.ones(len(images), bool))
        given = np.arange(len(images)) if row_of is None else row_of
        firsts = given if not len(times) else given[np.cumsum(times) - times]
        tasks = self._tasks(pieces)
        of_tasks = np.split(firsts, np.cumsum([task.size for task in tasks])[:-1])
        with self.shards.held(pieces):
            self.shards.in_parallel(lambda n: self._read_task(rows, tasks[n], of_tasks[n]), range(len(tasks)), text)
        if len(times):
            _copy(rows, np.repeat(firsts, times), given)
        if not rows.good.all():
            bad, other = ~rows.good, self.shards.stand_ins(rows.good, int(pieces[0, 0]))
            _copy(rows, other, np.flatnonzero(bad), with_good=False)
        return rows

    def _tasks(self, pieces: I64) -> list[ReadTask]:
        """Returns tasks that together read the records of pieces in order."""
        if self.members:
            return self.shards.tasks(self.members.parts(pieces), 0)
        tasks: list[ReadTask] = []
        for run in np.split(pieces, np.flatnonzero(np.diff(pieces[:, 0])) + 1) if len(pieces) else []:
            segment, sizes = int(run[0, 0]), run[:, 2] - run[:, 1]
            taken, count = self.shards.segments[segment], int(sizes.sum())
            of_record = taken.shard.num_bytes / max(1, taken.shard.num_examples)
            if len(run) > 1 and count * of_record < _SCATTERED * len(run):
                numbers = np.repeat(run[:, 1] + sizes - np.cumsum(sizes), sizes) + np.arange(count) + taken.start
                step = max(1, int(_TASK / of_record))
                chosen = (numbers[at : at + step] for at in range(0, count, step))
                tasks += [ReadTask(segment, [], each) for each in chosen]
            else:
                tasks += self.shards.tasks(self.shards.parts(run, _TASK), _TASK)
        return tasks

    def _read_task(self, rows: Rows, task: ReadTask, row_of: I64) -> None:
        """Reads records of one shard into their rows, a block at a time, and checks their CRCs."""
        done = 0
        for block in self._blocks(task):
            to_rows = row_of[done : done + len(block.numbers)]
            done += len(block.numbers)
            if block.frames is None:
                rows.good[to_rows] = False
                continue
            good, crcs = self._place(rows, block, block.frames, task.segment, to_rows)
            self.sidecars.check_crcs(task.segment, block.numbers[good], crcs[good], block.offsets[good])

    def _blocks(self, task: ReadTask) -> Iterator[_Block]:
        if self.members:
            found = (self.members.read(task.segment, *run) for run in task.runs)
            for run in itertools.chain.from_iterable(found):
                numbers = np.arange(run.first, run.first + len(run.begins) - 1)
                data = None if run.frames is None else np.frombuffer(run.frames, np.uint8)
                yield _Block(numbers, run.begins[:-1], run.begins, data)
            return
        with self.shards.opened(task.segment) as file:
            if task.numbers is not None:
                yield from self._scattered(file, task.segment, task.numbers)
            for part in task.runs:
                yield from self._consecutive(file, task.segment, *part)

    def _scattered(self, file: OpenFile, segment: int, numbers: I64) -> Iterator[_Block]:
        begins = self._offsets(segment, numbers)
        sizes = self._offsets(segment, numbers + 1) - begins
        for some in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(np.cumsum(sizes) // _CHUNK)) + 1):
            places = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[some])])
            block = np.empty(int(places[-1]), np.uint8)
            frames.read(file, begins[some], places, block)
            yield _Block(numbers[some], begins[some], places, block)

    def _consecutive(self, file: OpenFile, segment: int, start: int, stop: int) -> Iterator[_Block]:
        begins = self._offsets(segment, np.arange(start, stop + 1))
        first, count, chunk = 0, stop - start, np.empty(0, np.uint8)
        while first < count:
            end, offset = count, int(begins[first])
            if begins[count] - offset > _CHUNK:
                end = max(first + 1, int(np.searchsorted(begins, offset + _CHUNK, "right")) - 1)
            size = int(begins[end]) - offset
            if size > len(chunk):
                chunk = np.empty(size, np.uint8)
            block = chunk[:size]
            file.read_into(block.data, offset)
            yield _Block(np.arange(start + first, start + end), begins[first:end], begins[first : end + 1], block)
            first = end

    def _offsets(self, segment: int, numbers: I64) -> I64:
        """Returns the byte offset of some records of a segment's shard."""
        stride = self.shards.segments[segment].shard.stride
        return numbers * stride if stride is not None else self.sidecars.offsets(segment)[numbers]

    def _place(
        self, rows: Rows, block: _Block, data: U8, segment: int, to_rows: I64
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]:
        """Copies a block's records to their rows; returns a mask of good ones, and the CRC stored in each."""
        found = frames.unpack(data, block.places, to_rows, rows.images, rows.labels)
        if rows.keys is not None:
            rows.keys[to_rows] = _keys_of(data, found.keys)
        is_good = found.problems == 0
        for i in found.problems.nonzero()[0].tolist():
            begin, end = block.places[i : i + 2] - block.places[0]
            where = int(block.numbers[i]), int(block.offsets[i]), int(to_rows[i])
            is_good[i] = self._settle(rows, data[begin:end].data, int(found.problems[i]), segment, *where)
        return is_good, found.crcs

    def _settle(
        self, rows: Rows, frame: memoryview, problems: int, segment: int, number: int, offset: int, row: int
    ) -> bool:
        """Copies a record with another layout to its row; returns False if it is corrupt and skipped."""
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
            rows.keys[row] = found["key"]
        return True


def _copy(rows: Rows, sources: I64, targets: I64, with_good: bool = True) -> None:
    """Copies rows onto others, int64 (m,) each."""
    differ = sources != targets
    sources, targets = sources[differ], targets[differ]
    for at in range(0, len(sources), _COPIED):
        one, other = sources[at : at + _COPIED], targets[at : at + _COPIED]
        rows.images[other], rows.labels[other] = rows.images[one], rows.labels[one]
    if rows.keys is not None:
        rows.keys[targets] = rows.keys[sources]
    if with_good:
        rows.good[targets] = rows.good[sources]


def _keys_of(block: U8, bounds: I64) -> NDArray[np.object_]:
    """Returns the keys of records, bytes (m,), given the begin and end of each, int64 (m, 2)."""
    sizes = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(sizes)
    joined = block[np.arange(int(sizes.sum())) + np.repeat(bounds[:, 1] - ends, sizes)]
    # NumPy would mistake trailing zeros of a key for padding.
    if sizes[0] > 0 and (sizes == sizes[0]).all() and joined[ends - 1].all():
        return joined.view(f"S{sizes[0]}").astype(object)
    data, keys = joined.tobytes(), np.empty(len(sizes), object)
    keys[:] = [data[begin:end] for begin, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]
    return keys


def all_pieces(selection: Selection, records: I64 | None = None) -> I64:
    """Returns the pieces of a whole selection, or of some of its records, in order: int64 (pieces, 3).

    Args:
      selection: records of the split.
      records: record ids to read, ascending; None for all.
    """
    counts = np.array([segment.num_examples for segment in selection.segments], np.int64)
    if records is None:
        return np.stack([np.arange(len(counts)), np.zeros_like(counts), counts], axis=1)
    ends = np.cumsum(counts)
    segments = np.searchsorted(ends, records, "right")
    return pieces_of(segments, records - (ends - counts)[segments])
