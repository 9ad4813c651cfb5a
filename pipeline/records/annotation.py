"""Features that are located on the image: masks, boxes and points, computed from a record's values with NumPy.

A mask has the class of each pixel. Boxes and points are stored in one of several conventions (`CONVENTIONS`), and
returned in a single one: fractions of the picture's height and width, y first. Pixels are counted from 0 at the upper
left corner. These features are counted while a data set is written or indexed, and described in its manifest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.text import count_of, shape_of
from pipeline.errors import DataError
from pipeline.manifest import Feature
from pipeline.manifest.columns import counted
from pipeline.manifest.manifest import BOX_LABELS, BOXES, CONVENTIONS, MASK, RELATIVE

WEIGHT = "_weight"  # suffix of `boxes` or `points`: which of them are visible
BACKGROUND = "background"  # name of class 0 in masks, around all objects
IGNORED = 255  # value of a mask's pixels without a class, as in PASCAL VOC
_COUNTS = ("most", "counts", "beyond", "tiny", "unseen")  # fields of `ShardAnnotations` that are dicts by feature
_SLACK = 0.01  # fraction of the image's side by which rounded numbers may exceed it


def of_record(values: Mapping[str, Any], name: str, feature: Feature, size: tuple[int, int]) -> NDArray[Any]:
    """Returns the mask, the boxes, their classes or the points of a record.

    Args:
      values: values of the record by feature, as `tf_example.decode` returns them.
      name: name of the feature in the manifest: `mask`, `boxes`, `box_labels` or `points`.
      feature: feature of that name in the manifest.
      size: (height, width) of the decoded image, pixels.

    Returns:
      uint8 (height, width, 1); int64 (n,); or float32 (n, 4) or (n, 2), `rel_yxyx` or `rel_yx`, neither clipped nor
      padded.

    Raises:
      ValueError: the record has no such values, or they are impossible; the message explains why.
    """
    stored = [_values(values, own) for own in feature.stored_names(name)]
    if name == MASK:
        return mask(stored[0], feature, size)
    if name == BOX_LABELS:
        return _classes(stored[0], feature)
    return relative(_numbers(stored, name, feature), name, feature.convention, size)


def mask(stored: Any, feature: Feature, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns a mask, uint8 (height, width, 1), given the values of its feature; otherwise like `of_record`."""
    _check_mask(stored, feature)
    name = feature.named(MASK)
    found = _png(stored[0], name) if feature.encoding == "png" else np.frombuffer(stored[0], np.uint8)
    if feature.encoding == "raw" and found.size == size[0] * size[1]:
        found = found.reshape(size)
    if found.shape != size:
        own = shape_of(found.shape) if found.ndim == 2 else count_of(found.size, "byte")
        raise ValueError(f"its mask has {own}, and its image {shape_of(size)}; a mask must have its image's size")
    return found[..., None]


def _check_mask(stored: Any, feature: Feature) -> None:
    if not isinstance(stored, list) or len(stored) != 1:
        name = feature.named(MASK)
        raise ValueError(f"feature {name!r}, the mask, must be one value of bytes; it has {len(stored)}")


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


def _classes(stored: Any, feature: Feature) -> NDArray[np.int64]:
    name, dtype = feature.named(BOX_LABELS), getattr(stored, "dtype", "bytes")
    if len(stored) and str(dtype) != feature.dtype:
        raise ValueError(f"feature {name!r}, the classes of boxes, holds {dtype}; must be {feature.dtype}")
    found = np.asarray(stored, np.int64)
    names = len(feature.class_names)
    if len(wrong := np.flatnonzero((found < 0) | (found >= (names or np.inf)))):
        raise ValueError(f"the class of box {wrong[0]} is {found[wrong[0]]}, not in 0..{names - 1 if names else '...'}")
    return found


