"""Framed records: reads and checks them, and copies images and labels to rows; in compiled code, or in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.files.reading import OpenFile
from pipeline.records import framing
from pipeline.records.tf_example import MAX_LABEL_SIZE, MAX_ONE_BYTE, Layout

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
# Bits for what may be wrong with a record. OTHER_LAYOUT means nothing if the record is corrupt.
BAD_LENGTH, BAD_RECORD, OTHER_LAYOUT = 1, 2, 4
_CHUNK = 1 << 18  # 256 KiB, which are still in the core's cache when their CRCs are computed

try:
    from pipeline.read import _unpack
except ImportError:  # installed without a compiler, or for another kind of processor
    _unpack = None  # type: ignore[assignment]


def is_compiled() -> bool:
    """Returns whether the compiled code is used, which releases the interpreter's lock."""
    return _unpack is not None


class Unpacked(NamedTuple):
    """What is known of some frames.

    Attributes:
      problems: of each: 0, or the sum of `BAD_LENGTH` (its length or the CRC of its length), `BAD_RECORD` (its CRC) and
        `OTHER_LAYOUT`; uint8 (m,).
      crcs: that each stores, uint32 (m,); 0 if it is too short for one.
      keys: where each key begins and ends in the block, int64 (m, 2); (0, 0) in another layout.
    """

    problems: U8
    crcs: NDArray[np.uint32]
    keys: I64


