"""New splits: a source's rows dealt by stable hashes, one by one or in groups, as `--split` and `--folds` ask.

What is dealt is a unit: a row, or with `--group_by` all rows of one group. Without strata a unit's split follows from
its hash alone. With `--stratify` the units of a stratum are dealt in the order in which they first appear, block after
block, each in an order drawn from a hash: a block fills every split's share exactly. Neither depends on what comes
later, so rows added at the end change no other row's split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources.base import LABEL, DealtSource, Source
from beam_jobs.sources.transformed import TransformedSource
from pipeline.commands.text import count_of, range_of, some_of, table
from pipeline.errors import UsageError
from pipeline.order import hashing
from pipeline.order.hashing import Domain, splitmix64

_BLOCK = 1 << 20  # rows hashed at a time
_UNITS_AT_ONCE = 1 << 16  # units of strata, each with the hashes of its block
_LONGEST_BLOCK = 100  # units of a stratum in which every split gets its share
_WHOLE = 1e-6  # how near to a whole number of units the shares of a block must be
_PARTS = 1_000_000  # parts into which fractional shares of a block are rounded
_MOST_KEPT = 4  # splits whose row numbers a worker keeps
_FAR = 0.2  # relative difference from the requested share beyond which there is a warning
_MOST_NAMED = 3  # classes in one line
_MOST_CLASSES = 40  # in a table
_kept: dict[tuple[object, ...], NDArray[np.int64]] = {}


@dataclasses.dataclass(frozen=True)
class Dealing:
    """How rows are dealt.

    Attributes:
      fractions: (split, fraction of the rows) pairs.
      seed: seed of groups and strata; rows that are dealt one by one, without strata, do not depend on it.
      group_by: column of groups, as `Source.texts` takes it; empty for rows one by one.
      stratify: column of strata; empty for none.
    """

    fractions: tuple[tuple[str, float], ...]
    seed: int = 0
    group_by: str = ""
    stratify: str = ""

    @property
    def ends(self) -> NDArray[np.float64]:
        """The sum of the fractions up to and including each split."""
        return np.cumsum([fraction for _, fraction in self.fractions])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ResplitSource(DealtSource):
    """A source whose rows are in new splits.

    Attributes:
      dealing: how its rows are dealt.
    """

    dealing: Dealing

    def _rows(self, split: str) -> NDArray[np.int64]:
        return _rows(self.inner, self.dealing, split)


def resplit(
    source: Source,
    fractions: dict[str, float],
    seed: int = 0,
    group_by: str = "",
    stratify: str = "",
    may_be_empty: bool = False,
    flag: str = "--split",
) -> Source:
    """Returns the source with new splits, or the source itself if there are no `fractions`.

    Args:
      source: source of the rows.
      fractions: {split: fraction of the rows}.
      seed, group_by, stratify: see `Dealing`.
      may_be_empty: whether to leave out a split that gets no row, as when appending a few rows to a data set.
      flag: flag that gave the fractions, for errors.

    Raises:
      UsageError: a split gets no row, or strata are labels that are not classes.
      DataError: a row has no group.
    """
    if not fractions:
        return source
    if stratify == LABEL and not source.label.is_class:
        raise UsageError(f"--stratify={LABEL}: needs one class per row; the labels are {source.label}")
    dealing = Dealing(tuple(fractions.items()), seed, group_by, stratify)
    splits = {split: len(_rows(source, dealing, split)) for split in fractions}
    if may_be_empty:
        splits = {split: rows for split, rows in splits.items() if rows}
    for split, rows in splits.items():
        if not rows:
            total = count_of(sum(source.splits.values()), "row")
            advice = "give it more" if flag == "--split" else "give fewer"
            if group_by:
                total += f", which are of {count_of(len(source.texts(group_by).values), 'group')}"
                advice += ", or another --seed"
            raise UsageError(f"{flag}: {split}:{fractions[split]:g} gets none of {total}; {advice}")
    return ResplitSource.of(source, splits, dealing=dealing)


def _rows(source: Source, dealing: Dealing, split: str) -> NDArray[np.int64]:
    """Returns a split's rows, numbered across all splits of the source. Cached: all shards need them."""
    key = (source.files, tuple(source.splits.items()), dealing, split)
    if key not in _kept:
        number = [name for name, _ in dealing.fractions].index(split)
        found = [np.flatnonzero(block == number) + first for first, block in _splits_of_rows(source, dealing)]
        while len(_kept) >= _MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = np.concatenate(found)
    return _kept[key]