def _values(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise ValueError(f"there is no feature {name!r}; a record without boxes or points has an empty one")
    return values[name]


def _numbers(stored: Sequence[Any], name: str, feature: Feature) -> NDArray[np.float64]:
    """Returns the numbers of boxes or points as stored, (n, numbers of each)."""
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
    """Converts stored boxes to `rel_yxyx` or points to `rel_yx`, float32; raises ValueError for impossible ones."""
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
    """Returns boxes as ymin, xmin, ymax, xmax, or points as y, x, in the units of the convention.

    Args:
      stored: numbers (..., 4) or (..., 2), an array or a tensor.
      name, convention: keys of `CONVENTIONS`.
      stack: function that stacks several arrays or tensors along a new last axis.
    """
    of = {number: stored[..., at] for at, number in enumerate(CONVENTIONS[name][convention])}
    if "width" in of:
        of |= {"ymin": of["y"], "xmin": of["x"], "ymax": of["y"] + of["height"], "xmax": of["x"] + of["width"]}
    return stack([of[number] for number in (("ymin", "xmin", "ymax", "xmax") if "xmin" in of else ("y", "x"))])


def in_convention(ordered: NDArray[np.float64], name: str, convention: str) -> NDArray[np.float64]:
    """Converts boxes or points from the form that `in_order` returns to a convention."""
    order = ("ymin", "xmin", "ymax", "xmax") if name == BOXES else ("y", "x")
    of = {number: ordered[..., at] for at, number in enumerate(order)}
    if name == BOXES:
        of |= {"y": of["ymin"], "x": of["xmin"], "height": of["ymax"] - of["ymin"], "width": of["xmax"] - of["xmin"]}
    return np.stack([of[number] for number in CONVENTIONS[name][convention]], axis=-1)


def problem_of(values: Mapping[str, Any], features: Mapping[str, Feature], size: tuple[int, int] | None) -> str | None:
    """Returns why a record's masks, boxes and points do not match the manifest; None if they do.

    Args:
      values: values of the record by feature, as `tf_example.decode` returns them.
      features: features of the manifest that are located on the image.
      size: (height, width) of the image; None if it has not been decoded, so that masks are not decoded, either.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, feature in features.items():
        try:
            if name == MASK and size is None:
                _check_mask(values.get(feature.named(name), []), feature)
                continue
            found[name] = of_record(values, name, feature, size or (1, 1))
        except ValueError as error:
            return str(error)
        if name == MASK:
            classes, names = np.unique(found[name]), len(feature.class_names)
            if len(wrong := classes[(classes >= names) & (classes != IGNORED)]):
                return f"its mask has the class {wrong[0]}, not in 0..{names - 1}"
        elif len(found[name]) > (feature.shape[0] or 0):
            return f"it has {len(found[name])} {name}, the manifest says {feature.shape[0]} at most"
    if BOXES in found and BOX_LABELS in found:
        return _unequal(len(found[BOXES]), len(found[BOX_LABELS]))
    return None


def _unequal(boxes: int, classes: int) -> str | None:
    return None if boxes == classes else f"it has {count_of(boxes, 'box', 'boxes')}, but classes of {classes}"


def counts(values: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, int]:
    """Returns how many boxes and points a record has, by feature, given `values` from `tf_example.decode`."""
    found = {}
    for name in counted(features):
        feature = features[name]
        stored = values.get(feature.stored_names(name)[0], ())
        found[name] = len(stored) // (1 if feature.parts else len(CONVENTIONS[name][feature.convention]))
    return found


class ShardAnnotations:
    """The masks, boxes and points of one file, counted record by record.

    Args:
      features: features to count, by name.
      counted: result of `packed` to continue from; None to start from zero.
    """

    def __init__(self, features: Mapping[str, Feature], counted: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.features = features
        self.most = dict.fromkeys(features, 0)
        self.counts = dict.fromkeys(features, 0)
        self.beyond = dict.fromkeys(features, 0)  # boxes and points that extend beyond the image
        self.tiny = dict.fromkeys(features, 0)  # boxes and points in its first pixel
        self.unseen = dict.fromkeys(features, 0)  # boxes and points without visible area
        self.classes = np.zeros(256, bool)  # classes seen in masks
        self.highest = -1  # highest class of a box
        for name, value in (counted or {}).items():
            for field in _COUNTS:
                getattr(self, field)[name] = value[field]
            self.classes[value.get("classes", [])] = True
            self.highest = max(self.highest, value.get("highest", -1))

    def packed(self) -> dict[str, dict[str, Any]]:
        """Returns the counts as JSON-compatible objects."""
        found: dict[str, dict[str, Any]] = {
            n: {field: getattr(self, field)[n] for field in _COUNTS} for n in self.features
        }
        if MASK in found:
            found[MASK]["classes"] = np.flatnonzero(self.classes).tolist()
        if BOX_LABELS in found:
            found[BOX_LABELS]["highest"] = self.highest
        return found

    def add(self, values: Mapping[str, Any], size: tuple[int, int]) -> None:
        """Counts the masks, boxes and points of a record, given the (height, width) of its decoded image.

        Raises:
          ValueError: they cannot be used; the message explains why.
        """
        found_boxes, found_classes = None, None
        for name, feature in self.features.items():
            found = of_record(values, name, feature, size)
            if name == MASK:
                self.classes[found] = True
                continue
            if name == BOX_LABELS:
                found_classes = len(found)
                self.most[name] = max(self.most[name], len(found))
                self.highest = max(self.highest, int(found.max(initial=-1)))
                continue
            found_boxes = len(found) if name == BOXES else found_boxes
            low, high = (found[:, :2], found[:, 2:]) if name == BOXES else (found, found)
            self.most[name] = max(self.most[name], len(found))
            self.counts[name] += len(found)
            self.beyond[name] += int(((low < -_SLACK) | (high > 1 + _SLACK)).any(axis=1).sum())
            self.tiny[name] += int((high * size <= 1).all(axis=1).sum())
            inside = np.clip(high, 0, 1) - np.clip(low, 0, 1)
            seen = inside.min(axis=1) > 0 if name == BOXES else ((found >= 0) & (found <= 1)).all(axis=1)
            self.unseen[name] += int((~seen).sum())
        if found_classes is not None and (problem := _unequal(found_boxes or 0, found_classes)):
            raise ValueError(problem)


def described(
    shards: Sequence[ShardAnnotations], shape: tuple[int | None, ...], names: tuple[str, ...]
) -> dict[str, Feature]:
    """Returns the manifest's features that are located on the image, by name.

    Args:
      shards: counts of all files.
      shape: (height, width, channels) of the images; None for a size that varies.
      names: class names of masks; empty to name classes by their numbers.

    Raises:
      DataError: most boxes or points extend beyond their image, or are in its first pixel, so that they must have
        another convention; or a mask has a class without a name.
    """
    found = {}
    for name, feature in shards[0].features.items():
        if name == MASK:
            found[name] = _mask(shards, feature, shape, feature.class_names or names)
            continue
        if name == BOX_LABELS:
            most, highest = max(shard.most[BOXES] for shard in shards), max(shard.highest for shard in shards)
            classes = feature.class_names or tuple(map(str, range(highest + 1)))
            found[name] = dataclasses.replace(feature, shape=(max(1, most),), class_names=classes)
            continue
        _check_convention(shards, name, feature)
        most = max(shard.most[name] for shard in shards)
        found[name] = dataclasses.replace(feature, shape=(max(1, most), *feature.shape[1:]))
    return found


def _mask(
    shards: Sequence[ShardAnnotations], feature: Feature, shape: tuple[int | None, ...], names: tuple[str, ...]
) -> Feature:
    classes = np.any([shard.classes for shard in shards], axis=0)
    highest = int(np.flatnonzero(classes[:IGNORED]).max(initial=0))
    if names and highest >= len(names):
        raise DataError(
            f"masks have the class {highest}, but there are {count_of(len(names), 'class name')}",
            advice=f"--class_names=FILE names a class per line; pixels of no class have the value {IGNORED}",
        )
    names = names or tuple(map(str, range(highest + 1)))
    return dataclasses.replace(feature, shape=(*shape[:2], 1), class_names=names)


def _check_convention(shards: Sequence[ShardAnnotations], name: str, feature: Feature) -> None:
    count, beyond, tiny = (sum(getattr(s, what)[name] for s in shards) for what in ("counts", "beyond", "tiny"))
    is_relative = feature.convention.startswith(RELATIVE)
    flag = "--box_format" if name == BOXES else "--point_format"
    others = ", ".join(
        sorted(
            CONVENTIONS[name].keys() - {feature.convention}, key=lambda o: (o.startswith(RELATIVE) == is_relative, o)
        )
    )
    if 2 * beyond > count:
        unit = "1, the end of the image" if is_relative else "the image"
        raise DataError(
            f"as {feature.convention}, {beyond:,} of {count:,} {name} reach beyond {unit}",
            advice=f"they have another convention: {flag}={others}",
        )
    if not is_relative and count > 1 and 2 * tiny > count:
        raise DataError(
            f"as {feature.convention}, in pixels, {tiny:,} of {count:,} {name} lie in the first pixel of their image",
            advice=f"they have another convention: {flag}={others}",
        )


def lines(features: Mapping[str, Feature], shards: Sequence[ShardAnnotations]) -> Iterator[str]:
    """Yields lines about the masks, boxes and points that were found."""
    for name, feature in features.items():
        if name == MASK:
            ignored = any(shard.classes[IGNORED] for shard in shards)
            yield f"  mask: {feature.named(name)}, {count_of(len(feature.class_names), 'class', 'classes')}" + (
                f", and pixels of no class ({IGNORED})" if ignored else ""
            )
            continue
        if name == BOX_LABELS:
            yield f"  {name}: {feature.named(name)}, {count_of(len(feature.class_names), 'class', 'classes')}"
            continue
        count, unseen = (sum(getattr(shard, what)[name] for shard in shards) for what in ("counts", "unseen"))
        own = ", ".join(feature.parts) or feature.named(name)
        yield f"  {name}: {own} ({feature.convention}), {count:,}, at most {feature.shape[0]} in a record"
        if unseen:
            yield f"  note: {unseen:,} of {count:,} {name} have no part in their image, and get the weight 0"
