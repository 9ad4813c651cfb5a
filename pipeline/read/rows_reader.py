"""Reads raw images of the same shape, with labels and keys, into the rows of a matrix.

Every byte is checked by the CRC of its record, and that CRC by the manifest's list of CRCs. Without a list, a shard
that is read completely is checked by the manifest's CRC32C.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import crc32c
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
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records import framing, tf_example
from pipeline.records.tf_example import Layout

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
_CHUNK = 1 << 20  # 1 MiB: still in the core's cache when its CRC is computed
_TASK = 8 << 20  # 8 MiB, per thread
_SCATTERED = 64 << 10  # 64 KiB: if a shard's pieces are smaller on average, it is read record by record
_COPIED = 256  # rows at once, to avoid a second copy of the window in memory
ONCE = np.zeros(0, np.int64)  # as `times`: each record fills one row


@dataclasses.dataclass(frozen=True)
class Rows:
    """Decoded records, one row each.

    Attributes:
      images: images, uint8 (n, pixels of an image).
      labels: int64 (n,).
      keys: keys, bytes (n,), dtype object; None if not requested.
      good: mask of good records, bool (n,); the row of a corrupt record that was skipped is a copy of another.
    """

    images: U8
    labels: I64
    keys: NDArray[np.object_] | None
    good: NDArray[np.bool_]


class _Task(NamedTuple):
    """The records that a thread reads from one shard.

    Attributes:
      segment: segment of the shard.
      size: number of records.
      parts: (segment, first record of the shard, end) of each part.
      numbers: record numbers to read one by one, in place of parts; int64 (size,).
    """

    segment: int
    size: int
    parts: list[tuple[int, int, int]]
    numbers: I64 | None = None


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

        Returns None if it does not have raw images, or has other features, labels that are not class numbers, or shards
        without offsets.
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

    def _tasks(self, pieces: I64) -> list[_Task]:
        """Returns tasks that together read the records of pieces in order."""
        if self.members:
            groups = self.shards.together(self.members.parts(pieces), 0)
            return [_Task(group[0][0], sum(stop - start for _, start, stop in group), group) for group in groups]
        tasks = []
        for run in np.split(pieces, np.flatnonzero(np.diff(pieces[:, 0])) + 1) if len(pieces) else []:
            segment, sizes = int(run[0, 0]), run[:, 2] - run[:, 1]
            taken, count = self.shards.segments[segment], int(sizes.sum())
            of_record = taken.shard.num_bytes / max(1, taken.shard.num_examples)
            if len(run) > 1 and count * of_record < _SCATTERED * len(run):
                numbers = np.repeat(run[:, 1] + sizes - np.cumsum(sizes), sizes) + np.arange(count) + taken.start
                step = max(1, int(_TASK / of_record))
                chosen = (numbers[at : at + step] for at in range(0, count, step))
                tasks += [_Task(segment, len(each), [], each) for each in chosen]
            else:
                groups = self.shards.together(self.shards.parts(run, _TASK), _TASK)
                tasks += [_Task(segment, sum(stop - start for _, start, stop in group), group) for group in groups]
        return tasks

    def _read_task(self, rows: Rows, task: _Task, row_of: I64) -> None:
        """Reads records of one shard into their rows."""
        opened = contextlib.nullcontext() if self.members else self.shards.opened(task.segment)
        with opened as file:
            if task.numbers is not None:
                assert file
                self._read_scattered(rows, file, task.segment, task.numbers, row_of)
            done = 0
            for segment, start, stop in task.parts:
                self._read_part(rows, file, segment, start, stop, row_of[done : done + stop - start])
                done += stop - start

    def _read_scattered(self, rows: Rows, file: OpenFile, segment: int, numbers: I64, row_of: I64) -> None:
        """Reads records of a shard by their numbers into their rows, a block at a time, and checks their CRCs."""
        begins = self._offsets(segment, numbers)
        sizes = self._offsets(segment, numbers + 1) - begins
        ends = np.cumsum(sizes)
        crcs, is_good = np.zeros(len(numbers), np.uint32), np.ones(len(numbers), bool)
        for some in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(ends // _CHUNK)) + 1):
            places = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[some])])
            block = np.empty(int(places[-1]), np.uint8)
            frames.read(file, begins[some], places, block)
            where = list(zip(numbers[some].tolist(), begins[some].tolist(), strict=True))
            is_good[some], crcs[some] = self._place(rows, block, places, segment, where.__getitem__, row_of[some])
        good = np.flatnonzero(is_good)
        self.sidecars.check_crcs(segment, numbers[good], crcs[good], lambda i: int(begins[good[i]]))

    def _read_part(self, rows: Rows, file: OpenFile | None, segment: int, start: int, stop: int, row_of: I64) -> None:
        """Reads records start..stop-1 of a shard into their rows, a block at a time, and checks their CRCs."""
        size = stop - start
        by_file, crc = not self.members and self.shards.is_checked_whole(segment, size), 0
        crcs, is_good, offsets = np.zeros(size, np.uint32), np.ones(size, bool), []
        for first, begins, block in self._blocks(file, segment, start, stop):
            run = slice(first - start, first - start + len(begins) - 1)
            offsets.append(begins[:-1])
            if block is None:
                is_good[run] = rows.good[row_of[run]] = False
                continue
            is_good[run], crcs[run] = self._place(rows, block, begins, segment, _following(first, begins), row_of[run])
            if by_file:
                crc = crc32c.crc32c(block.data, crc)
        if by_file and is_good.all():
            self.shards.check_crc(segment, crc)
        else:
            good = np.flatnonzero(is_good)
            self.sidecars.check_crcs(segment, start + good, crcs[good], lambda i: int(np.concatenate(offsets)[good[i]]))

    def _blocks(
        self, file: OpenFile | None, segment: int, start: int, stop: int
    ) -> Iterator[tuple[int, I64, U8 | None]]:
        """Yields blocks: (first record, byte offset of each record and of the end, frames as uint8 (bytes,)).

        The next block may overwrite the frames. They are None if the records are in a corrupt member that is skipped.
        """
        if file is None:
            assert self.members
            for run in self.members.read(segment, start, stop):
                yield run.first, run.begins, None if run.frames is None else np.frombuffer(run.frames, np.uint8)
            return
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
            yield start + first, begins[first : end + 1], block
            first = end

    def _offsets(self, segment: int, numbers: I64) -> I64:
        """Returns the byte offset of some records of a segment's shard."""
        stride = self.shards.segments[segment].shard.stride
        return numbers * stride if stride is not None else self.sidecars.offsets(segment)[numbers]

    def _place(
        self, rows: Rows, block: U8, begins: I64, segment: int, where: Callable[[int], tuple[int, int]], to_rows: I64
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]:
        """Copies a block of framed records to their rows; returns a mask of good ones, and the CRC stored in each.

        `where` returns a record's number in the shard and its byte offset, by its index in the block.
        """
        found = frames.unpack(block, begins, to_rows, rows.images, rows.labels)
        if rows.keys is not None:
            rows.keys[to_rows] = _keys_of(block, found.keys)
        is_good = found.problems == 0
        for i in found.problems.nonzero()[0].tolist():
            frame = block[begins[i] - begins[0] : begins[i + 1] - begins[0]].data
            is_good[i] = self._settle(rows, frame, int(found.problems[i]), segment, *where(i), int(to_rows[i]))
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


def _following(first: int, begins: I64) -> Callable[[int], tuple[int, int]]:
    """Returns a function from an index in a block to the record's number and byte offset."""
    return lambda i: (first + i, int(begins[i]))


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
    # NumPy would take trailing zeros of a key for padding.
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
