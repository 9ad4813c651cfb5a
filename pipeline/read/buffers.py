"""Reuses the memory of windows that TensorFlow has released: new pages cost as much as reading into them."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
_ALIGNED = 64  # bytes: TensorFlow shares NumPy's memory if it begins at a multiple of this
_IN_USE = 2  # windows: one is consumed while the next is read
_WAITS, _WAIT_SECONDS = 5, 0.004  # until unfinished batches release the previous window


class Buffers:
    """Provides matrices, and reuses their memory once nothing refers to them."""

    def __init__(self, release_unused: Callable[[], None]) -> None:
        """Starts without memory; `release_unused` is called to have unused matrices released."""
        self._release_unused = release_unused
        self._free: list[U8] = []
        self._in_use = 0
        self._lock = threading.Lock()

    def matrix(self, rows: int, columns: int) -> U8:
        """Returns a matrix of any content, uint8 (rows, columns), that TensorFlow can share without a copy."""
        memory = self._memory(rows * columns + _ALIGNED)
        matrix = _aligned(memory, rows, columns)
        weakref.finalize(matrix, self._take_back, memory).atexit = False
        return matrix

    def _memory(self, size: int) -> U8:
        for _ in range(_WAITS):
            with self._lock:
                if self._free or self._in_use < _IN_USE:
                    break
            self._release_unused()
            time.sleep(_WAIT_SECONDS)
        with self._lock:
            self._in_use += 1
            memory = self._free.pop() if self._free else None
        return memory if memory is not None and len(memory) >= size else np.empty(size, np.uint8)

    def _take_back(self, memory: U8) -> None:
        with self._lock:
            self._in_use -= 1
            if not self._free:
                self._free.append(memory)


def aligned_matrix(rows: int, columns: int) -> U8:
    """Returns a new matrix of any content, uint8 (rows, columns), that TensorFlow can share without a copy."""
    return _aligned(np.empty(rows * columns + _ALIGNED, np.uint8), rows, columns)


def _aligned(memory: U8, rows: int, columns: int) -> U8:
    first = -memory.ctypes.data % _ALIGNED
    return memory[first : first + rows * columns].reshape(rows, columns)
