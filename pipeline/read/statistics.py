"""Statistics of a data set: sums over pixels, counts of labels, the spread of numbers.

Pixels are summed as integers, so that means over many shards do not depend on the order of the shards.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from pipeline.read import _unpack
except ImportError:  # installed without a compiler, or for another kind of processor
    _unpack = None  # type: ignore[assignment]

STATISTICS_SPLIT = "train"  # normalisation must not use test images
_PERIOD = 48  # compiled code adds values up by position modulo this
_MOST_BARS = 20  # most bars in a histogram of numbers
_AT_ONCE = 1 << 20  # numbers in memory at a time, of a column that may be mapped from a file
_VALUES = 3 << 16  # values to widen to uint32 at a time: 192 Ki fit into the cache
_MOST_ROWS = 66_051  # most rows at a time: floor((2^32 - 1) / 255^2), so that sums of squares fit into uint32
_MOST_LANES = 1 << 14  # most values of an image to sum side by side


@dataclasses.dataclass
class PixelSums:
    """Sums of each channel's values and squared values.

    Attributes:
      channels: number of channels.
      pixels: number of pixels added.
      sums, squares: sum of the values, and of their squares, per channel.
    """

    channels: int
    pixels: int = 0
    sums: list[int] = dataclasses.field(default_factory=list)
    squares: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = self.sums or [0] * self.channels
        self.squares = self.squares or [0] * self.channels

    def add(self, images: NDArray[np.uint8]) -> None:
        """Adds images, uint8 (n, height, width, channels), or a single one, (height, width, channels)."""
        self.merge(PixelSums(self.channels, images.size // self.channels, *sums_of(images, self.channels)))

    def merge(self, other: PixelSums) -> None:
        """Adds other sums with the same number of channels."""
        self.pixels += other.pixels
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]


def sums_of(images: NDArray[np.uint8], channels: int) -> tuple[list[int], list[int]]:
    """Returns each channel's sum of values and sum of squares over images, uint8 (..., channels)."""
    if _unpack is not None and _PERIOD % channels == 0:
        found = np.empty((2, _PERIOD), np.int64)
        _unpack.sum(np.ascontiguousarray(images), found)
        sums, squares = found
    else:
        sums, squares = _by_lane(images)
    first, second = ([int(each[n::channels].sum()) for n in range(channels)] for each in (sums, squares))
    return first, second


def _by_lane(images: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the sums of values and of squares at each position of an image or of an image row."""
    lanes = math.prod(images.shape[1:])
    if lanes > _MOST_LANES:
        lanes = math.prod(images.shape[-2:])  # row by row, so that many rows fit into the cache
    values = images.reshape(-1, lanes)
    sums, squares = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    # Sum over the first axis, vectorised along a long contiguous one, whose channels are combined at the end.
    rows = min(max(1, _VALUES // max(1, lanes)), _MOST_ROWS)
    for start in range(0, len(values), rows):
        chunk = values[start : start + rows].astype(np.uint32)
        sums += chunk.sum(axis=0, dtype=np.uint32)
        chunk *= chunk
        squares += chunk.sum(axis=0, dtype=np.uint32)
    return sums, squares


def label_histogram(labels: NDArray[Any], num_classes: int) -> tuple[int, ...]:
    """Returns the count of each label except -1, or of nonzero values for vectors (n, classes); () for floats."""
    if labels.ndim > 1:
        return tuple(np.count_nonzero(labels, axis=0).tolist()) if num_classes else ()
    if labels.dtype != np.int64:
        return ()
    return tuple(np.bincount(labels[labels >= 0], minlength=num_classes).tolist())


def entropy(histogram: Sequence[int]) -> float | None:
    """Returns the Shannon entropy of a histogram in bits, to 4 decimals; None if it is empty."""
    total = sum(histogram)
    if not total:
        return None
    return round(-sum(n / total * math.log2(n / total) for n in histogram if n) + 0.0, 4)


def moments(parts: Iterable[PixelSums]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns each channel's mean and standard deviation, exact in integers up to the final division.

    With n pixels, sum S and sum of squares Q: mean S / n, standard deviation sqrt(n Q - S^2) / n.
    """
    parts = list(parts)
    pixels = sum(part.pixels for part in parts)
    sums = [sum(channel) for channel in zip(*(part.sums for part in parts), strict=True)]
    squares = [sum(channel) for channel in zip(*(part.squares for part in parts), strict=True)]
    mean = tuple(s / pixels for s in sums)
    std = tuple(math.sqrt(pixels * q - s * s) / pixels for s, q in zip(sums, squares, strict=True))
    return mean, std


@dataclasses.dataclass(frozen=True)
class Spread:
    """Spread of some records' numbers.

    Attributes:
      count: number of records that have a number.
      zeros: number of records whose number is 0.
      missing: number of records without a number (NaN) or with an infinite one.
      total: sum of the numbers.
      least, most: bounds of the numbers; 0 without any.
      mean, std: mean and standard deviation of the numbers; 0 without any.
    """

    count: int
    zeros: int
    missing: int
    total: float
    least: float
    most: float
    mean: float
    std: float


def spread(values: NDArray[Any]) -> Spread:
    """Returns the spread of numbers, (n,). They may be mapped from a file: only a block of them is in memory."""
    count, zeros, least, most, total, squares = 0, 0, math.inf, -math.inf, 0.0, 0.0
    for block in _finite_blocks(values):
        count, zeros = count + len(block), zeros + int((block == 0).sum())
        least, most = min(least, float(block.min())), max(most, float(block.max()))
        total += float(block.sum())
    if not count:
        return Spread(0, 0, len(values), 0.0, 0.0, 0.0, 0.0, 0.0)
    mean = total / count
    for block in _finite_blocks(values):  # in a second pass, because n Q - S^2 cancels if the mean is large
        squares += float(np.square(block - mean).sum())
    return Spread(count, zeros, len(values) - count, total, least, most, mean, math.sqrt(squares / count))


def number_bars(splits: Mapping[str, NDArray[Any]]) -> list[tuple[str, dict[str, int]]]:
    """Returns a histogram of the splits' numbers, (n,), as (value or range as text, {split: count}) pairs, ascending.

    Up to 20 different values are counted one by one; more are counted in 20 ranges of equal width.
    """
    distinct = np.zeros(0)
    for values in splits.values():
        for block in _finite_blocks(values):
            distinct = np.union1d(distinct, block)
            if len(distinct) > _MOST_BARS:  # only the bounds matter then
                distinct = np.concatenate([distinct[:_MOST_BARS], distinct[-1:]])
    if not len(distinct):
        return []
    if len(distinct) <= _MOST_BARS:
        names = [f"{value:,.6g}" for value in distinct]
        edges = np.append(distinct, np.inf)
    else:
        edges = np.linspace(distinct[0], distinct[-1], _MOST_BARS + 1)
        names = [f"{low:,.6g} to {high:,.6g}" for low, high in itertools.pairwise(edges)]
    counts = {split: np.zeros(len(names), np.int64) for split in splits}
    for split, values in splits.items():
        for block in _finite_blocks(values):
            counts[split] += np.histogram(block, edges)[0]
    return [(name, {split: int(counts[split][i]) for split in splits}) for i, name in enumerate(names)]


def _finite_blocks(values: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    for start in range(0, len(values), _AT_ONCE):
        block = values[start : start + _AT_ONCE].astype(np.float64)
        block = block[np.isfinite(block)]
        if len(block):
            yield block
