"""What the caches of this process did: how many files were there, how many were fetched."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from pipeline.commands.text import count_of, size_of


class CacheCounts(NamedTuple):
    """What caches did; a file counts once for each window that needed it.

    Attributes:
      hits: copies that were there.
      misses: files that this process fetched.
      uncached: files that were read from the store itself, as there could be no copy.
      fetched_bytes: of the misses.
    """

    hits: int = 0
    misses: int = 0
    uncached: int = 0
    fetched_bytes: int = 0

    def plus(self, other: CacheCounts, sign: int = 1) -> CacheCounts:
        """Returns the sum of both; with `sign` -1 their difference."""
        return CacheCounts(*(mine + sign * theirs for mine, theirs in zip(self, other, strict=True)))

    def __str__(self) -> str:
        """Returns one line for people; nothing where there is no cache."""
        if not any(self):
            return ""
        rest = f", {self.uncached:,} read from the store" if self.uncached else ""
        misses = count_of(self.misses, "miss", "misses")
        return f"cache {count_of(self.hits, 'hit')}, {misses} ({size_of(self.fetched_bytes)} fetched){rest}"


class _Counted:
    """The counts of this process, and their lock."""

    def __init__(self) -> None:
        self.counts = CacheCounts()
        self.unlock()
        os.register_at_fork(after_in_child=self.unlock)

    def unlock(self) -> None:
        self.lock = threading.Lock()


_counted = _Counted()


def cache_counts() -> CacheCounts:
    """Returns what the caches of this process did so far."""
    return _counted.counts


def count(more: CacheCounts) -> None:
    """Adds to the counts."""
    with _counted.lock:
        _counted.counts = _counted.counts.plus(more)