def _splits_of_rows(source: Source, dealing: Dealing) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yields (first row, number of the split of each row) of blocks of rows, numbered across all splits."""
    if dealing.stratify:
        yield 0, _by_strata(source, dealing)
        return
    edges = np.round(dealing.ends[:-1] * (1 << 53)).astype(np.int64)  # decimal fractions need not sum to exactly 1
    for first, units in _units(source, dealing):
        draws = (splitmix64(units) >> np.uint64(11)).astype(np.int64)
        yield first, np.searchsorted(edges, draws, side="right")


def _units(source: Source, dealing: Dealing) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yields (first row, hash of the unit of each row, uint64) of blocks of rows, numbered across all splits."""
    if dealing.group_by:
        found = source.texts(dealing.group_by, f"--group_by={dealing.group_by}")
        yield 0, hashing.derive_key(Domain.SPLIT, dealing.seed, found.hashes)[found.codes]
        return
    first = 0
    for name, count in source.splits.items():
        for begin in range(0, count, _BLOCK):
            yield begin + first, source.hashes(name, begin, min(begin + _BLOCK, count))
        first += count


def _by_strata(source: Source, dealing: Dealing) -> NDArray[np.int64]:
    """Returns the number of the split of each row, so that every stratum has its share in each split.

    A unit belongs to the stratum of its first row. Each of the source's own splits is dealt separately, so that a
    longer one changes nothing in the next.
    """
    strata = source.texts(dealing.stratify)
    of_rows = np.concatenate([units for _, units in _units(source, dealing)])
    _, firsts, unit_of_row = np.unique(of_rows, return_index=True, return_inverse=True)
    part = np.searchsorted(np.cumsum([*source.splits.values()]), firsts, side="right")
    stratum = strata.codes[firsts]
    order = np.lexsort((firsts, stratum, part))
    begins = np.flatnonzero(np.diff(part[order] * (len(strata.values) + 1) + stratum[order], prepend=-1))
    places = np.empty(len(firsts), np.int64)  # each unit's place in its stratum
    places[order] = np.arange(len(order)) - np.repeat(begins, np.diff([*begins, len(order)]))
    keys = hashing.derive_key(Domain.SPLIT, dealing.seed, strata.hashes[stratum], part)
    numbers = np.empty(len(firsts), np.int64)
    for start in range(0, len(numbers), _UNITS_AT_ONCE):
        some = slice(start, start + _UNITS_AT_ONCE)
        numbers[some] = _in_blocks(keys[some], places[some], dealing.ends)
    return numbers[unit_of_row]


