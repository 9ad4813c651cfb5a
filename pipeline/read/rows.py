"""Decoded records, one row each: images, labels and keys."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.read.corruption import stand_ins
from pipeline.read.unpack import unpack
from pipeline.records import example_proto, framing
from pipeline.records.layout import Layout

U8 = NDArray[np.uint8]
FEATURES = ("image", "label", "key")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Decoded records.

    Attributes:
      images: uint8 (n, pixels of an image), one row per record.
      labels: int64 (n,).
      keys: bytes (n,), dtype S; None where they are not wanted.
      good: bool (n,): False where a corrupt record was left out; its row is a copy of another.
      row_of: int64 (n,): the row of each record, in the order of reading.
    """

    images: U8
    labels: NDArray[np.int64]
    keys: NDArray[np.bytes_] | None
    good: NDArray[np.bool_]
    row_of: NDArray[np.int64]

    @classmethod
    def of(cls, images: U8, count: int, key_bytes: int | None, row_of: NDArray[np.int64] | None) -> Rows:
        """Returns rows to be filled.

        Args:
          images: memory for `count` images, at least one.
          count: records that will be taken.
          key_bytes: of the longest key; None where keys are not wanted.
          row_of: the row of each record; None for their order.
        """
        if count == 0:
            images[:] = 0
        labels, good = np.zeros(len(images), np.int64), np.ones(len(images), bool)
        row_of = np.arange(len(images)) if row_of is None else row_of
        keys = None if key_bytes is None else np.zeros(len(images), f"S{max(1, key_bytes)}")
        return cls(images, labels, keys, good, row_of)

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
        image, self.labels[row], key = features(record, where)
        size = self.images.shape[1]
        if len(image) != size:
            raise DataError(f"{where}: an image of {len(image)} bytes, not of {size}; convert again")
        self.images[row] = np.frombuffer(image, np.uint8)
        if self.keys is not None:
            if len(key) > self.keys.dtype.itemsize:
                raise DataError(f"{where}: a key of {len(key)} bytes, longer than the others'; convert again")
            self.keys[row] = key

    def stand_in(self) -> None:
        """Copies the next good row over each one that is left out; at least one must be good."""
        bad, other = ~self.good, stand_ins(self.good)
        self.images[bad], self.labels[bad] = self.images[other], self.labels[other]
        if self.keys is not None:
            self.keys[bad] = self.keys[other]


def features(record: bytes, where: str) -> tuple[bytes, int, bytes]:
    """Returns the image, the label and the key of an Example.

    Args:
      record: the serialized Example.
      where: for the message.

    Raises:
      DataError: it is not an Example, or lacks one of them.
    """
    try:
        found = example_proto.decode(record, FEATURES)
    except ValueError as error:
        raise DataError(f"{where}: {error}; convert the data again") from None
    image, label, key = (found.get(name, []) for name in FEATURES)
    if isinstance(image, list) and isinstance(label, np.ndarray) and isinstance(key, list):  # noqa: SIM102
        if (len(image), len(label), len(key)) == (1, 1, 1) and label.dtype == np.int64:
            return image[0], int(label[0]), key[0]
    raise DataError(f"{where}: not an Example with one image, one int64 label and one key; convert the data again")
