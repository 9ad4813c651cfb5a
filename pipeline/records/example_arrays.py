"""A serialized Example as NumPy arrays of the dtypes and shapes that a manifest says, images decoded with Pillow."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.manifest import Feature
from pipeline.records import example_proto

_KINDS: dict[str, np.dtype[Any]] = {"int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class BadExampleError(ValueError):
    """The bytes are not what the manifest says; the message says why."""

    def at(self, where: object) -> DataError:
        """Returns the error for the user."""
        return DataError(f"{where}: {self}; convert the data again")


def example(record: bytes, features: Mapping[str, Feature], decode: bool = True) -> dict[str, Any]:
    """Returns {feature: value} of a serialized Example.

    Args:
      record: the Example.
      features: what the manifest says of them.
      decode: False: images stay bytes.

    Raises:
      BadExampleError: it is no Example, or has not these features.
    """
    try:
        found = example_proto.decode(record, features)
    except ValueError as error:
        raise BadExampleError(str(error)) from None
    values = {name: _value(name, feature, found.get(name, [])) for name, feature in features.items()}
    values["label"] = int(values["label"])
    if decode:
        values["image"] = image(values["image"], features["image"])
    return values


def _value(name: str, feature: Feature, found: Any) -> Any:
    """Returns a feature's array, or its one value where its shape is (); of an image, its bytes."""
    shape = () if feature.encoding else feature.shape
    kind = _KINDS.get(feature.dtype)
    if kind is None and isinstance(found, list):
        array: NDArray[Any] = np.empty(len(found), object)
        array[:] = found
    elif kind is not None and (len(found) == 0 or getattr(found, "dtype", None) == kind):
        array = np.array(found, kind)
    else:
        raise BadExampleError(f"feature {name!r} is not of {feature.dtype}")
    if len(shape) == 1 and shape[0] is None:
        return array
    if None in shape:
        raise BadExampleError(f"feature {name!r} has the shape {shape}, and only vectors may vary in length")
    if len(array) != math.prod(size for size in shape if size is not None):
        raise BadExampleError(f"feature {name!r} has {len(array)} values, not those of shape {shape}")
    return array.reshape([size or 0 for size in shape])[()]


def image(data: bytes, feature: Feature) -> NDArray[np.uint8]:
    """Returns the pixels of an image's stored bytes: uint8 (height, width, channels), writable.

    Those of a JPEG can differ by a little from TensorFlow's, whose decoder rounds otherwise.

    Raises:
      BadExampleError: it cannot be decoded, or has another shape than the manifest says.
    """
    if feature.encoding == "raw":
        shape = [size or 0 for size in feature.shape]
        if len(data) != math.prod(shape):
            raise BadExampleError(f"its image has {len(data)} bytes, not those of raw pixels of shape {feature.shape}")
        return np.frombuffer(data, np.uint8).reshape(shape).copy()
    pixels = _decoded(data, feature.shape[2] or 3)
    if any(size not in (None, found) for size, found in zip(feature.shape, pixels.shape, strict=True)):
        raise BadExampleError(f"its image is of shape {pixels.shape}, not {feature.shape}")
    return pixels


def _decoded(data: bytes, channels: int) -> NDArray[np.uint8]:
    import PIL  # noqa: PLC0415, raw images need none
    import PIL.Image  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with PIL.Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as file:
                pixels = np.array(file.convert(_MODES.get(channels, "RGB")), np.uint8)
    except PIL.UnidentifiedImageError:
        raise BadExampleError(f"its image is no PNG or JPEG; it begins with 0x{data[:4].hex()}") from None
    except Exception as error:  # Pillow's readers raise a dozen kinds, down to SyntaxError
        raise BadExampleError(f"its image cannot be decoded: {error or type(error).__name__}") from None
    return pixels.reshape(*pixels.shape[:2], -1)
