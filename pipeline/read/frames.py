"""Reads and checks framed records, and copies their images and labels to rows, in compiled code or in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.files.reading import OpenFile
from pipeline.records import framing
from pipeline.records.tf_example import MAX_LABEL_SIZE, MAX_ONE_BYTE, Layout

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
# Bits for a record's problems. OTHER_LAYOUT has no meaning if the record is corrupt.
BAD_LENGTH, BAD_RECORD, OTHER_LAYOUT = 1, 2, 4
_GAP, _SPAN = 1 << 20, 8 << 20  # 1 and 8 MiB: largest gap that a request to a store reads across, and its largest size
_CHUNK = 1 << 18  # 256 KiB, still in the core's cache when the CRCs are computed

try:
    from pipeline.read import _unpack
except ImportError:  # installed without a compiler, or for another kind of processor
    _unpack = None  # type: ignore[assignment]


def is_compiled() -> bool:
    """Returns whether compiled code is used, which releases the interpreter's lock."""
    return _unpack is not None


class Unpacked(NamedTuple):
    """The result of checking and unpacking frames.

    Attributes:
      problems: problems of each frame: 0, or the sum of `BAD_LENGTH` (its length or the length's CRC), `BAD_RECORD`
        (its CRC) and `OTHER_LAYOUT`; uint8 (m,).
      crcs: CRC stored in each frame, uint32 (m,); 0 if it is too short for one.
      keys: begin and end of each key in the block, int64 (m, 2); (0, 0) in another layout.
    """

    problems: U8
    crcs: NDArray[np.uint32]
    keys: I64


def unpack(block: U8, begins: I64, row_of: I64, images: U8, labels: I64) -> Unpacked:
    """Copies the images and labels of records to their rows, corrupt or not.

    Rows of records with another layout stay unchanged. All arrays are C-contiguous and do not overlap.

    Args:
      block: consecutive frames, uint8 (bytes,).
      begins: begin of each frame, and the end, with `block[0]` at the first one; int64 (m + 1,).
      row_of: row of each record, int64 (m,).
      images: output images, uint8 (rows, pixels).
      labels: output labels, int64 (rows,).

    Raises:
      ValueError: the arguments do not fit together.
    """
    count = len(begins) - 1
    problems, crcs, keys = np.zeros(count, np.uint8), np.zeros(count, np.uint32), np.zeros((count, 2), np.int64)
    found = Unpacked(problems, crcs, keys)
    if _unpack is not None:
        _unpack.unpack(block, begins, row_of, images, labels, keys, problems, crcs)
        return found
    places = _places(begins, len(block))
    if len(row_of) != count or len(images) != len(labels) or ((row_of < 0) | (row_of >= len(labels))).any():
        raise ValueError("row_of: not a row of images and labels per record")
    problems[:] = OTHER_LAYOUT
    for which, frames in _of_one_size(block, places):
        problems[which] |= _check_alike(frames, crcs, which)
        records = frames[:, framing.HEADER : -framing.FOOTER]
        label_sizes = _label_sizes(records)
        for label_size in sorted({*label_sizes.tolist()} - {0}):
            layout = Layout.fit(records.shape[1], images.shape[1], label_size)
            if layout is None:
                continue
            fits = (label_sizes == label_size) & ~layout.mismatch(records)
            alike, own = (which, records) if fits.all() else (which[fits], records[fits])
            images[row_of[alike]] = own[:, layout.image]
            labels[row_of[alike]] = layout.labels(own)
            keys[alike] = places[alike, None] + framing.HEADER + [layout.key.start, layout.key.stop]
            problems[alike] &= ~np.uint8(OTHER_LAYOUT)
    problems[np.diff(places) < framing.OVERHEAD] = BAD_LENGTH
    return found


def _of_one_size(block: U8, places: I64) -> Iterator[tuple[I64, U8]]:
    """Yields frames grouped by size: their numbers (m,), and uint8 (m, bytes of each). Anything else is left out."""
    strides, view = np.diff(places), block.data
    for stride in sorted({*strides.tolist()}):
        which = np.flatnonzero(strides == stride)
        if stride < framing.OVERHEAD:
            continue
        if len(which) == which[-1] - which[0] + 1:
            frames = block[places[which[0]] : places[which[-1] + 1]]
        else:
            starts = places[which].tolist()
            frames = np.frombuffer(b"".join(view[start : start + stride] for start in starts), np.uint8)
        yield which, frames.reshape(-1, stride)


def _label_sizes(records: U8) -> I64:
    """Returns the length of the label varint that ends each record, int64 (m,); 0 if a record does not end in one."""
    goes_on = records[:, : -MAX_LABEL_SIZE - 2 : -1] > MAX_ONE_BYTE  # from the last byte of a record
    if not goes_on.shape[1]:
        return np.zeros(len(records), np.int64)
    is_inside, sizes = ~goes_on[:, 0], np.where(goes_on[:, 0], 0, 1)
    for column in range(1, goes_on.shape[1]):
        is_inside = is_inside & goes_on[:, column]
        if not is_inside.any():
            break
        sizes += is_inside
    return np.where(sizes > MAX_LABEL_SIZE, 0, sizes)


