"""Records that hold equal images, found by hashes of the decoded pixels, which are grouped in buckets as keys are.

An image costs 24 bytes: a hash of 16, the record's number and a code of its label. No image is read a second time.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.manifest import SplitInfo

MOST_PAIRS = 100  # listed, of each kind
_FIRST_BUCKET = 256  # after those of keys
_BUCKETS = 64  # buckets, by the upper bits of the hash's first byte
_HASH_BYTES = 16  # any two of 60 million images share a hash with probability 5e-24
_HASHED = np.dtype([("hash", f"V{_HASH_BYTES}"), ("record", "<u4"), ("label", "<u4")])
NO_LABEL_CODE = 0


def label_code(label: object) -> int:
    """Returns a number, 1 to 2^32 - 1, that tells labels apart: classes, numbers or vectors."""
    if isinstance(label, int):
        return label % (2**32 - 1) + 1
    return crc32c.crc32c(np.asarray(label, np.float64).tobytes()) % (2**32 - 1) + 1


@dataclasses.dataclass(frozen=True)
class Packed:
    """Facts about records of a shard.

    Attributes:
      shard: number of the shard in the data set.
      packed: bytes of an array with one element per record.
    """

    shard: int
    packed: bytes


class ImageHashes(Packed):
    """Hashes of some images of a shard: (hash, record number, label code) of each, 24 bytes."""


def of_another(hashes: ImageHashes, shard: int) -> ImageHashes:
    """Returns hashes of another data set's images under the number of their shard, and without labels.

    Its classes may have other numbers.
    """
    packed = np.frombuffer(hashes.packed, _HASHED).copy()
    packed["label"] = NO_LABEL_CODE
    return ImageHashes(shard, packed.tobytes())


class Hashed:
    """Collects the hashes of a shard's images."""

    def __init__(self, shard: int) -> None:
        """Begins with the shard of this number."""
        self._shard = shard
        self._hashes = bytearray()
        self._records, self._labels = array("I"), array("I")

    def add(self, pixels: NDArray[np.uint8], record: int, label: int) -> bytes:
        """Adds an image, and returns its hash.

        Args:
          pixels: uint8 (height, width, channels).
          record: number of the record in the shard.
          label: `label_code` of its label; `NO_LABEL_CODE` if it has none.
        """
        shape = ",".join(map(str, pixels.shape)).encode()[:16]
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=_HASH_BYTES, person=shape)
        self._hashes += digest.digest()
        self._records.append(record)
        self._labels.append(label)
        return digest.digest()

    def groups(self) -> Iterator[tuple[int, ImageHashes]]:
        """Yields (bucket, hashes) of the images added so far."""
        packed = np.empty(len(self._records), _HASHED)
        packed["hash"] = np.frombuffer(self._hashes, f"V{_HASH_BYTES}")
        packed["record"], packed["label"] = self._records, self._labels
        buckets = np.frombuffer(self._hashes, np.uint8)[::_HASH_BYTES] % _BUCKETS
        for bucket in np.unique(buckets).tolist():
            yield _FIRST_BUCKET + bucket, ImageHashes(self._shard, packed[buckets == bucket].tobytes())


@dataclasses.dataclass(frozen=True, order=True)
class Twin:
    """Two records with equal images: (number of the shard, number of the record) of each, the earlier one first.

    Attributes:
      first, second: the records.
      is_leak: whether they are in different splits.
      differ: whether their labels differ.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    is_leak: bool
    differ: bool


@dataclasses.dataclass(frozen=True)
class Twins:
    """Equal images, of one bucket or of all.

    Attributes:
      bucket: number of the bucket, as a retried bundle delivers it twice; -1 for all.
      within: {split number: records whose image an earlier record of the split has}.
      across: {(split number, a later one): (records of the first, of the second) whose image is in both}.
      disputed: number of images that have several labels.
      pairs: the first `MOST_PAIRS` pairs in different splits, with different labels, and of others.
    """

    bucket: int = -1
    within: dict[int, int] = dataclasses.field(default_factory=dict)
    across: dict[tuple[int, int], tuple[int, int]] = dataclasses.field(default_factory=dict)
    disputed: int = 0
    pairs: tuple[Twin, ...] = ()

    def __add__(self, other: Twins) -> Twins:
        within = {key: self.within.get(key, 0) + other.within.get(key, 0) for key in self.within | other.within}
        across = {}
        for key in self.across | other.across:
            (a, b), (c, d) = self.across.get(key, (0, 0)), other.across.get(key, (0, 0))
            across[key] = a + c, b + d
        return Twins(-1, within, across, self.disputed + other.disputed, _first_pairs([*self.pairs, *other.pairs]))


@dataclasses.dataclass(frozen=True)
class Shared:
    """Equal images of two data sets in one bucket; the second data set's splits are numbered after the first's."""

    twins: Twins


def _first_pairs(pairs: Iterable[Twin]) -> tuple[Twin, ...]:
    ordered = sorted(pairs)
    kinds = (
        [pair for pair in ordered if pair.is_leak],
        [pair for pair in ordered if pair.differ],
        [pair for pair in ordered if not pair.is_leak and not pair.differ],
    )
    return tuple(sorted({pair for kind in kinds for pair in kind[:MOST_PAIRS]}))


def of_records(groups: Iterable[Packed], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns the facts about each record, in the order of the shards, and the numbers of their shards."""
    by_shard = {of.shard: np.frombuffer(of.packed, dtype) for of in groups}  # a retried bundle delivers them twice
    shards = sorted(by_shard)
    numbers = np.repeat(shards, [len(by_shard[shard]) for shard in shards])
    return np.concatenate([by_shard[shard] for shard in shards]), numbers


