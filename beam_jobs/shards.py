"""A shard's rows and bytes: pure functions of (source, seed, number of shards, shard)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources.base import Block
from pipeline import framing, hashing
from pipeline.errors import DataError
from pipeline.example import MAX_ONE_BYTE, Layout
from pipeline.hashing import Domain

_STATISTICS_ROWS = 64  # images widened to uint32 at a time: a cache full; up to 66,051 the sums of squares fit


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Integer sums over images, so that the mean of many shards depends on no order of summation.

    Attributes:
      label_histogram: count of each label, 0 and up.
      pixels: number of pixels in each channel.
      sums, squares: of each channel's values and of their squares.
    """

    label_histogram: tuple[int, ...]
    pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]


def shard_rows(seed: int, split: str, num_rows: int, shard: int, num_shards: int) -> NDArray[np.int64]:
    """Returns the source rows of a shard, in the order in which they are written, int64 (n,).

    Shard s of S holds positions floor(s N / S) to floor((s + 1) N / S) of the split's permutation.
    """
    start, stop = shard * num_rows // num_shards, (shard + 1) * num_rows // num_shards
    return _permutation(seed, split, num_rows)[start:stop]


@functools.lru_cache(maxsize=2)  # a worker's shards are of one split after the other
def _permutation(seed: int, split: str, num_rows: int) -> NDArray[np.int64]:
    number = np.frombuffer(hashlib.sha256(split.encode()).digest()[:8], "<i8")[0]
    return hashing.permutation(hashing.derive_key(Domain.CONVERT, seed, number), num_rows)


def record_stride(image_size: int, key_size: int) -> int:
    """Returns the bytes of a record with its container, for images and keys of these many bytes."""
    return framing.HEADER + len(Layout.build(image_size, key_size).template) + framing.FOOTER


def check_labels(block: Block, num_classes: int) -> None:
    """Checks a block that a source has read.

    Raises:
      DataError: a label is not in 0..num_classes - 1; the first is named with its key.
    """
    outside = np.flatnonzero((block.labels < 0) | (block.labels >= num_classes))
    if len(outside):
        row = outside[0]
        raise DataError(f"{block.keys[row].decode()}: label {block.labels[row]} is not in 0..{num_classes - 1}")


def shard_bytes(block: Block) -> NDArray[np.uint8]:
    """Returns a shard's bytes, a framed record in each row: uint8 (n, stride).

    Raises:
      ValueError: a label is not in 0..127, which the fixed layout cannot hold.
    """
    if len(block.labels) and not 0 <= block.labels.min() <= block.labels.max() <= MAX_ONE_BYTE:
        raise ValueError(f"labels {block.labels.min()}..{block.labels.max()}: must be in 0..{MAX_ONE_BYTE}")
    count = len(block.labels)
    layout = Layout.build(block.images[0].size, block.keys.itemsize)
    size = len(layout.template)
    header = np.frombuffer(framing.frame(layout.template.tobytes())[: framing.HEADER], np.uint8)
    matrix = np.empty((count, framing.HEADER + size + framing.FOOTER), np.uint8)
    matrix[:, : framing.HEADER] = header
    records = matrix[:, framing.HEADER : framing.HEADER + size]
    records[:] = layout.template
    records[:, layout.image] = block.images.reshape(count, -1)
    records[:, layout.key] = block.keys.view(np.uint8).reshape(count, -1)
    records[:, layout.label] = block.labels[:, None]
    crcs = np.fromiter((google_crc32c.value(record.tobytes()) for record in records), np.uint32, count)
    matrix[:, framing.HEADER + size :] = framing.mask(crcs).astype("<u4").view(np.uint8).reshape(count, framing.FOOTER)
    return matrix


def statistics(block: Block, num_classes: int) -> Statistics:
    """Returns the sums of a block's labels and pixels."""
    count, channels = len(block.labels), block.images.shape[-1]
    values = block.images.reshape(count, -1)
    sums, squares = np.zeros(values.shape[1], np.int64), np.zeros(values.shape[1], np.int64)
    # Down the examples first, a long contiguous axis of all values of an image; its channels are folded at the end.
    for start in range(0, count, _STATISTICS_ROWS):
        chunk = values[start : start + _STATISTICS_ROWS].astype(np.uint32)
        sums += chunk.sum(axis=0, dtype=np.uint32)
        chunk *= chunk
        squares += chunk.sum(axis=0, dtype=np.uint32)
    histogram = np.bincount(block.labels, minlength=num_classes)
    return Statistics(
        tuple(histogram.tolist()),
        values.size // channels,
        tuple(sums.reshape(-1, channels).sum(axis=0).tolist()),
        tuple(squares.reshape(-1, channels).sum(axis=0).tolist()),
    )
