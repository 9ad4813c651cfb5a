"""The wire format of the `tf.train.Example` in a record, without TensorFlow: features `image`, `label`, `key`.

Records of one shard that differ only in the bytes of their image, label and key have one `Layout`: a template and
the three places, so that a shard is written and read as one matrix, a row a record.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from pipeline.records import framing

_BYTES_LIST, _INT64_LIST = 1, 3  # field numbers of tf.train.Feature
_LENGTH_DELIMITED = 2  # protobuf wire type
MAX_ONE_BYTE = 0x7F  # the largest varint of one byte


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > MAX_ONE_BYTE:
        out.append(value & MAX_ONE_BYTE | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)) + payload


def _entry(name: bytes, kind: int, payload: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, _field(kind, _field(1, payload))))


def encode(image: bytes, label: int, key: bytes) -> bytes:
    """Returns the Example's deterministic serialization (map entries in the order of their names).

    Args:
      image: the bytes of feature `image`.
      label: feature `label`, 0 or more.
      key: the bytes of feature `key`.
    """
    entries = (
        _entry(b"image", _BYTES_LIST, image),
        _entry(b"key", _BYTES_LIST, key),
        _entry(b"label", _INT64_LIST, _varint(label)),
    )
    return _field(1, b"".join(entries))


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the three features lie in records of one length.

    Attributes:
      template: a record's bytes, zero where the features are; uint8 (length,).
      image, key, label: the features' places.
    """

    template: NDArray[np.uint8]
    image: slice
    key: slice
    label: slice

    @classmethod
    def build(cls, image_size: int, key_size: int) -> Layout:
        """Returns the layout of an image of `image_size` bytes, a key of `key_size`, and a label of 0 to 127."""
        record = encode(bytes(image_size), 0, bytes(key_size))
        label_end = len(record)
        # After the image: the entry of the key; after the key: the entry of the label, whose last byte is the varint.
        key_end = label_end - len(_entry(b"label", _INT64_LIST, _varint(0)))
        image_end = key_end - len(_entry(b"key", _BYTES_LIST, bytes(key_size)))
        return cls(
            np.frombuffer(record, np.uint8),
            slice(image_end - image_size, image_end),
            slice(key_end - key_size, key_end),
            slice(label_end - 1, label_end),
        )

    @classmethod
    @functools.lru_cache(maxsize=64)
    def fit(cls, record_size: int, image_size: int) -> Layout | None:
        """Returns the layout of records of `record_size` bytes with images of `image_size`; None: there is none."""
        key_size = record_size - len(encode(bytes(image_size), 0, b""))
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
        """The places of the bytes that are no feature's, int64 (m,)."""
        is_between = np.ones(len(self.template), bool)
        for place in (self.image, self.key, self.label):
            is_between[place] = False
        return np.flatnonzero(is_between).astype(np.int64)

    @functools.cached_property
    def frame(self) -> NDArray[np.uint8]:
        """The template in the frame that records have in a file, its CRC zero; uint8 (length + 16,)."""
        header = framing.header(len(self.template))
        return np.frombuffer(header + self.template.tobytes() + bytes(framing.FOOTER), np.uint8)
