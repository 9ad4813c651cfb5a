"""Decodes a shard's bytes into arrays: records of one length as one matrix, whose columns are the features."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from pipeline import framing
from pipeline.errors import DataError
from pipeline.example import Layout
from pipeline.manifest import ShardInfo


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
    """Returns the examples of a shard, in its order; the images are a view of `data`.

    Args:
      data: the shard's bytes, uint8 (num_bytes,).
      shard: its entry in the manifest.
      image_shape: (height, width, channels) of every image.

    Raises:
      DataError: records of unequal lengths (not supported yet), or a record that is not our Example.
    """
    if shard.stride is None:
        raise DataError(
            f"{shard.file}: its records have unequal lengths, which this release cannot read; "
            "convert the data with --image_encoding raw and keys of one length"
        )
    layout = Layout.fit(shard.stride - framing.HEADER - framing.FOOTER, int(np.prod(image_shape)))
    if layout is None:
        raise DataError(f"{shard.file}: records of {shard.stride} bytes cannot hold an image of shape {image_shape}")
    rows = data.reshape(shard.num_examples, shard.stride)[:, framing.HEADER : -framing.FOOTER]
    other = layout.mismatch(rows)
    if other.any():
        record = int(other.argmax())
        raise DataError(
            f"{shard.file}, record {record}, byte offset {record * shard.stride}: not an Example of "
            f"image {image_shape}, key and label as the manifest says; convert the data again"
        )
    keys = np.ascontiguousarray(rows[:, layout.key])
    return Examples(
        rows[:, layout.image].reshape(-1, *image_shape),
        rows[:, layout.label.start].astype(np.int64),
        keys.view(f"S{keys.shape[1]}").ravel() if keys.shape[1] else np.zeros(len(rows), "S1"),
    )
