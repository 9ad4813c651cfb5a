"""Turns records of `tf.train.Example` into blocks, by the names of the image, the label and the kept features."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources.base import Block
from beam_jobs.sources.builder import BlockBuilder
from pipeline.commands.text import count_of
from pipeline.manifest import Feature
from pipeline.records import tf_example

DTYPES = {"bytes": "string", "int64": "int64", "float": "float32"}  # {kind of values: dtype of a feature}
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names that the features have in the records.

    Attributes:
      image, label: of bytes; of one int64, or of bytes if `has_text_labels`.
      key: of bytes or one int64; "" if records have none.
      image_shape: (height, width, channels) of raw pixels; None if images are encoded.
      sizes: the features with height, width and channels of raw pixels, if there are any.
      extra: the kept features.
      has_text_labels: whether labels are the names of classes.
    """

    image: str
    label: str
    key: str = ""
    image_shape: tuple[int, int, int] | None = None
    sizes: tuple[str, ...] = ()
    extra: dict[str, Feature] = dataclasses.field(default_factory=dict)
    has_text_labels: bool = False

    def block(
        self, records: Sequence[bytes], keys: NDArray[np.bytes_] | None, class_names: Sequence[str] = ()
    ) -> Block:
        """Returns the block of serialized Examples.

        Args:
          records: the Examples.
          keys: their keys if they hold none.
          class_names: of all classes, if labels are their names.
        """
        numbers = {name.encode(): label for label, name in enumerate(class_names)} if self.has_text_labels else {}
        builder = BlockBuilder(len(records), self.extra, self.image_shape, keys)
        names = (self.image, self.label, *([self.key] if self.key else []), *self.sizes, *self.extra)
        for row, record in enumerate(records):
            try:
                features = tf_example.decode(record, names)
                builder.images[row] = self._image(features)
                builder.labels[row] = self._label(features, numbers)
                if self.key:
                    builder.keys[row] = self._key(features)
                for name, feature in self.extra.items():
                    builder.extra[name][row] = _kept(features, name, feature)
            except ValueError as error:
                builder.bad[row] = str(error)
        return builder.finished()

    def _image(self, features: dict[str, Any]) -> bytes | NDArray[np.uint8]:
        image: bytes = _one(features, self.image, "bytes")
        if self.image_shape is None:
            return image
        if self.sizes:
            shape = tuple(int(_one(features, name, "int64")) for name in self.sizes)
            if shape != self.image_shape:
                raise ValueError(f"the image is {_text(shape)}; the first is {_text(self.image_shape)}")
        if len(image) != math.prod(self.image_shape):
            size = math.prod(self.image_shape)
            raise ValueError(
                f"the image has {count_of(len(image), 'byte')}; {_text(self.image_shape)} pixels are {size:,}"
            )
        return np.frombuffer(image, np.uint8).reshape(self.image_shape)

    def _label(self, features: dict[str, Any], numbers: Mapping[bytes, int]) -> int:
        if not self.has_text_labels:
            return int(_one(features, self.label, "int64"))
        text: bytes = _one(features, self.label, "bytes")
        if text not in numbers:
            problem = f"is {text.decode(errors='backslashreplace')!r}, which names no class" if text else "is empty"
            raise ValueError(f"feature {self.label!r} {problem}")
        return numbers[text]

    def _key(self, features: dict[str, Any]) -> bytes:
        value = _one(features, self.key, "bytes or int64")
        key = value if isinstance(value, bytes) else str(value).encode()
        if not key:
            raise ValueError(f"feature {self.key!r}, the key, is empty")
        return key


def kind(values: Any) -> str:
    """Returns the kind of values that `tf_example.decode` returned: `bytes`, `int64`, `float`, or `nothing`."""
    if isinstance(values, list):
        return "bytes" if values else "nothing"
    return "int64" if values.dtype == np.int64 else "float"


def _one(features: dict[str, Any], name: str, kinds: str) -> Any:
    if name not in features:
        raise ValueError(f"there is no feature {name!r}")
    values = features[name]
    if kind(values) not in kinds:
        raise ValueError(f"feature {name!r} holds {kind(values)}, not {kinds}")
    if len(values) != 1:
        raise ValueError(f"feature {name!r} has {count_of(len(values), 'value')}, not 1")
    return values[0]


def _kept(features: dict[str, Any], name: str, feature: Feature) -> Any:
    kind_wanted = _KINDS[feature.dtype]
    if not feature.shape:
        return _one(features, name, kind_wanted)
    values = features.get(name, [])
    if not len(values):
        values = np.zeros(0, feature.dtype)
    elif kind(values) != kind_wanted:
        raise ValueError(f"feature {name!r} holds {kind(values)}, not {kind_wanted}")
    if None in feature.shape:
        return values
    shape = [size for size in feature.shape if size is not None]
    if len(values) != math.prod(shape):
        raise ValueError(f"feature {name!r} has {count_of(len(values), 'value')}, not {_text(shape)}")
    return values.reshape(shape)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