def check(frames: U8, begins: NDArray[np.int64]) -> tuple[U8, NDArray[np.uint32]]:
    """Checks consecutive frames; returns their problems, and the CRC stored in each.

    Args:
      frames: consecutive frames, uint8 (bytes,), C-contiguous.
      begins: begin of each frame, and the end, with `frames[0]` at the first one; int64 (m + 1,).

    Returns:
      Problems, uint8 (m,): 0, or the sum of `BAD_LENGTH` and `BAD_RECORD`; and CRCs, uint32 (m,), 0 for a frame too
      short to have one.

    Raises:
      ValueError: the arguments do not fit together.
    """
    count = len(begins) - 1
    problems, crcs = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
    if _unpack is not None:
        _unpack.check(frames, begins, problems, crcs)
        return problems, crcs
    places = _places(begins, len(frames))
    problems[:] = BAD_LENGTH
    for which, alike in _of_one_size(frames, places):
        problems[which] = _check_alike(alike, crcs, which)
    return problems, crcs


def _places(begins: I64, size: int) -> I64:
    """Returns the bounds of frames in their memory of `size` bytes; raises ValueError if they do not fit."""
    places: I64 = begins - begins[0]
    if begins[0] < 0 or (np.diff(places) < 0).any() or places[-1] > size:
        raise ValueError("begins: not those of the frames")
    return places


def _check_alike(frames: U8, crcs: NDArray[np.uint32], which: I64) -> U8:
    """Returns the problems of frames, uint8 (m, bytes of each), and writes their stored CRCs to `crcs[which]`."""
    stride = frames.shape[1]
    stored = np.ascontiguousarray(frames[:, -framing.FOOTER :]).view("<u4")[:, 0]
    view, size = frames.reshape(-1).data, stride - framing.OVERHEAD
    computed = (crc32c.crc32c(view[i : i + size]) for i in range(framing.HEADER, len(view), stride))
    is_bad = stored != framing.mask(np.fromiter(computed, np.uint32, len(frames)))
    header = np.frombuffer(framing.header(size), np.uint8)
    is_other_length = (frames[:, : framing.HEADER] != header).any(axis=1)
    crcs[which] = stored
    return np.where(is_other_length, BAD_LENGTH, 0).astype(np.uint8) | np.where(is_bad, BAD_RECORD, 0).astype(np.uint8)


def read(
    file: OpenFile, begins: NDArray[np.int64], places: NDArray[np.int64], memory: U8
) -> tuple[U8, NDArray[np.uint32]]:
    """Reads frames of a file and checks them; returns the result of `check`.

    Args:
      file: file that contains the frames.
      begins: byte offset of each frame, int64 (m,).
      places: place of each frame in the memory, and the end, int64 (m + 1,).
      memory: output memory, uint8 (bytes,), C-contiguous.

    Raises:
      DataError: the file cannot be read, or ends too early.
      ValueError: the arguments do not fit together.
    """
    count, done = len(begins), 0
    problems, crcs = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
    while done < count:
        if _unpack is not None and file.descriptor is not None:
            done += _unpack.read(file.descriptor, begins[done:], places[done:], memory, problems[done:], crcs[done:])
            if done == count:
                break  # otherwise `read_into` reports the problem
        stop = _near(begins, places, done) if file.descriptor is None else done + 1
        if stop > done + 1:
            _read_span(file, begins, places, memory, done, stop)
        else:
            while (
                stop < count
                and begins[stop] - begins[done] == places[stop] - places[done]  # still contiguous
                and places[stop + 1] - places[done] <= _CHUNK
            ):
                stop += 1
            file.read_into(memory[places[done] : places[stop]].data, int(begins[done]))
        part = memory[places[done] : places[stop]]
        problems[done:stop], crcs[done:stop] = check(part, places[done : stop + 1])
        done = stop
    return problems, crcs


def _near(begins: I64, places: I64, first: int) -> int:
    """Returns the end of the frames from `first` on that one request can read: ascending, with small gaps."""
    ends = begins[first:] + np.diff(places[first:])
    apart = (begins[first + 1 :] - ends[:-1] > _GAP) | (begins[first + 1 :] < ends[:-1])
    apart |= ends[1:] - begins[first] > _SPAN
    return first + 1 + (int(apart.argmax()) if apart.any() else len(apart))


def _read_span(file: OpenFile, begins: I64, places: I64, memory: U8, first: int, stop: int) -> None:
    """Reads frames and the gaps between them in one request, and puts the frames into the memory."""
    start = int(begins[first])
    end = int(begins[stop - 1] + places[stop] - places[stop - 1])
    if end - start == places[stop] - places[first]:
        file.read_into(memory[places[first] : places[stop]].data, start)
        return
    span = np.empty(end - start, np.uint8)
    file.read_into(span.data, start)
    for at, place, after in zip(
        (begins[first:stop] - start).tolist(),
        places[first:stop].tolist(),
        places[first + 1 : stop + 1].tolist(),
        strict=True,
    ):
        memory[place:after] = span[at : at + after - place]
