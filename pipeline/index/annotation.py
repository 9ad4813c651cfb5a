"""Masks, boxes and points of records in place: what a manifest says of them, counted while the files are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, unknown
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOXES, CONVENTIONS, MASK, RELATIVE
from pipeline.records import annotation
from pipeline.records.schema import DTYPES, image_format, kind

_IGNORED = 255  # value of a mask's pixels that stand for no class, as in PASCAL VOC
_SLACK = 0.01  # part of the image's side by which numbers that were rounded reach beyond it


@dataclasses.dataclass(frozen=True)
class AnnotationFlags:
    """Flags about features that lie on the image.

    Attributes:
      box_format, point_format: conventions of boxes and points.
      mask_fill: class of a mask's pixels that recipes move in.
    """

    box_format: str = "rel_yxyx"
    point_format: str = "rel_yx"
    mask_fill: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError if the fill is no class of a mask."""
        if not 0 <= self.mask_fill <= _IGNORED:
            raise UsageError(f"--mask_fill={self.mask_fill}: must be a class of masks, 0 to {_IGNORED}")

    def features(
        self, feature_map: Sequence[tuple[str, str]], records: Sequence[Mapping[str, Any]], file: str
    ) -> dict[str, Feature]:
        """Returns the features that lie on the image, by name, as far as the first records of a file tell.

        Args:
          feature_map: pairs of the flag.
          records: Examples, decoded; at least one.
          file: path of the file, for errors.

        Raises:
          UsageError: a flag does not fit the first record.
        """
        return {name: self._feature(name, theirs, records, file) for name, theirs in feature_map if name in CONVENTIONS}

    def _feature(self, name: str, theirs: str, records: Sequence[Mapping[str, Any]], file: str) -> Feature:
        flag, first = f"--feature_map={name}:{theirs}", records[0]
        if name == MASK:
            if theirs not in first:
                raise unknown(f"{flag}: {file}", theirs, first)
            if kind(first.get(theirs, [])) != "bytes" or len(first[theirs]) != 1:
                raise UsageError(f"{flag}: {file}: a mask must be one value of bytes in each record")
            encoding = "raw" if not image_format(first[theirs][0]) else "png"
            fill = self.mask_fill
            return Feature("uint8", (None, None, 1), encoding, stored_as=theirs, convention="classes", fill=fill)
        convention = self.box_format if name == BOXES else self.point_format
        numbers = CONVENTIONS[name][convention]
        parts = () if theirs in first else tuple(f"{theirs}/{number}" for number in numbers)
        own = parts or (theirs,)
        if missing := [part for part in own if part not in first]:
            what = f"no feature {theirs!r}, and none of {', '.join(missing)}" if parts else f"no feature {theirs!r}"
            raise UsageError(f"{flag}: {file}: the first record has {what}; it has {', '.join(sorted(first))}")
        values = (record[part] for record in records for part in own if len(record.get(part, ())))
        dtype = next((DTYPES[kind(numbers)] for numbers in values), "float32")
        shape = (None, len(numbers))
        return Feature(dtype, shape, stored_as=theirs, convention=convention, parts=parts)


class ShardAnnotations:
    """The masks, boxes and points of one file, counted record by record.

    Args:
      features: their features, by name.
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self.features = features
        self.most = dict.fromkeys(features, 0)
        self.counts = dict.fromkeys(features, 0)
        self.beyond = dict.fromkeys(features, 0)  # boxes and points that reach beyond the image
        self.tiny = dict.fromkeys(features, 0)  # those that lie in its first pixel
        self.unseen = dict.fromkeys(features, 0)  # without visible area
        self.classes = np.zeros(256, bool)  # of masks

    def add(self, values: Mapping[str, Any], size: tuple[int, int]) -> None:
        """Counts the masks, boxes and points of a record.

        Args:
          values: values of the record by feature.
          size: (height, width) of its image as it is decoded.

        Raises:
          ValueError: they cannot be used; says why.
        """
        for name, feature in self.features.items():
            found = annotation.of_record(values, name, feature, size)
            if name == MASK:
                self.classes[found] = True
                continue
            low, high = (found[:, :2], found[:, 2:]) if name == BOXES else (found, found)
            self.most[name] = max(self.most[name], len(found))
            self.counts[name] += len(found)
            self.beyond[name] += int(((low < -_SLACK) | (high > 1 + _SLACK)).any(axis=1).sum())
            self.tiny[name] += int((high * size <= 1).all(axis=1).sum())
            inside = np.clip(high, 0, 1) - np.clip(low, 0, 1)
            seen = inside.min(axis=1) > 0 if name == BOXES else ((found >= 0) & (found <= 1)).all(axis=1)
            self.unseen[name] += int((~seen).sum())


def described(
    shards: Sequence[ShardAnnotations], shape: tuple[int | None, ...], names: tuple[str, ...]
) -> dict[str, Feature]:
    """Returns the features of the manifest that lie on the image, by name.

    Args:
      shards: counts of all files.
      shape: (height, width, channels) of the images; None for a size that varies.
      names: class names of masks; none: their classes are called by their numbers.

    Raises:
      DataError: most boxes or points reach beyond their image, or lie in its first pixel, so that the convention is
        another one; or a mask has a class without a name.
    """
    found = {}
    for name, feature in shards[0].features.items():
        if name == MASK:
            found[name] = _mask(shards, feature, shape, names)
            continue
        _check_convention(shards, name, feature)
        most = max(shard.most[name] for shard in shards)
        found[name] = dataclasses.replace(feature, shape=(max(1, most), *feature.shape[1:]))
    return found


def _mask(
    shards: Sequence[ShardAnnotations], feature: Feature, shape: tuple[int | None, ...], names: tuple[str, ...]
) -> Feature:
    classes = np.any([shard.classes for shard in shards], axis=0)
    highest = int(np.flatnonzero(classes[:_IGNORED]).max(initial=0))
    if names and highest >= len(names):
        raise DataError(
            f"masks have the class {highest}, but there are {count_of(len(names), 'class name')}",
            advice=f"--class_names=FILE names a class per line; pixels of no class have the value {_IGNORED}",
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
    """Yields lines that say which masks, boxes and points were found."""
    for name, feature in features.items():
        if name == MASK:
            ignored = any(shard.classes[_IGNORED] for shard in shards)
            yield f"  mask: {feature.stored_as}, {count_of(len(feature.class_names), 'class', 'classes')}" + (
                f", and pixels of no class ({_IGNORED})" if ignored else ""
            )
            continue
        count, unseen = (sum(getattr(shard, what)[name] for shard in shards) for what in ("counts", "unseen"))
        own = ", ".join(feature.parts) or feature.stored_as
        yield f"  {name}: {own} ({feature.convention}), {count:,}, at most {feature.shape[0]} in a record"
        if unseen:
            yield f"  note: {unseen:,} of {count:,} {name} have no part in their image, and get the weight 0"
