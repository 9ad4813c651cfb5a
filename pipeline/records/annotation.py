"""Features that lie on the image: masks, boxes and points, from the values that a record holds, by NumPy.

A mask has the class of each pixel. Boxes and points come in one of several conventions (`CONVENTIONS`), and are handed
out in one: parts of the picture's height and width, y first. Pixels are counted from the upper left corner, from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.text import count_of, shape_of
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOXES, CONVENTIONS, MASK, RELATIVE

WEIGHT = "_weight"  # behind the name of boxes or points: which of them are visible


def of_record(values: Mapping[str, Any], name: str, feature: Feature, size: tuple[int, int]) -> NDArray[Any]:
    """Returns the mask, the boxes or the points of a record.

    Args:
      values: values of the record by feature, as `tf_example.decode` returns them.
      name: name of the feature in the manifest: `mask`, `boxes` or `points`.
      feature: the manifest's.
      size: (height, width) of the image as it is decoded, pixels.

    Returns:
      uint8 (height, width, 1); or float32 (n, 4) or (n, 2), `rel_yxyx` or `rel_yx`, neither clipped nor padded.

    Raises:
      ValueError: the record has no such values, or they cannot be; says why.
    """
    stored = [_values(values, own) for own in feature.stored_names(name)]
    if name == MASK:
        return mask(stored[0], feature, size)
    return relative(_numbers(stored, name, feature), name, feature.convention, size)


def mask(stored: Any, feature: Feature, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns a mask, uint8 (height, width, 1), given the values of its feature; the rest is as for `of_record`."""
    name = feature.named(MASK)
    if not isinstance(stored, list) or len(stored) != 1:
        raise ValueError(f"feature {name!r}, the mask, must be one value of bytes; it has {len(stored)}")
    found = _png(stored[0], name) if feature.encoding == "png" else np.frombuffer(stored[0], np.uint8)
    if feature.encoding == "raw" and found.size == size[0] * size[1]:
        found = found.reshape(size)
    if found.shape != size:
        own = shape_of(found.shape) if found.ndim == 2 else count_of(found.size, "byte")
        raise ValueError(f"its mask has {own}, and its image {shape_of(size)}; a mask must have its image's size")
    return found[..., None]


def _png(data: bytes, name: str) -> NDArray[np.uint8]:
    from pipeline import images  # noqa: PLC0415, with Pillow, which raw masks do not need

    try:
        opened = images.open_file(data)
    except images.BadImageError as error:
        raise ValueError(f"feature {name!r}, the mask: {error}") from None
    if opened.format != "PNG" or opened.mode != "L":
        kind = {"P": "a palette, whose colours TensorFlow would decode", "1": "one bit"}.get(opened.mode, opened.mode)
        what = f"a PNG file with {kind}" if opened.format == "PNG" else f"a {opened.format} file"
        raise ValueError(f"feature {name!r}, the mask, is {what}; a mask must be a grey PNG file of 8 bits, or raw")
    return np.asarray(opened)


def _values(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise ValueError(f"there is no feature {name!r}; a record without boxes or points has an empty one")
    return values[name]


def _numbers(stored: Sequence[Any], name: str, feature: Feature) -> NDArray[np.float64]:
    """Returns the numbers of boxes or points as they are stored, (n, numbers of each)."""
    own, count = feature.stored_names(name), len(CONVENTIONS[name][feature.convention])
    for part, values in zip(own, stored, strict=True):
        if len(values) and str(getattr(values, "dtype", "bytes")) != feature.dtype:
            raise ValueError(f"feature {part!r} holds {getattr(values, 'dtype', 'bytes')}; must be {feature.dtype}")
    columns = [np.asarray(part, np.float64) if len(part) else np.zeros(0) for part in stored]
    if feature.parts:
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            found = ", ".join(f"{part} {length}" for part, length in zip(own, lengths, strict=True))
            raise ValueError(f"its {name} have different numbers of values: {found}")
        return np.stack(columns, axis=-1)
    if len(columns[0]) % count:
        raise ValueError(f"feature {own[0]!r} has {count_of(len(columns[0]), 'value')}, not {count} for each of {name}")
    return columns[0].reshape(-1, count)


def relative(stored: NDArray[np.float64], name: str, convention: str, size: tuple[int, int]) -> NDArray[np.float32]:
    """Returns boxes `rel_yxyx` or points `rel_yx`, float32, of stored ones; raises ValueError for impossible ones."""
    if not np.isfinite(stored).all():
        raise ValueError(f"its {name} are not all finite numbers: {stored.tolist()}")
    found = in_order(stored, name, convention, lambda parts: np.stack(parts, axis=-1))
    if name == BOXES and (flipped := (found[:, :2] > found[:, 2:]).any(axis=1)).any():
        number = int(flipped.argmax())
        raise ValueError(
            f"box {number} is flipped: as {convention} its corners are (y, x) = {found[number].tolist()}, of which the "
            "first must be above and to the left of the second; if all are, they have another convention (--box_format)"
        )
    if not convention.startswith(RELATIVE):
        found = found / np.tile(np.array(size, np.float64), found.shape[1] // 2)
    return found.astype(np.float32)


def in_order(stored: Any, name: str, convention: str, stack: Callable[[list[Any]], Any]) -> Any:
    """Returns the numbers of boxes as ymin, xmin, ymax, xmax, and of points as y, x, in the units of the convention.

    Args:
      stored: numbers (..., 4) or (..., 2), an array or a tensor.
      name, convention: keys of `CONVENTIONS`.
      stack: function that stacks several arrays or tensors along a new last axis.
    """
    of = {number: stored[..., at] for at, number in enumerate(CONVENTIONS[name][convention])}
    if "width" in of:
        of |= {"ymin": of["y"], "xmin": of["x"], "ymax": of["y"] + of["height"], "xmax": of["x"] + of["width"]}
    return stack([of[number] for number in (("ymin", "xmin", "ymax", "xmax") if "xmin" in of else ("y", "x"))])
