"""Checks framed records of one layout and copies them to the rows of a matrix: in compiled code, else in NumPy."""

from __future__ import annotations

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.records import framing
from pipeline.records.layout import Layout

try:
    from pipeline.read import _unpack
except ImportError:  # installed without a compiler, or on another kind of processor
    _unpack = None  # type: ignore[assignment]

U8 = NDArray[np.uint8]

# What may be wrong with a record, as bits; OTHER_LAYOUT says nothing about a corrupt record.
BAD_LENGTH, BAD_RECORD, OTHER_LAYOUT = 1, 2, 4


def is_compiled() -> bool:
    """Returns whether the compiled code is used, which lets other threads run meanwhile."""
    return _unpack is not None


def unpack(block: U8, layout: Layout, row_of: NDArray[np.int64], images: U8, labels: NDArray[np.int64]) -> U8:
    """Copies the images and labels of records to their rows, corrupt or not, and returns what is wrong with each.

    Args:
      block: framed records, uint8 (m, bytes of one with its frame), C-contiguous, as the others.
      layout: where the image and the label lie in a record.
      row_of: int64 (m,): each record's row.
      images, labels: uint8 (rows, pixels) and int64 (rows,), which are written to.

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
