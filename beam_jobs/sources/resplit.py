"""New splits of a source, drawn by a stable hash of each row: a row is in the same split on every run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import Block, Source
from pipeline.commands.text import count_of
from pipeline.errors import UsageError
from pipeline.order.hashing import splitmix64

_BLOCK = 1 << 20  # rows hashed at a time
_MOST_KEPT = 4  # splits whose row numbers a worker keeps
_kept: dict[tuple[object, ...], NDArray[np.int64]] = {}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ResplitSource(Source):
    """The rows of all splits of a source, dealt to other splits.

    Attributes:
      inner: the source.
      bounds: {split: (lowest, highest + 1)} of its draws, which are in 0..2^53 - 1.
    """

    inner: Source
    bounds: dict[str, tuple[int, int]]

    def _rows(self, split: str) -> NDArray[np.int64]:
        return _rows(self.inner, *self.bounds[split])

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the number of rows of a new split in each chunk of the source; None if it has no chunks."""
        inner = [(name, self.inner.chunks(name)) for name in self.inner.splits]
        if all(chunks is None for _, chunks in inner):
            return None
        sizes = [np.ones(self.inner.splits[name], np.int64) if c is None else c for name, c in inner]
        ends = np.cumsum(np.concatenate(sizes))
        return np.diff(np.searchsorted(self._rows(split), ends, side="left"), prepend=0)

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns the rows' hashes."""
        made = np.empty(stop - start, np.uint64)
        for name, chosen, rows in self._by_inner_split(self._rows(split)[start:stop]):
            made[chosen] = [self.inner.hashes(name, row, row + 1)[0] for row in rows]
        return made

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (file, row in it)."""
        name, _, rows = next(self._by_inner_split(self._rows(split)[row : row + 1]))
        return self.inner.where(name, int(rows[0]))

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a new split."""
        parts = self._by_inner_split(self._rows(split)[rows])
        return Block.joined([(chosen, self.inner.read(name, own)) for name, chosen, own in parts])

    def _by_inner_split(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
        """Yields (split of the source, positions in `rows`, rows of that split)."""
        names = list(self.inner.splits)
        for number, chosen, own in base.by_part(list(self.inner.splits.values()), rows):
            yield names[number], chosen, own


def resplit(source: Source, fractions: dict[str, float]) -> Source:
    """Returns the source with new splits, or the source itself if there are no `fractions`.

    Raises:
      UsageError: a split gets no row.
    """
    if not fractions:
        return source
    edges = np.round(np.cumsum([0.0, *fractions.values()]) * (1 << 53)).astype(np.int64).tolist()
    edges[-1] = 1 << 53  # fractions in decimals need not sum to exactly 1
    bounds = dict(zip(fractions, itertools.pairwise(edges), strict=True))
    splits = {split: len(_rows(source, *limits)) for split, limits in bounds.items()}
    for split, rows in splits.items():
        if not rows:
            total = sum(source.splits.values())
            raise UsageError(
                f"--split: {split}:{fractions[split]:g} gets none of {count_of(total, 'row')}; give it more"
            )
    own = ("splits", "parts")
    shared = {field.name: getattr(source, field.name) for field in dataclasses.fields(Source) if field.name not in own}
    return ResplitSource(**shared, splits=splits, inner=source, bounds=bounds)


def _rows(source: Source, low: int, high: int) -> NDArray[np.int64]:
    """Returns the rows, numbered over all splits, whose draws are in low..high - 1. Cached: every shard needs them."""
    key = (source.files, tuple(source.splits.items()), low, high)
    if key not in _kept:
        while len(_kept) >= _MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        found, first = [], 0
        for name, count in source.splits.items():
            for begin in range(0, count, _BLOCK):
                hashes = source.hashes(name, begin, min(begin + _BLOCK, count))
                draws = (splitmix64(hashes) >> np.uint64(11)).astype(np.int64)
                found.append(np.flatnonzero((draws >= low) & (draws < high)) + begin + first)
            first += count
        _kept[key] = np.concatenate(found)
    return _kept[key]
