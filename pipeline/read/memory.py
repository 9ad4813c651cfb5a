"""Memory: the process's limit and use, and reusable buffers for windows."""

from __future__ import annotations

import os
import pathlib
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # cgroups v2 and v1

_STATUS = "/proc/self/status"  # Linux
U8 = NDArray[np.uint8]
_ALIGNED = 64  # bytes; TensorFlow shares NumPy memory that begins at a multiple of this
_SLACK = 8  # a buffer is 1/8 larger than its first window needs
_IN_USE = 2  # windows in use: one is consumed while the next one is read
_WAITS, _WAIT_SECONDS = 5, 0.004  # waits for unfinished batches to release the previous window


class Used(NamedTuple):
    """Current and peak memory of this process in bytes; 0 if unknown."""

    resident: int
    peak: int


def available() -> int:
    """Returns the bytes of memory of this machine, or of this container's limit if that is lower."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        try:
            limits.append(int(pathlib.Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such cgroup, or `max`
            continue
    return min(limits)


def used() -> Used:
    """Returns the resident memory of this process, including mapped files."""
    try:
        lines = pathlib.Path(_STATUS).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Used(0, peak if sys.platform == "darwin" else peak << 10)
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    resident, peak = (int(sizes[name].split()[0]) << 10 if name in sizes else 0 for name in ("VmRSS", "VmHWM"))
    return Used(resident, peak)


class Buffers:
    """Provides matrices and reuses their memory once nothing refers to them, because new pages cost as much as reading.

    Args:
      release_unused: function that makes TensorFlow release matrices that it no longer uses.
    """

    def __init__(self, release_unused: Callable[[], None]) -> None:
        self._release_unused = release_unused
        self._free: list[U8] = []
        self._in_use = 0
        self._lock = threading.Lock()

    def matrix(self, rows: int, columns: int) -> U8:
        """Returns a matrix with any content, uint8 (rows, columns), that TensorFlow can share without a copy."""
        memory = self._memory(rows * columns + _ALIGNED)
        matrix = _aligned(memory, rows, columns)
        weakref.finalize(matrix, self._take_back, memory).atexit = False
        return matrix

    def _memory(self, size: int) -> U8:
        # TensorFlow releases a window shortly after its last batch. Waiting for that is cheaper than new memory, but is
        # bounded because the user may keep batches that share the window's memory.
        for _ in range(_WAITS):
            with self._lock:
                if self._free or self._in_use < _IN_USE:
                    break
            self._release_unused()
            time.sleep(_WAIT_SECONDS)
        with self._lock:
            self._in_use += 1
            memory = self._free.pop() if self._free else None
        # Windows of records of different lengths differ in size. Pages that are never written take no memory.
        return memory if memory is not None and len(memory) >= size else np.empty(size + size // _SLACK, np.uint8)

    def _take_back(self, memory: U8) -> None:
        with self._lock:
            self._in_use -= 1
            if not self._free:  # one spare window: while one is consumed, the next is read into it
                self._free.append(memory)


def aligned_matrix(rows: int, columns: int) -> U8:
    """Returns a new matrix with any content, uint8 (rows, columns), that TensorFlow can share without a copy."""
    return _aligned(np.empty(rows * columns + _ALIGNED, np.uint8), rows, columns)


def _aligned(memory: U8, rows: int, columns: int) -> U8:
    first = -memory.ctypes.data % _ALIGNED
    return memory[first : first + rows * columns].reshape(rows, columns)
