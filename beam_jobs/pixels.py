"""Pixels of raw images: planes become pixels, and the values of each channel are added up; compiled, or in NumPy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

try:
    from pipeline.read import _unpack
except ImportError:  # installed without a compiler, or for another kind of processor
    _unpack = None  # type: ignore[assignment]

CHANNELS = 3  # of planes
_PERIOD = 48  # places that compiled code adds values up by
_VALUES = 3 << 16  # 192 Ki values widened to uint32 at a time, which fit the cache
_MOST_ROWS = 66_051  # at a time: floor((2^32 - 1) / 255^2), so that sums of squares fit uint32
_MOST_LANES = 1 << 14  # values of an image that are summed side by side


def interleave(planes: NDArray[np.uint8], before: int, images: NDArray[np.uint8]) -> None:
    """Writes the pixels of RGB images that are stored plane by plane.

    Args:
      planes: uint8 (n, before + 3 x pixels), C-contiguous: other bytes, and then the red, green and blue values.
      before: number of the other bytes.
      images: to write to, uint8 (n, pixels, 3), C-contiguous.
    """
    if _unpack is not None:
        _unpack.interleave(np.array([len(planes), before, images.shape[1]]), planes, images)
        return
    for channel in range(CHANNELS):  # three times as fast as a transposed copy
        begin = before + channel * images.shape[1]
        images[:, :, channel] = planes[:, begin : begin + images.shape[1]]


def sums_of(images: NDArray[np.uint8], channels: int) -> tuple[list[int], list[int]]:
    """Returns the sum of each channel's values, and of their squares.

    Args:
      images: uint8 (..., channels).
      channels: how many.
    """
    if _unpack is not None and _PERIOD % channels == 0:
        found = np.empty((2, _PERIOD), np.int64)
        _unpack.sum(np.ascontiguousarray(images), found)
        sums, squares = found
    else:
        sums, squares = _by_lane(images)
    first, second = ([int(each[n::channels].sum()) for n in range(channels)] for each in (sums, squares))
    return first, second


def _by_lane(images: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the sum of the values at each place of an image or of a row of it, and of their squares."""
    lanes = math.prod(images.shape[1:])
    if lanes > _MOST_LANES:
        lanes = math.prod(images.shape[-2:])  # row by row, so that many rows fit the cache
    values = images.reshape(-1, lanes)
    sums, squares = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    # Summed over the first axis, vectorised along a long contiguous one, whose channels are folded at the end.
    rows = min(max(1, _VALUES // max(1, lanes)), _MOST_ROWS)
    for start in range(0, len(values), rows):
        chunk = values[start : start + rows].astype(np.uint32)
        sums += chunk.sum(axis=0, dtype=np.uint32)
        chunk *= chunk
        squares += chunk.sum(axis=0, dtype=np.uint32)
    return sums, squares