def split_of_shards(splits: Iterable[SplitInfo]) -> NDArray[np.int64]:
    """Returns the number of the split of each shard, int64 (shards,)."""
    counts = [len(split.shards) for split in splits]
    return np.repeat(np.arange(len(counts)), counts)


def twins(groups: Iterable[ImageHashes], split_of_shard: NDArray[np.int64]) -> Twins:
    """Returns the equal images of a bucket. The order of `groups` does not matter.

    Args:
      groups: hashes of all shards.
      split_of_shard: number of the split of each shard, int64 (shards,).
    """
    packed, numbers = of_records(groups, _HASHED)
    hashes = np.ascontiguousarray(packed["hash"]).view("<u8").reshape(-1, 2)
    bucket = int(hashes[0, 0]) % _BUCKETS
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # stable: equal images stay in the order of their records
    is_again = np.append(False, (hashes[order[1:]] == hashes[order[:-1]]).all(axis=1))
    there = is_again | np.append(is_again[1:], False)
    if not there.any():
        return Twins(bucket)
    images = np.cumsum(~is_again[there]) - 1  # number of the image of each record
    order = order[there]
    shard, record, label = numbers[order], packed["record"][order], packed["label"][order].astype(np.int64)
    split = split_of_shard[shard]
    counts = np.zeros((images[-1] + 1, split_of_shard.max() + 1), np.int64)
    np.add.at(counts, (images, split), 1)
    has_label = label != NO_LABEL_CODE
    lowest, highest = np.full(len(counts), 2**32), np.zeros(len(counts), np.int64)
    np.minimum.at(lowest, images[has_label], label[has_label])
    np.maximum.at(highest, images[has_label], label[has_label])
    later = np.flatnonzero(images[1:] == images[:-1]) + 1
    is_leak = split[later] != split[later - 1]
    differ = (label[later] != label[later - 1]) & has_label[later] & has_label[later - 1]
    return Twins(
        bucket,
        {i: int(n) for i, n in enumerate((counts - 1).clip(0).sum(axis=0)) if n},
        dict(_across(counts)),
        int((highest > lowest).sum()),
        _first_pairs(_pairs(shard, record, later, is_leak, differ)),
    )


def _across(counts: NDArray[np.int64]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    there = np.flatnonzero(counts.any(axis=0)).tolist()
    for i, one in enumerate(there):
        for other in there[i + 1 :]:
            both = (counts[:, one] > 0) & (counts[:, other] > 0)
            if both.any():
                yield (one, other), (int(counts[both, one].sum()), int(counts[both, other].sum()))


def _pairs(
    shard: NDArray[np.int64],
    record: NDArray[np.uint32],
    later: NDArray[np.int64],
    is_leak: NDArray[np.bool_],
    differ: NDArray[np.bool_],
) -> Iterator[Twin]:
    """Yields the pairs of records, by image, that follow each other; `later` are positions of the second of each."""
    ordered = np.lexsort((record[later], shard[later]))
    for kind in (is_leak, differ, ~is_leak & ~differ):
        # Twice as many as are listed; the first ones remain, in the order of their first records.
        for i in ordered[kind[ordered]][: 2 * MOST_PAIRS].tolist():
            first, second = ((int(shard[at]), int(record[at])) for at in (later[i] - 1, later[i]))
            yield Twin(first, second, bool(is_leak[i]), bool(differ[i]))
