"""The integer hash that every permutation and every random draw comes from, in NumPy.

`pipeline.hashing_tf` has the same functions for tensors; a test holds that both give the same numbers.
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


class Domain(enum.IntEnum):
    """First argument of every key, so that two uses of one seed never share a stream. Values are part of the order."""

    SHARDS = 1
    WINDOW = 2
    DISTORT = 3
    CONVERT = 4
    SPLIT = 5


def splitmix64(x: ArrayLike) -> U64:
    """Returns the splitmix64 output for states `x`: a bijection of uint64, elementwise, any shape."""
    with np.errstate(over="ignore"):
        z = np.asarray(x, np.uint64) + np.uint64(GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
        return z ^ (z >> np.uint64(31))


def derive_key(domain: Domain, *arguments: ArrayLike) -> U64:
    """Returns the uint64 key of integer arguments (scalars or arrays that broadcast), one hash round an argument."""
    key = splitmix64(np.uint64(domain))
    for argument in arguments:
        key = splitmix64(key ^ np.asarray(argument, np.int64).astype(np.uint64))
    return key


def permutation(key: ArrayLike, n: int) -> NDArray[np.int64]:
    """Returns a permutation of 0..n-1: the stable argsort of splitmix64(key + i) read as signed 64-bit."""
    with np.errstate(over="ignore"):
        hashes = splitmix64(np.asarray(key, np.uint64) + np.arange(n, dtype=np.uint64))
    return np.argsort(hashes.view(np.int64), kind="stable")


def uniform(keys: ArrayLike, draw: int) -> NDArray[np.float32]:
    """Returns draw number `draw` of each key: float32 in [0, 1), the top 24 bits of the hash.

    Args:
      keys: uint64, any shape; one an example, from `derive_key`.
      draw: which of the key's numbers, 0 and up.
    """
    with np.errstate(over="ignore"):
        hashes = splitmix64(np.asarray(keys, np.uint64) + np.uint64(draw))
    return (hashes >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
