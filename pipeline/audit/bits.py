"""A set of numbers, a bit each."""

from __future__ import annotations

import numpy as np

from pipeline.audit.contract import I64


class Bits:
    """Numbers 0..size-1, each of which is to be added once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._bytes = np.zeros(-(-size // 8), np.uint8)

    def add(self, numbers: I64) -> int | None:
        """Adds numbers (n,), or returns the index of the first that comes twice or was added before."""
        places, bits = numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8)
        wrong = (self._bytes[places] & bits) != 0
        ascending = np.sort(numbers)
        twice = ascending[1:][ascending[1:] == ascending[:-1]]
        if twice.size:
            wrong |= np.isin(numbers, twice)
        if wrong.any():
            return int(wrong.argmax())
        np.add.at(self._bytes, places, bits)
        return None

    def count(self) -> int:
        """Returns how many numbers were added."""
        return int(np.bitwise_count(self._bytes).sum())

    def first_missing(self) -> int:
        """Returns the first number that was not added; `size` where there is none."""
        places = np.flatnonzero(self._bytes != 255)[:2]
        missing = [
            place * 8 + bit for place in places.tolist() for bit in range(8) if not self._bytes[place] >> bit & 1
        ]
        return min([*missing, self._size])
