"""The integer hash behind every permutation and every random draw, in NumPy.

`pipeline.order.graph_hashing` has keys and draws for tensors. A test checks that both return the same numbers.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

U64 = NDArray[np.uint64]

# Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014); constants of Vigna's splitmix64.c.
GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
_BLOCK = 1 << 14  # 128 KiB of uint64: a block and its scratch stay in a core's cache
SHORT = 1 << 12  # permutation length below which a call for each costs more than the sorting


class Domain(enum.IntEnum):
    """First argument of every key, so that no two uses of a seed share a stream. The values are part of the order."""

    SHARDS = 1
    WINDOW = 2
    AUGMENT = 3
    CONVERT = 4
    SPLIT = 5
    MODEL = 6
    SOURCE = 7
    LIMIT = 8
    BALANCE = 9
    WEIGH = 10
    WEIGH_START = 11


def splitmix64(x: ArrayLike) -> U64:
    """Returns the splitmix64 output for states `x`: a bijection of uint64, elementwise, any shape."""
    states = np.asarray(x, np.uint64)
    hashes = np.array(states, order="C")
    _mix(hashes.reshape(-1))
    return hashes[()]  # a scalar for a scalar


def _mix(states: U64) -> None:
    """Replaces states, uint64 (n,), with their outputs in place, a block at a time."""
    scratch = np.empty(min(len(states), _BLOCK), np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, len(states), _BLOCK):
            z = states[start : start + _BLOCK]
            shifted = scratch[: len(z)]
            z += np.uint64(GAMMA)
            z ^= np.right_shift(z, np.uint64(30), out=shifted)
            z *= np.uint64(MIX_1)
            z ^= np.right_shift(z, np.uint64(27), out=shifted)
            z *= np.uint64(MIX_2)
            z ^= np.right_shift(z, np.uint64(31), out=shifted)


def derive_key(domain: Domain, *arguments: ArrayLike) -> U64:
    """Returns the uint64 key of integer arguments (scalars or arrays that broadcast), one hash round for each."""
    key = splitmix64(np.uint64(domain))
    for argument in arguments:
        key = splitmix64(key ^ np.asarray(argument, np.int64).astype(np.uint64))
    return key


def permutation(key: ArrayLike, n: int) -> NDArray[np.int64]:
    """Returns a permutation of 0..n-1: the argsort of splitmix64(key + i) read as signed 64-bit.

    Distinct states have distinct hashes, so the argsort is unique. It is found by sorting numbers made of the upper
    bits of the hash and the lower bits of i, which takes a third of the time of `np.argsort`. The few hashes with equal
    upper bits are then sorted by all bits.
    """
    numbers = _hashes(key, np.arange(n, dtype=np.uint64))
    low = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    for start in range(0, n, _BLOCK):
        block = numbers[start : start + _BLOCK]
        block &= ~low
        block |= np.arange(start, start + len(block), dtype=np.uint64)
    numbers.view(np.int64).sort()
    ties = _ties(numbers, low)
    numbers &= low
    tied = numbers[ties]
    numbers[ties] = tied[np.argsort(_hashes(key, tied.copy()).view(np.int64))]
    return numbers.view(np.int64)


def short_permutations(keys: U64, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns `permutation` for each key and size, concatenated, sorted as the rows of one matrix.

    Args:
      keys: uint64 (n,).
      sizes: int64 (n,), about equal, `SHORT` at most.
    """
    index = np.arange(sizes.max(initial=0), dtype=np.uint64)
    with np.errstate(over="ignore"):
        numbers = splitmix64(keys[:, None] + index)
    exists = index < sizes[:, None].astype(np.uint64)
    low = np.uint64((1 << max(len(index) - 1, 0).bit_length()) - 1)
    numbers &= ~low
    numbers |= index
    numbers[~exists] = np.iinfo(np.int64).max  # sorted last
    numbers.view(np.int64).sort(axis=1)
    if (((numbers[:, 1:] ^ numbers[:, :-1]) <= low) & exists[:, 1:]).any():  # equal upper bits are rare
        each = [permutation(key, int(size)) for key, size in zip(keys, sizes, strict=True)]
        return np.concatenate([np.zeros(0, np.int64), *each])
    return (numbers & low).view(np.int64)[exists]


def _hashes(key: ArrayLike, index: U64) -> U64:
    """Replaces `index`, uint64 (n,), with splitmix64(key + index) in place, and returns it."""
    with np.errstate(over="ignore"):
        index += np.asarray(key, np.uint64)
    _mix(index)
    return index


def _ties(ordered: U64, low: np.uint64) -> NDArray[np.intp]:
    """Returns the positions, ascending, of numbers that differ from a neighbour only in the bits of `low`."""
    found = [np.zeros(0, np.intp)]
    for start in range(0, len(ordered) - 1, _BLOCK):
        block = ordered[start : start + _BLOCK + 1]
        found.append(start + np.flatnonzero((block[1:] ^ block[:-1]) <= low))
    first = np.concatenate(found)
    return np.union1d(first, first + 1)


def uniform(keys: ArrayLike, draw: int) -> NDArray[np.float32]:
    """Returns draw number `draw` for each key: float32 in [0, 1), the top 24 bits of the hash.

    Args:
      keys: uint64, any shape; one per example, from `derive_key`.
      draw: number of the draw, from 0.
    """
    with np.errstate(over="ignore"):
        hashes = splitmix64(np.asarray(keys, np.uint64) + np.uint64(draw))
    return (hashes >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
