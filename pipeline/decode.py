"""Decodes a shard's bytes into arrays: records of one layout as one matrix, whose columns are the features.

All others (more features, labels over 127, keys of unequal length) are parsed one by one.
"""

from __future__ import annotations

import dataclasses
import math
import struct

import numpy as np
from numpy.typing import NDArray

from pipeline import example_proto, framing
from pipeline.errors import DataError
from pipeline.example import Layout
from pipeline.manifest import ShardInfo

_FEATURES = ("image", "label", "key")


@dataclasses.dataclass(frozen=True)
class Examples:
    """Decoded examples.

    Attributes:
      images: uint8 (n, height, width, channels).
      labels: int64 (n,).
      keys: bytes (n,), dtype S.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    keys: NDArray[np.bytes_]


def decode_shard(data: NDArray[np.uint8], shard: ShardInfo, image_shape: tuple[int, int, int]) -> Examples:
    """Returns the examples of a shard, in its order; the images can be a view of `data`.

    Args:
      data: the file's bytes, uint8 (num_bytes,), whose CRC32C was checked, so that of each record needs no check.
      shard: what the manifest says of it.
      image_shape: (height, width, channels) of every image.

    Raises:
      DataError: a record that is not an Example with a raw image of this shape, one label and one key; or another
        number of records than the manifest says.
    """
    if shard.stride:
        rows = data.reshape(shard.num_examples, shard.stride)[:, framing.HEADER : -framing.FOOTER]
        layout = Layout.fit(rows.shape[1], math.prod(image_shape))
        if layout is not None and not layout.mismatch(rows).any():
            return _columns(rows, layout, image_shape)
    return _one_by_one(data, shard, image_shape)


def _columns(rows: NDArray[np.uint8], layout: Layout, image_shape: tuple[int, int, int]) -> Examples:
    keys = np.ascontiguousarray(rows[:, layout.key])
    return Examples(
        rows[:, layout.image].reshape(-1, *image_shape),
        rows[:, layout.label.start].astype(np.int64),
        keys.view(f"S{keys.shape[1]}").ravel() if keys.shape[1] else np.zeros(len(rows), "S1"),
    )


def _one_by_one(data: NDArray[np.uint8], shard: ShardInfo, image_shape: tuple[int, int, int]) -> Examples:
    images = np.empty((shard.num_examples, *image_shape), np.uint8)
    pixels = images.reshape(shard.num_examples, math.prod(image_shape))
    labels = np.empty(shard.num_examples, np.int64)
    keys, offset, view = [], 0, memoryview(data.data)
    for record in range(shard.num_examples):
        where = f"{shard.file}, record {record}, byte offset {offset}"
        start, stop = _bounds(view, offset, where)
        image, labels[record], key = _features(bytes(view[start:stop]), where)
        if len(image) != pixels.shape[1]:
            raise DataError(
                f"{where}: its image has {len(image)} bytes, not the {pixels.shape[1]} of raw pixels of shape "
                f"{image_shape}; convert the data again"
            )
        pixels[record] = np.frombuffer(image, np.uint8)
        keys.append(key)
        offset = stop + framing.FOOTER
    if offset != len(data):
        raise DataError(
            f"{shard.file}: its {shard.num_examples} records end at byte offset {offset} of {len(data)}; "
            "convert the data again"
        )
    return Examples(images, labels, np.array(keys, np.bytes_) if keys else np.zeros(0, "S1"))


def _bounds(view: memoryview, offset: int, where: str) -> tuple[int, int]:
    """Returns where the record that is framed at `offset` begins and ends."""
    start = offset + framing.HEADER
    stop = start + struct.unpack_from("<Q", view, offset)[0] if start <= len(view) else start
    if stop + framing.FOOTER > len(view):
        raise DataError(f"{where}: the file ends inside the record ({len(view)} of {stop + framing.FOOTER} bytes)")
    return start, stop


def _features(record: bytes, where: str) -> tuple[bytes, int, bytes]:
    """Returns the image, the label and the key of a record."""
    try:
        found = example_proto.decode(record, _FEATURES)
    except ValueError as error:
        raise DataError(f"{where}: {error}; convert the data again") from None
    image, label, key = (found.get(name, []) for name in _FEATURES)
    if isinstance(image, list) and isinstance(label, np.ndarray) and isinstance(key, list):  # noqa: SIM102
        if (len(image), len(label), len(key)) == (1, 1, 1) and label.dtype == np.int64:
            return image[0], int(label[0]), key[0]
    raise DataError(f"{where}: not an Example with one image, one int64 label and one key; convert the data again")
