"""Records that differ only in the bytes of their raw image, label and key, read as one matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from beam_jobs.sources.base import Block
from pipeline.records.layout import Layout


def block(records: Sequence[bytes], image_shape: tuple[int, int, int]) -> Block | None:
    """Returns the block of records of features `image`, `label` and `key`; None where they differ in layout.

    Args:
      records: serialized Examples, at least one.
      image_shape: (height, width, channels) of the raw images.
    """
    size = len(records[0])
    if any(len(record) != size for record in records):
        return None
    layout = Layout.fit(size, math.prod(image_shape))
    if layout is None or layout.key.start == layout.key.stop:
        return None
    rows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
    if layout.mismatch(rows).any():
        return None
    keys = np.ascontiguousarray(rows[:, layout.key])
    if not keys[:, -1].all():  # NumPy would take the zeros at the end for padding
        return None
    images = np.ascontiguousarray(rows[:, layout.image]).reshape(len(records), *image_shape)
    return Block(images, rows[:, layout.label.start].astype(np.int64), keys.view(f"S{keys.shape[1]}")[:, 0])
