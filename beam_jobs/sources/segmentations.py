"""Masks drawn from the segmentations of COCO's annotations: polygons and run-length encodings.

pycocotools rasterizes polygons, so that a mask has the pixels that COCO's own tools count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import images
from pipeline.commands.text import shape_of
from pipeline.records.annotation import IGNORED

_POINTS = 3  # fewest points of a polygon
_LONGEST = 1 << 22  # 4 Mi pixels around a polygon: pycocotools takes 40 bytes for each
_SHOWN = 60  # characters of a value in errors


@dataclasses.dataclass(frozen=True, slots=True)
class Segmentation:
    """The segmentation of an annotation.

    Attributes:
      number: id of the annotation.
      value: value of its pixels in the mask.
      shape: result of `compact`.
    """

    number: int
    value: int
    shape: Any


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnMasks:
    """Masks of a table's rows, drawn when they are read.

    Attributes:
      sizes: (height, width) of each row's image; None if its file does not give it.
      segmentations: segmentations on each row's image.
    """

    sizes: Sequence[tuple[int, int] | None]
    segmentations: Sequence[Sequence[Segmentation]]

    def content(self, row: int) -> bytes:
        """Returns a PNG file of a row's mask; raises ValueError with the reason if it cannot be drawn."""
        size = self.sizes[row]
        if size is None:
            raise ValueError("its annotations do not name the height and width of the image")
        return images.encoded(drawn(self.segmentations[row], size)[..., None], "png")

    def named(self, row: int, reason: str) -> str:
        del row  # not needed: the reason names the annotation
        return reason


def compact(shape: Any) -> Any:
    """Returns a segmentation with its lists of numbers as arrays, which take a third of the memory; others as they are.

    Args:
      shape: value of `segmentation`: a list of polygons, or a dict of a run-length encoding.
    """
    if isinstance(shape, dict):
        return {name: _array(value, np.int64, {int}) if name == "counts" else value for name, value in shape.items()}
    if isinstance(shape, list):
        return [_array(polygon, np.float64, {int, float}) for polygon in shape]
    return shape


def _array(value: Any, dtype: Any, types: set[type]) -> Any:
    if not isinstance(value, list) or not {*map(type, value)} <= types:
        return value
    try:
        return np.array(value, dtype)
    except OverflowError:
        return value


def drawn(segmentations: Sequence[Segmentation], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns the mask of an image, uint8 (height, width): smaller objects lie on larger ones, all of them on crowds.

    Of two objects with equally many pixels, the one with the higher id is on top.

    Args:
      segmentations: segmentations on the image.
      size: (height, width) of the image.

    Raises:
      ValueError: a segmentation is invalid; the message names the annotation.
    """
    from pycocotools import mask as coco  # noqa: PLC0415 (a package that nothing else needs)

    if size[0] * size[1] > images.MAX_PIXELS:
        raise ValueError(f"its annotations are of an image of {shape_of(size)}, more than {images.MAX_PIXELS} pixels")
    found = []
    for each in sorted(segmentations, key=lambda one: one.number):
        try:
            encoding = coco.frPyObjects(_checked(each.shape, size), *size)
        except ValueError as error:
            raise ValueError(f"annotation {each.number}: {error}") from None
        encoding = coco.merge(encoding) if isinstance(encoding, list) else encoding
        found.append((each.value != IGNORED, -int(coco.area(encoding)), each.value, encoding))
    mask = np.zeros(size, np.uint8)
    for *_, value, encoding in sorted(found, key=lambda one: one[:2]):
        mask[coco.decode(encoding) > 0] = value
    return mask


def _checked(shape: Any, size: tuple[int, int]) -> Any:
    """Returns a segmentation in pycocotools's form; raises ValueError if it is invalid: pycocotools checks nothing."""
    if isinstance(shape, dict):
        return {"size": size, "counts": _runs(shape, size)}
    if not isinstance(shape, list) or not shape:
        raise ValueError(f"its segmentation is {_text(shape)}, neither polygons nor a run-length encoding")
    for number, polygon in enumerate(shape):
        named = f"polygon {number} of its segmentation"
        if not isinstance(polygon, np.ndarray):
            raise ValueError(f"{named} is {_text(polygon)}, not a list of numbers")
        if len(polygon) % 2 or len(polygon) < 2 * _POINTS:
            raise ValueError(f"{named} has {len(polygon)} numbers, not x and y of {_POINTS} or more points")
        points, sides = polygon.reshape(-1, 2), np.array(size[::-1])
        is_near = (points >= -sides) & (points <= 2 * sides)  # False for NaN
        if not is_near.all():
            x, y = points[np.flatnonzero(~is_near.all(axis=1))[0]]
            raise ValueError(f"{named} has the point ({x}, {y}), far outside of the image of {shape_of(size)}")
        if np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum() > _LONGEST:
            raise ValueError(f"{named} is more than {_LONGEST} pixels long")
    return shape


def _runs(shape: dict[str, Any], size: tuple[int, int]) -> NDArray[np.int64]:
    """Returns the run lengths of a run-length encoding; raises ValueError if its size is not the image's."""
    own, runs = shape.get("size"), shape.get("counts")
    if own != [*size]:
        raise ValueError(f"its segmentation has the size {_text(own)}, and its image {[*size]}")
    runs = _unpacked(runs) if isinstance(runs, str) else runs
    if not isinstance(runs, np.ndarray) or (runs < 0).any():
        raise ValueError(f"its segmentation has the counts {_text(shape.get('counts'))}, not lengths of runs")
    if (total := sum(runs.tolist())) != size[0] * size[1]:
        raise ValueError(
            f"the counts of its segmentation are {total:,} pixels, and its image has {size[0] * size[1]:,}"
        )
    return runs


def _unpacked(text: str) -> NDArray[np.int64] | None:
    """Decodes COCO's text form of run lengths, as `rleFrString` in its maskApi.c does; None if it is invalid."""
    found: list[int] = []
    value = shift = 0
    for byte in text.encode():
        part = byte - 48
        if not 0 <= part < 64 or shift > 30:
            return None
        value |= (part & 31) << shift
        shift += 5
        if not part & 32:  # the number's last byte
            value -= (part & 16) << (shift - 4)
            found.append(value + (found[-2] if len(found) > 2 else 0))
            value = shift = 0
    return np.array(found, np.int64) if not shift else None


def _text(value: Any) -> str:
    return str(value.tolist() if isinstance(value, np.ndarray) else value)[:_SHOWN]
