"""The wire format of the `tf.train.Example` in a record, without TensorFlow: features `image`, `label`, `key`.

Records of one shard that differ only in the bytes of their image, label and key have one `Layout`: a template and
where the three lie, so that a shard is written and read as one matrix, one row per record.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from pipeline.records import example_proto, framing

MAX_ONE_BYTE = 0x7F  # the largest label whose varint takes one byte


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the three features lie in records of one length.

    Attributes:
      template: a record's bytes, zero where the features are; uint8 (length,).
      image, key, label: where the features lie.
    """

    template: NDArray[np.uint8]
    image: slice
    key: slice
    label: slice

    @classmethod
    @functools.lru_cache(maxsize=64)
    def build(cls, image_size: int, key_size: int) -> Layout:
        """Returns the layout of an image of `image_size` bytes, a key of `key_size`, and a label of 0 to 127."""
        record = _record(bytes(image_size), 0, bytes(key_size))
        return cls(
            record,
            _differing(record, _record(b"\1" * image_size, 0, bytes(key_size))),
            _differing(record, _record(bytes(image_size), 0, b"\1" * key_size)),
            _differing(record, _record(bytes(image_size), 1, bytes(key_size))),
        )

    @classmethod
    @functools.lru_cache(maxsize=64)
    def fit(cls, record_size: int, image_size: int) -> Layout | None:
        """Returns the layout of records of `record_size` bytes with images of `image_size`; None: there is none."""
        key_size = record_size - len(_record(bytes(image_size), 0, b""))
        for size in range(key_size, max(-1, key_size - 12), -1):  # longer keys have longer length fields
            layout = cls.build(image_size, size)
            if len(layout.template) == record_size:
                return layout
        return None

    def mismatch(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Says which rows (n, length) are not of this layout."""
        is_long = rows[:, self.label.start] > MAX_ONE_BYTE
        return is_long | (rows[:, self.between] != self.template[self.between]).any(axis=1)

    @functools.cached_property
    def between(self) -> NDArray[np.int64]:
        """The positions of the bytes that belong to no feature, int64 (m,)."""
        is_between = np.ones(len(self.template), bool)
        for feature in (self.image, self.key, self.label):
            is_between[feature] = False
        return np.flatnonzero(is_between).astype(np.int64)

    @functools.cached_property
    def frame(self) -> NDArray[np.uint8]:
        """The template in the frame that records have in a file, its CRC zero; uint8 (length + 16,)."""
        header = framing.header(len(self.template))
        return np.frombuffer(header + self.template.tobytes() + bytes(framing.FOOTER), np.uint8)


def _record(image: bytes, label: int, key: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(example_proto.encode({"image": image, "label": label, "key": key}), np.uint8)


def _differing(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> slice:
    found = np.flatnonzero(one != other).tolist()
    return slice(found[0], found[-1] + 1) if found else slice(0, 0)
