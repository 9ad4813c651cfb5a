"""Sums over pixels and labels, in integers, so that a mean over many shards does not depend on their order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs import pixels


@dataclasses.dataclass
class PixelSums:
    """Sums of each channel's values and of their squares.

    Attributes:
      channels: number of channels.
      pixels: number of pixels added.
      sums, squares: one value per channel.
    """

    channels: int
    pixels: int = 0
    sums: list[int] = dataclasses.field(default_factory=list)
    squares: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = self.sums or [0] * self.channels
        self.squares = self.squares or [0] * self.channels

    def add(self, images: NDArray[np.uint8]) -> None:
        """Adds images, uint8 (n, height, width, channels), or one, (height, width, channels)."""
        sums, squares = pixels.sums_of(images, self.channels)
        self.pixels += images.size // self.channels
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, squares, strict=True)]

    def merge(self, other: PixelSums) -> None:
        """Adds other sums, of the same number of channels."""
        self.pixels += other.pixels
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]


def label_histogram(labels: NDArray[np.int64], num_classes: int) -> tuple[int, ...]:
    """Returns the count of each label."""
    return tuple(np.bincount(labels, minlength=num_classes).tolist())


def entropy(histogram: Sequence[int]) -> float | None:
    """Returns the Shannon entropy of a histogram in bits, to 4 decimals; None if it is empty."""
    total = sum(histogram)
    if not total:
        return None
    return round(-sum(n / total * math.log2(n / total) for n in histogram if n) + 0.0, 4)


def moments(parts: Iterable[PixelSums]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns each channel's mean and standard deviation: exact in integers up to the last division.

    With n pixels, sum S and sum of squares Q: mean S / n, standard deviation sqrt(n Q - S^2) / n.
    """
    parts = list(parts)
    pixels = sum(part.pixels for part in parts)
    sums = [sum(channel) for channel in zip(*(part.sums for part in parts), strict=True)]
    squares = [sum(channel) for channel in zip(*(part.squares for part in parts), strict=True)]
    mean = tuple(s / pixels for s in sums)
    std = tuple(math.sqrt(pixels * q - s * s) / pixels for s, q in zip(sums, squares, strict=True))
    return mean, std
