"""New splits of a source, drawn by a stable hash of each row: the same row is in the same split on every run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources.base import Block, Source
from pipeline.errors import UsageError
from pipeline.manifest import Feature, SourceFile
from pipeline.order.hashing import splitmix64

_BLOCK = 1 << 20  # rows hashed at a time
_MOST_KEPT = 4  # splits whose rows a worker keeps
_kept: dict[tuple[object, ...], NDArray[np.int64]] = {}


@dataclasses.dataclass(frozen=True)
class ResplitSource:
    """A source whose rows, of all its splits together, are dealt to other splits.

    Attributes:
      inner: the source.
      bounds: (split, lowest, highest + 1) of the hashes, 0..2^53, of each split.
    """

    inner: Source
    bounds: tuple[tuple[str, int, int], ...]

    @property
    def dataset(self) -> str:
        """As the source's."""
        return self.inner.dataset

    @property
    def class_names(self) -> tuple[str, ...]:
        """As the source's."""
        return self.inner.class_names

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """As the source's."""
        return self.inner.image_shape

    @property
    def features(self) -> dict[str, Feature]:
        """As the source's."""
        return self.inner.features

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """As the source's."""
        return self.inner.files

    @property
    def unique_keys(self) -> bool:
        """As the source's."""
        return self.inner.unique_keys

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each new split."""
        return {split: len(_rows(self, split)) for split, _, _ in self.bounds}

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the rows that each of the source's chunks has of a new split, or None; see `base.Source`."""
        inner = [(name, self.inner.chunks(name)) for name in self.inner.splits]
        if all(chunks is None for _, chunks in inner):
            return None
        sizes = [np.ones(self.inner.splits[name], np.int64) if c is None else c for name, c in inner]
        ends = np.cumsum(np.concatenate(sizes))
        return np.diff(np.searchsorted(_rows(self, split), ends, side="left"), prepend=0)

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns the rows' hashes; see `base.Source`."""
        made = np.empty(stop - start, np.uint64)
        for name, chosen, rows in self._by_inner_split(_rows(self, split)[start:stop]):
            made[chosen] = [self.inner.hashes(name, row, row + 1)[0] for row in rows]
        return made

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (file, row in it); see `base.Source`."""
        name, _, rows = next(self._by_inner_split(_rows(self, split)[row : row + 1]))
        return self.inner.where(name, int(rows[0]))

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a new split; see `base.Source`."""
        parts = [
            (chosen, self.inner.read(name, own)) for name, chosen, own in self._by_inner_split(_rows(self, split)[rows])
        ]
        return parts[0][1] if len(parts) == 1 else _joined(parts, len(rows))

    def _by_inner_split(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
        """Yields (split of the source, places in `rows`, rows of that split)."""
        first = 0
        for name, count in self.inner.splits.items():
            chosen = np.flatnonzero((rows >= first) & (rows < first + count))
            if len(chosen):
                yield name, chosen, rows[chosen] - first
            first += count


def resplit(source: Source, fractions: dict[str, float]) -> Source:
    """Returns the source with new splits, or itself where there are no `fractions`.

    Raises:
      UsageError: a split gets no row.
    """
    if not fractions:
        return source
    edges = np.round(np.cumsum([0.0, *fractions.values()]) * (1 << 53)).astype(np.int64).tolist()
    edges[-1] = 1 << 53
    made = ResplitSource(source, tuple(zip(fractions, edges[:-1], edges[1:], strict=True)))
    for split, rows in made.splits.items():
        if not rows:
            total = sum(source.splits.values())
            raise UsageError(f"--split: {split}:{fractions[split]:g} gets none of the {total} rows; give it more")
    return made


def _rows(source: ResplitSource, split: str) -> NDArray[np.int64]:
    """Returns the rows of a new split, counted over all splits of the inner source; kept, as every shard needs them."""
    key = (source.files, tuple(source.inner.splits.items()), source.bounds, split)
    if key not in _kept:
        while len(_kept) >= _MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = _find_rows(source, split)
    return _kept[key]


def _find_rows(source: ResplitSource, split: str) -> NDArray[np.int64]:
    low, high = next((low, high) for name, low, high in source.bounds if name == split)
    found, first = [], 0
    for name, count in source.inner.splits.items():
        for begin in range(0, count, _BLOCK):
            hashes = source.inner.hashes(name, begin, min(begin + _BLOCK, count))
            draws = (splitmix64(hashes) >> np.uint64(11)).astype(np.int64)
            found.append(np.flatnonzero((draws >= low) & (draws < high)) + begin + first)
        first += count
    return np.concatenate(found)


def _joined(parts: list[tuple[NDArray[np.int64], Block]], count: int) -> Block:
    """Returns one block of several, each of whose rows goes to its place."""
    labels = np.empty(count, np.int64)
    keys: list[bytes] = [b""] * count
    bad: dict[int, str] = {}
    images: list[Any] = [None] * count
    extra: dict[str, list[Any]] = {name: [None] * count for name in parts[0][1].extra}
    for chosen, block in parts:
        labels[chosen] = block.labels
        bad |= {int(chosen[row]): reason for row, reason in block.bad.items()}
        for row, place in enumerate(chosen.tolist()):
            keys[place], images[place] = bytes(block.keys[row]), block.images[row]
            for name, values in block.extra.items():
                extra[name][place] = values[row]
    stacked: Any = images if isinstance(parts[0][1].images, list) else np.stack(images)
    return Block(stacked, labels, keys, dict(extra), bad)
