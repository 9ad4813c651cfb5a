"""Decoded records, one row each: images, labels and keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.manifest import Feature
from pipeline.read.corruption import stand_ins
from pipeline.read.unpack import unpack
from pipeline.records import example_arrays, framing
from pipeline.records.layout import Layout

U8 = NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Decoded records.

    Attributes:
      images: uint8 (n, pixels of an image), one row per record.
      labels: int64 (n,).
      keys: bytes (n,), dtype S; None where they are not wanted.
      features: image, label and key, as the manifest has them.
      good: bool (n,): False where a corrupt record was left out; its row is a copy of another.
      row_of: int64 (n,): the row of each record, in the order of reading.
    """

    images: U8
    labels: NDArray[np.int64]
    keys: NDArray[np.bytes_] | None
    features: Mapping[str, Feature]
    good: NDArray[np.bool_]
    row_of: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        images: U8,
        count: int,
        key_bytes: int | None,
        features: Mapping[str, Feature],
        row_of: NDArray[np.int64] | None,
    ) -> Rows:
        """Returns rows to be filled.

        Args:
          images: memory for `count` images, at least one.
          count: records that will be taken.
          key_bytes: of the longest key; None where keys are not wanted.
          features: of the manifest.
          row_of: the row of each record; None for their order.
        """
        if count == 0:
            images[:] = 0
        labels, good = np.zeros(len(images), np.int64), np.ones(len(images), bool)
        row_of = np.arange(len(images)) if row_of is None else row_of
        keys = None if key_bytes is None else np.zeros(len(images), f"S{max(1, key_bytes)}")
        return cls(images, labels, keys, features, good, row_of)

    def take(self, block: U8, layout: Layout, first: int) -> U8:
        """Copies the features of records, the `first` of all and those after it, to their rows.

        Args:
          block: framed records, uint8 (m, bytes of one with its frame).
          layout: of the records.
          first: the number of the first one, in the order of reading.

        Returns:
          What is wrong with each record, as `unpack` returns it: uint8 (m,).
        """
        rows = self.row_of[first : first + len(block)]
        if self.keys is not None and layout.key.stop > layout.key.start:
            keys = np.ascontiguousarray(block[:, framing.HEADER : -framing.FOOTER][:, layout.key])
            self.keys[rows] = keys.view(f"S{keys.shape[1]}")[:, 0]
        return unpack(block, layout, rows, self.images, self.labels)

    def take_other(self, record: bytes, row: int, where: str) -> None:
        """Copies the features of a record of another layout to a row.

        Raises:
          DataError: it is not an Example of one such image, a label and a key; the message begins with `where`.
        """
        try:
            found = example_arrays.example(record, self.features)
        except example_arrays.BadExampleError as error:
            raise error.at(where) from None
        self.images[row], self.labels[row] = found["image"].reshape(-1), found["label"]
        if self.keys is not None:
            if len(found["key"]) > self.keys.dtype.itemsize:
                raise DataError(f"{where}: a key of {len(found['key'])} bytes, longer than the others'; convert again")
            self.keys[row] = found["key"]

    def stand_in(self) -> None:
        """Copies the next good row over each one that is left out; at least one must be good."""
        bad, other = ~self.good, stand_ins(self.good)
        self.images[bad], self.labels[bad] = self.images[other], self.labels[other]
        if self.keys is not None:
            self.keys[bad] = self.keys[other]
