"""Framed records: reads and checks them, and copies those of one layout to rows; in compiled code, or in NumPy."""

from __future__ import annotations

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.files.reading import OpenFile
from pipeline.records import framing
from pipeline.records.tf_example import Layout

U8 = NDArray[np.uint8]
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


def unpack(block: U8, layout: Layout, row_of: NDArray[np.int64], images: U8, labels: NDArray[np.int64]) -> U8:
    """Copies the images and labels of records to their rows, corrupt or not, and returns what is wrong with each.

    All arrays are C-contiguous.

    Args:
      block: framed records, uint8 (m, bytes of a framed record).
      layout: of the records.
      row_of: each record's row, int64 (m,).
      images: to write to, uint8 (rows, pixels).
      labels: to write to, int64 (rows,).

    Returns:
      uint8 (m,): 0, or the sum of `BAD_LENGTH` (its length or the CRC of its length), `BAD_RECORD` (its CRC) and
      `OTHER_LAYOUT`.

    Raises:
      ValueError, IndexError: the arguments do not fit together.
    """
    if _unpack is not None:
        problems = np.empty(len(block), np.uint8)
        image, label = layout.image, layout.label.start
        where = layout.between, image.start, image.stop - image.start, label
        _unpack.unpack(block, layout.frame, *where, row_of, images, labels, problems)
        return problems
    records = block[:, framing.HEADER : -framing.FOOTER]
    images[row_of] = records[:, layout.image]
    labels[row_of] = records[:, layout.label.start]
    bad_length = (block[:, : framing.HEADER] != layout.frame[: framing.HEADER]).any(axis=1)
    bad_record = _masked_crcs(block) != block[:, -framing.FOOTER :].view("<u4")[:, 0]
    bits = np.stack([bad_length, bad_record, layout.mismatch(records)], axis=1)
    return np.packbits(bits, axis=1, bitorder="little")[:, 0]


def _masked_crcs(block: U8) -> NDArray[np.uint32]:
    stride = block.shape[1]
    view, size = block.reshape(-1).data, stride - framing.HEADER - framing.FOOTER
    starts = range(framing.HEADER, len(view), stride)
    return framing.mask(np.fromiter((crc32c.crc32c(view[i : i + size]) for i in starts), np.uint32, len(block)))


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
    places = (begins - begins[0]).tolist()
    if places != sorted(places) or places[-1] > len(frames):
        raise ValueError("begins: not those of the frames")
    for i in range(count):
        frame = frames[places[i] : places[i + 1]].data
        fault = framing.check(frame)
        if fault is not None:
            problems[i] = BAD_RECORD if fault.kind is framing.Kind.RECORD_CRC else BAD_LENGTH
        if len(frame) >= framing.OVERHEAD:
            crcs[i] = np.frombuffer(frame[-framing.FOOTER :], "<u4")[0]
    return problems, crcs


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
