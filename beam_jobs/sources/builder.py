"""Builds a block row by row or batch by batch, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources.base import Block
from pipeline.manifest import Feature


class BlockBuilder:
    """The columns of a block, to be filled in place; `bad` must have the rows that cannot be filled.

    Attributes:
      images: pixels, uint8 (n, height, width, channels), or objects (n,), the bytes of image files.
      labels: int64 (n,).
      keys: dtype S (n,), or objects (n,).
      extra: {feature: values}, of the feature's dtype and shape, or objects (n,) where no array holds them.
      bad: {row: reason}.
    """

    def __init__(
        self,
        count: int,
        features: Mapping[str, Feature],
        image_shape: tuple[int, int, int] | None = None,
        keys: NDArray[np.bytes_] | None = None,
    ) -> None:
        """Starts a block of `count` rows.

        Args:
          count: number of rows.
          features: the features besides image, label and key.
          image_shape: (height, width, channels) of pixels; None for encoded images.
          keys: of all rows, if they are known already.
        """
        self.images: NDArray[Any] = _files(count) if image_shape is None else np.zeros((count, *image_shape), np.uint8)
        self.labels = np.zeros(count, np.int64)
        self.keys: NDArray[Any] = _files(count) if keys is None else keys
        self.extra = {name: _empty(count, feature) for name, feature in features.items()}
        self.bad: dict[int, str] = {}

    def finished(self) -> Block:
        """Returns the block."""
        extra = {name: _listed(column) for name, column in self.extra.items()}
        return Block(_listed(self.images), self.labels, _listed(self.keys), extra, dict(sorted(self.bad.items())))


def _files(count: int) -> NDArray[np.object_]:
    return np.full(count, b"", object)


def _empty(count: int, feature: Feature) -> NDArray[Any]:
    if feature.dtype == "string" or None in feature.shape:
        return _files(count)
    return np.zeros((count, *(size or 0 for size in feature.shape)), feature.dtype)


def _listed(column: NDArray[Any]) -> Any:
    return column.tolist() if column.dtype == object else column
