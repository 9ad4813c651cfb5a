"""Records that hold nearly equal images, found by a perceptual hash of 64 bits (pHash, by the package imagehash).

Two images are near if at most 3 bits of their hashes differ. Such hashes have at least one of four quarters in common,
so images are compared only with those that share a quarter. An image costs 20 bytes.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from beam_jobs.validation.twins import MOST_PAIRS, Packed, Twin, of_records

MOST_BITS = 3  # bits that may differ: all 157 pairs in the 60,000 images of CIFAR-10 showed one picture
_QUARTERS, _QUARTER_BITS = 4, 16
BUCKET = 512  # after the buckets of keys and images; only one, as a hash has several quarters
_MOST_BEHIND = 1000  # images compared with one whose quarter they share: with drawings, thousands do
_MOST_FOUND = 1 << 20  # pairs kept in memory
_HASHED = np.dtype([("near", "<u8"), ("exact", "<u8"), ("record", "<u4")])


class NearHashes(Packed):
    """Perceptual hashes of the images of a shard: (that hash, a hash of the pixels, record number), 20 bytes each."""


class Perceived:
    """Collects the perceptual hashes of a shard's images."""

    def __init__(self, shard: int) -> None:
        """Begins with the shard of this number."""
        import imagehash  # noqa: PLC0415 (an optional package, which takes 0.5 s)

        self._hash = imagehash.phash
        self._shard = shard
        self._near, self._exact, self._records = array("Q"), array("Q"), array("I")

    def add(self, pixels: NDArray[np.uint8], exact: bytes, record: int) -> None:
        """Adds an image.

        Args:
          pixels: uint8 (height, width, channels).
          exact: hash of the pixels.
          record: number of the record in the shard.
        """
        shown = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
        bits = self._hash(PIL.Image.fromarray(shown)).hash
        self._near.append(int.from_bytes(np.packbits(bits).tobytes()))
        self._exact.append(int.from_bytes(exact[:8]))
        self._records.append(record)

    def groups(self) -> Iterator[tuple[int, NearHashes]]:
        """Yields (bucket, hashes) of the images added so far."""
        packed = np.empty(len(self._records), _HASHED)
        packed["near"], packed["exact"], packed["record"] = self._near, self._exact, self._records
        if len(packed):
            yield BUCKET, NearHashes(self._shard, packed.tobytes())


@dataclasses.dataclass(frozen=True)
class NearTwins:
    """Nearly equal images that are not equal.

    Attributes:
      counts: {(split number, the same or a later one): pairs}.
      pairs: the nearest pairs, `MOST_PAIRS` in different splits and as many in one split.
      is_cut: whether there may be more pairs than `counts` says.
    """

    counts: dict[tuple[int, int], int]
    pairs: tuple[Twin, ...]
    is_cut: bool


def near_twins(groups: Iterable[NearHashes], split_of_shard: NDArray[np.int64]) -> NearTwins:
    """Returns the nearly equal images of a data set. The order of `groups` does not matter.

    Args:
      groups: hashes of all shards.
      split_of_shard: number of the split of each shard, int64 (shards,).
    """
    packed, shard = of_records(groups, _HASHED)
    first, second, is_cut = _near_pairs(packed["near"])
    differ = packed["exact"][first] != packed["exact"][second]
    first, second = first[differ], second[differ]
    bits = np.bitwise_count(packed["near"][first] ^ packed["near"][second])
    splits = np.stack([split_of_shard[shard[first]], split_of_shard[shard[second]]], axis=1)
    counts = Counter(map(tuple, splits.tolist()))
    is_leak, pairs = splits[:, 0] != splits[:, 1], []
    for kind in (is_leak, ~is_leak):
        chosen = np.flatnonzero(kind)
        for i in chosen[np.argsort(bits[chosen], kind="stable")][:MOST_PAIRS].tolist():
            one, other = ((int(shard[at]), int(packed["record"][at])) for at in (first[i], second[i]))
            pairs.append(Twin(one, other, bool(is_leak[i]), differ=False))
    return NearTwins({(int(a), int(b)): n for (a, b), n in sorted(counts.items())}, tuple(pairs), is_cut)


def _near_pairs(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """Returns (positions of the first, of the second image of each pair, ascending; whether some may be missing)."""
    parts, is_cut = [np.zeros(0, np.int64)], False
    for quarter in range(_QUARTERS):
        shared = (hashes >> np.uint64(_QUARTER_BITS * quarter)) & np.uint64((1 << _QUARTER_BITS) - 1)
        order = np.lexsort((hashes, shared))
        shared = shared[order]
        places, step = np.arange(len(order)), 1
        while True:
            places = places[: np.searchsorted(places, len(order) - step)]
            places = places[shared[places + step] == shared[places]]  # those that differ here differ further on, too
            if not len(places):
                break
            if step > _MOST_BEHIND or sum(map(len, parts)) > _MOST_FOUND:
                is_cut = True
                break
            one, other = order[places], order[places + step]
            is_near = np.bitwise_count(hashes[one] ^ hashes[other]) <= MOST_BITS
            low, high = np.minimum(one, other)[is_near], np.maximum(one, other)[is_near]
            parts.append(low * len(hashes) + high)
            step += 1
    found = np.unique(np.concatenate(parts))  # a pair may share several quarters
    return found // max(1, len(hashes)), found % max(1, len(hashes)), is_cut