def unpack(block: U8, begins: I64, row_of: I64, images: U8, labels: I64) -> Unpacked:
    """Copies the images and labels of records to their rows, corrupt or not.

    The rows of records of another layout are left as they are. All arrays are C-contiguous, and none overlaps another.

    Args:
      block: frames that lie one after the other, uint8 (bytes,).
      begins: where each frame begins, and the end; the first one is that of `block[0]`. int64 (m + 1,).
      row_of: each record's row, int64 (m,).
      images: to write to, uint8 (rows, pixels).
      labels: to write to, int64 (rows,).

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
    _check_in_numpy(block, places, problems, crcs)
    starts, sizes = places[:-1], np.diff(places) - framing.OVERHEAD
    is_other = sizes >= 0
    label_sizes = _label_sizes(block, starts + framing.HEADER + sizes, np.where(is_other, sizes, 0))
    for size, label_size in sorted({*zip(sizes.tolist(), label_sizes.tolist(), strict=True)}):
        layout = Layout.fit(size, images.shape[1], label_size) if label_size else None
        if layout is None:
            continue
        alike = np.flatnonzero((sizes == size) & (label_sizes == label_size))
        records = _matrix(block, starts[alike] + framing.HEADER, size)
        fits = ~layout.mismatch(records)
        alike, records = (alike, records) if fits.all() else (alike[fits], records[fits])
        images[row_of[alike]] = records[:, layout.image]
        labels[row_of[alike]] = layout.labels(records)
        keys[alike] = starts[alike, None] + framing.HEADER + [layout.key.start, layout.key.stop]
        is_other[alike] = False
    problems[is_other] |= OTHER_LAYOUT
    return found


def _label_sizes(block: U8, ends: I64, sizes: I64) -> I64:
    """Returns the bytes of the varint that ends each record, int64 (m,); 0 if it is none of a label.

    Args:
      block: that has the records.
      ends: of the records in the block, int64 (m,).
      sizes: of the records, int64 (m,).
    """
    found = np.zeros(len(ends), np.int64)
    is_inside = sizes > 0
    is_inside[is_inside] = block[ends[is_inside] - 1] <= MAX_ONE_BYTE  # else no varint ends here
    for size in range(1, MAX_LABEL_SIZE + 1):
        if not is_inside.any():
            break
        found[is_inside] = size
        is_inside &= sizes > size
        is_inside[is_inside] = block[ends[is_inside] - 1 - size] > MAX_ONE_BYTE
    found[is_inside] = 0  # it is longer
    return found


def _matrix(block: U8, starts: I64, size: int) -> U8:
    """Returns the bytes of some records of one size, uint8 (m, size)."""
    stride = size + framing.OVERHEAD
    if (np.diff(starts) == stride).all():
        begin = int(starts[0]) - framing.HEADER
        frames = block[begin : begin + len(starts) * stride].reshape(-1, stride)
        return frames[:, framing.HEADER : -framing.FOOTER]
    view = block.data
    return np.frombuffer(b"".join(view[start : start + size] for start in starts.tolist()), np.uint8).reshape(-1, size)


def check(frames: U8, begins: NDArray[np.int64]) -> tuple[U8, NDArray[np.uint32]]:
    """Returns what is wrong with frames that lie one after the other, and the CRC that each of them stores.

    Args:
      frames: uint8 (bytes,), C-contiguous.
      begins: where each frame begins, and the end; the first one is that of `frames[0]`. int64 (m + 1,).

    Returns:
      uint8 (m,): 0, or the sum of `BAD_LENGTH` and `BAD_RECORD`; and uint32 (m,). A frame too short for a CRC has 0.

    Raises:
      ValueError: the arguments do not fit together.
    """
    count = len(begins) - 1
    problems, crcs = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
    if _unpack is not None:
        _unpack.check(frames, begins, problems, crcs)
        return problems, crcs
    _check_in_numpy(frames, _places(begins, len(frames)), problems, crcs)
    return problems, crcs


def _places(begins: I64, size: int) -> I64:
    """Returns where frames begin and end in their memory of `size` bytes; raises ValueError if they do not fit."""
    places: I64 = begins - begins[0]
    if begins[0] < 0 or (np.diff(places) < 0).any() or places[-1] > size:
        raise ValueError("begins: not those of the frames")
    return places


def _check_in_numpy(frames: U8, places: I64, problems: U8, crcs: NDArray[np.uint32]) -> None:
    """Does what `check` does, given where the frames begin and end in their memory."""
    sizes = np.diff(places) - framing.OVERHEAD
    problems[sizes < 0] = BAD_LENGTH
    whole = np.flatnonzero(sizes >= 0)
    starts, sizes, view = places[whole] + framing.HEADER, sizes[whole], frames.data
    ends = starts + sizes
    computed = map(crc32c.crc32c, (view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)))
    crcs[whole] = _gathered(frames, ends, framing.FOOTER).view("<u4")[:, 0]
    is_bad = crcs[whole] != framing.mask(np.fromiter(computed, np.uint32, len(whole)))
    headers = _gathered(frames, starts - framing.HEADER, framing.HEADER)
    is_length = np.zeros(len(whole), bool)
    for size in sorted({*sizes.tolist()}):
        is_length |= (sizes == size) & (headers == np.frombuffer(framing.header(size), np.uint8)).all(axis=1)
    problems[whole] = np.where(is_length, 0, BAD_LENGTH) | np.where(is_bad, BAD_RECORD, 0)


def _gathered(memory: U8, starts: I64, size: int) -> U8:
    """Returns parts of some memory, uint8 (m, size)."""
    return memory[starts[:, None] + np.arange(size)]


def read(
    file: OpenFile, begins: NDArray[np.int64], places: NDArray[np.int64], memory: U8
) -> tuple[U8, NDArray[np.uint32]]:
    """Reads frames of a file and checks them; returns what `check` does.

    Args:
      file: that has them.
      begins: the offset of each frame, int64 (m,).
      places: where each goes in the memory, and the end; int64 (m + 1,).
      memory: to write to, uint8 (bytes,), C-contiguous.

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
                break  # else `read_into` says what is wrong
        stop = done + 1
        while stop < count and _follows(begins, places, done, stop):
            stop += 1
        part = memory[places[done] : places[stop]]
        file.read_into(part.data, int(begins[done]))
        problems[done:stop], crcs[done:stop] = check(part, places[done : stop + 1])
        done = stop
    return problems, crcs


def _follows(begins: NDArray[np.int64], places: NDArray[np.int64], first: int, number: int) -> bool:
    """Whether a frame is read together with those from `first` on: they follow each other, and are not too long."""
    is_next = begins[number] - begins[first] == places[number] - places[first]
    return bool(is_next and places[number + 1] - places[first] <= _CHUNK)