def _in_blocks(keys: NDArray[np.uint64], places: NDArray[np.int64], ends: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the number of the split of each unit, from its stratum's key, its place there and `Dealing.ends`."""
    sizes = range(1, _LONGEST_BLOCK + 1)
    size = next((n for n in sizes if np.abs(ends * n - np.round(ends * n)).max() < _WHOLE), _LONGEST_BLOCK)
    block, slot = np.divmod(places, size)
    of_block = hashing.derive_key(Domain.SPLIT, keys.view(np.int64), block)
    with np.errstate(over="ignore"):
        hashes = splitmix64(of_block[:, None] + np.arange(size, dtype=np.uint64))
    rank = (hashes < hashes[np.arange(len(slot)), slot][:, None]).sum(axis=1)
    # At the end of each block, splits have their exact shares; fractional ones are rounded over all blocks so far.
    parts = np.round(ends[:-1] * _PARTS).astype(np.int64)
    bounds = (block[:, None] + 1) * size * parts // _PARTS - block[:, None] * size * parts // _PARTS
    if np.abs(ends * size - np.round(ends * size)).max() < _WHOLE:
        bounds = np.broadcast_to(np.round(ends[:-1] * size).astype(np.int64), bounds.shape)
    return (rank[:, None] >= bounds).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Shares:
    """The result of dealing by groups or strata.

    Attributes:
      dealing: how rows were dealt.
      rows: {split: number of rows}.
      strata: values of the column of strata or, without one, the classes; empty if rows have several, or none.
      counts: {split: rows of each of `strata`, int64}.
      groups: {split: number of groups}; empty without groups.
      largest: (value, rows) of the largest group.
    """

    dealing: Dealing
    rows: dict[str, int]
    strata: tuple[str, ...]
    counts: dict[str, NDArray[np.int64]]
    groups: dict[str, int]
    largest: tuple[str, int]

    @property
    def total(self) -> int:
        """Number of rows in all splits."""
        return sum(self.rows.values())

    def lines(self, has_table: bool = False) -> list[str]:
        """Returns lines about the shares of each split, and warnings.

        Args:
          has_table: whether to add a table of the rows of each class in each split.
        """
        by = " and ".join(filter(None, (self.dealing.group_by, self.dealing.stratify)))
        found = [f"new splits by {by}:"]
        totals = np.sum([*self.counts.values()], axis=0)
        for split, fraction in self.dealing.fractions:
            rows = self.rows[split]
            line = f"  {split}: {count_of(rows, 'row')}, {rows / self.total:.1%} (asked for {fraction:.1%})"
            if self.groups:
                line += f", {count_of(self.groups[split], 'group')}"
            if len(self.strata) > 1:
                line += f"; {range_of((100 * self.counts[split] / totals).tolist(), 1)}% of each {self._what}"
            found.append(line)
        return [*found, *(self._table() if has_table else ()), *self._warnings()]

    @property
    def _what(self) -> str:
        column = self.dealing.stratify
        return "class" if column in ("", LABEL) else column

    def _table(self) -> list[str]:
        order = np.argsort(-np.sum([*self.counts.values()], axis=0), kind="stable").tolist() if self.strata else []
        rows = [
            [(self._what, self.strata[i] or "-"), *((split, f"{n[i]:,}") for split, n in self.counts.items())]
            for i in order[:_MOST_CLASSES]
        ]
        more = [f"and {len(order) - _MOST_CLASSES:,} smaller ones"] if len(order) > _MOST_CLASSES else []
        return ["", *table(rows), *more, ""] if rows else []

    def _warnings(self) -> Iterator[str]:
        for split, fraction in self.dealing.fractions:
            share = self.rows[split] / self.total
            if self.groups and abs(share - fraction) > _FAR * fraction:
                text, rows = self.largest
                why = f"the largest of {count_of(sum(self.groups.values()), 'group')}, {text!r}, alone has"
                why += f" {rows / self.total:.1%} ({count_of(rows, 'row')}); another --seed deals them otherwise"
                yield f"warning: {split} has {share:.1%} of the rows, not {fraction:.1%}: {why}"
            counts = self.counts.get(split, np.ones(len(self.strata)))
            missing = [name for name, count in zip(self.strata, counts, strict=True) if name and not count]
            if missing:
                yield f"warning: {split} has no row of {self._what} {some_of(missing, _MOST_NAMED)}"


def shares_of(source: Source) -> Shares | None:
    """Returns the shares that dealing by groups or strata produced; None if there was none."""
    if isinstance(source, TransformedSource):
        source = source.inner
    if not isinstance(source, ResplitSource) or not (source.dealing.group_by or source.dealing.stratify):
        return None
    dealing, inner = source.dealing, source.inner
    rows = {split: _rows(inner, dealing, split) for split in source.splits}
    column = dealing.stratify or (LABEL if inner.label.is_class and inner.class_names else "")
    strata, counts = tuple[str, ...](), dict[str, NDArray[np.int64]]()
    if column:
        found = inner.texts(column)
        strata = found.values
        counts = {split: np.bincount(found.codes[own], minlength=len(strata)) for split, own in rows.items()}
        there = np.flatnonzero(np.sum([*counts.values()], axis=0))  # others are in splits that are left out
        strata = tuple(strata[i] for i in there)
        counts = {split: of_split[there] for split, of_split in counts.items()}
    groups, largest = dict[str, int](), ("", 0)
    if dealing.group_by:
        found = inner.texts(dealing.group_by)
        # Values that look alike have one hash: they are one group.
        _, firsts, group = np.unique(found.hashes, return_index=True, return_inverse=True)
        of_rows = group[found.codes]
        groups = {split: len(np.unique(of_rows[own])) for split, own in rows.items()}
        sizes = np.bincount(of_rows)
        largest = found.values[int(firsts[sizes.argmax()])], int(sizes.max())
    of_splits = {split: len(own) for split, own in rows.items()}
    return Shares(dealing, of_splits, strata, counts, groups, largest)
