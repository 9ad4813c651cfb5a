"""The rows of the source that a shard holds: a pure function of (seed, split, shard, number of shards)."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

from pipeline.order import hashing
from pipeline.order.hashing import Domain

_KEPT_ROWS = 1 << 22  # 4 Mi: 32 MiB of a permutation are kept from one shard of a worker to the next
_BLOCK = 1 << 20  # rows hashed at a time in larger splits
_BUCKET_BITS = 16
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
    """Returns hashing.permutation(key, num_rows)[start:stop] in the memory of the slice, by two passes of hashing.

    The first counts the hashes by their top bits, so that the second need keep and sort only those of the slice.
    """
    counts = _bucket_counts(key, num_rows)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    first = int(np.searchsorted(bounds, start, side="right")) - 1
    last = int(np.searchsorted(bounds, stop, side="left"))
    kept_rows, kept_hashes = [], []
    for begin in range(0, num_rows, _BLOCK):
        hashes = _hashes(key, begin, min(begin + _BLOCK, num_rows))
        buckets = _buckets(hashes)
        chosen = np.flatnonzero((buckets >= first) & (buckets < last))
        kept_rows.append(chosen + begin)
        kept_hashes.append(hashes[chosen])
    rows, hashes = np.concatenate(kept_rows), np.concatenate(kept_hashes)
    ordered = rows[np.argsort(hashes, kind="stable")]
    return ordered[start - bounds[first] : stop - bounds[first]]


@functools.lru_cache(maxsize=2)
def _bucket_counts(key: int, num_rows: int) -> NDArray[np.int64]:
    counts = np.zeros(1 << _BUCKET_BITS, np.int64)
    for begin in range(0, num_rows, _BLOCK):
        buckets = _buckets(_hashes(key, begin, min(begin + _BLOCK, num_rows)))
        counts += np.bincount(buckets, minlength=len(counts))
    return counts


def _hashes(key: int, start: int, stop: int) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        return hashing.splitmix64(np.uint64(key) + np.arange(start, stop, dtype=np.uint64)).view(np.int64)


def _buckets(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    return (hashes >> (64 - _BUCKET_BITS)) + (1 << (_BUCKET_BITS - 1))
