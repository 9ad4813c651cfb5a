"""The rows of the source that a shard holds: a pure function of (seed, split, shard, number of shards)."""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from pipeline.order import hashing
from pipeline.order.hashing import Domain

_KEPT_ROWS = 1 << 22  # 4 Mi: 32 MiB of a permutation are kept from one shard of a worker to the next
_BLOCK = 1 << 20  # rows hashed at a time in larger splits
_CHUNKS, _WITHIN_SHARD = 1, 2  # keys of the other permutations


def shard_rows(
    seed: int, split: str, num_rows: int, chunks: NDArray[np.int64] | None, shard: int, num_shards: int
) -> NDArray[np.int64]:
    """Returns the source rows of a shard, int64 (n,), in the order they are written in.

    Shard s of S holds positions floor(s N / S) to floor((s + 1) N / S) of a permutation: of the split's rows; or, where
    the source is read in chunks, of its chunks, laid end to end. The rows of such a shard are then permuted.

    Args:
      seed: seed of the permutations.
      split: the split's name, part of their keys.
      num_rows: rows of the split.
      chunks: rows of each unit of random access, int64; None where rows are cheap to read one by one.
      shard, num_shards: the shard's number, and how many there are.
    """
    start, stop = shard * num_rows // num_shards, (shard + 1) * num_rows // num_shards
    if chunks is None:
        if num_rows <= _KEPT_ROWS:
            return _permutation(_key(seed, split), num_rows)[start:stop]
        return _slice_of_permutation(_key(seed, split), num_rows, start, stop)
    rows = _rows_of_chunks(hashing.permutation(_key(seed, split, _CHUNKS), len(chunks)), chunks, start, stop)
    return rows[hashing.permutation(_key(seed, split, _WITHIN_SHARD, shard), len(rows))]


def _key(seed: int, split: str, *more: int) -> int:
    number = np.frombuffer(hashlib.sha256(split.encode()).digest()[:8], "<i8")[0]
    return int(hashing.derive_key(Domain.CONVERT, seed, number, *more))


def _rows_of_chunks(order: NDArray[np.int64], chunks: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    firsts = np.concatenate([[0], np.cumsum(chunks)])
    bounds = np.concatenate([[0], np.cumsum(chunks[order])])
    pieces = [np.zeros(0, np.int64)]
    for position in range(int(np.searchsorted(bounds, start, side="right")) - 1, len(order)):
        if bounds[position] >= stop:
            break
        low, high = max(start, bounds[position]) - bounds[position], min(stop, bounds[position + 1]) - bounds[position]
        pieces.append(np.arange(low, high) + firsts[order[position]])
    return np.concatenate(pieces)


@functools.lru_cache(maxsize=2)  # a worker makes the shards of one split after another
def _permutation(key: int, num_rows: int) -> NDArray[np.int64]:
    return hashing.permutation(key, num_rows)


def _slice_of_permutation(key: int, num_rows: int, start: int, stop: int) -> NDArray[np.int64]:
    """Returns hashing.permutation(key, num_rows)[start:stop] in the memory of the slice.

    Hashes are spread evenly, so those of the slice lie in a range that is known before they are sorted: the chance that
    the number of hashes below any bound is off by more than the margin is 2 exp(-200) (Dvoretzky-Kiefer-Wolfowitz).
    """
    margin = 10 * math.isqrt(num_rows)
    low, high = (
        np.int64(min(max(position * 2**64 // num_rows, 0), 2**64 - 1) - 2**63)
        for position in (start - margin, stop + margin)
    )
    below, kept_rows, kept_hashes = 0, [], []
    for begin in range(0, num_rows, _BLOCK):
        hashes = _hashes(key, begin, min(begin + _BLOCK, num_rows))
        below += int(np.count_nonzero(hashes < low))
        chosen = np.flatnonzero((hashes >= low) & (hashes <= high))
        kept_rows.append(chosen + begin)
        kept_hashes.append(hashes[chosen])
    order = np.argsort(np.concatenate(kept_hashes), kind="stable")
    return np.concatenate(kept_rows)[order[start - below : stop - below]]


def _hashes(key: int, start: int, stop: int) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        return hashing.splitmix64(np.uint64(key) + np.arange(start, stop, dtype=np.uint64)).view(np.int64)
