"""Flags about masks, boxes and points of existing records, and the features that they name in the first records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import UsageError, unknown
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS, BOXES, CONVENTIONS, MASK
from pipeline.records.annotation import IGNORED
from pipeline.records.schema import DTYPES, image_format, kind


@dataclasses.dataclass(frozen=True)
class AnnotationFlags:
    """Flags about features that are located on the image.

    Attributes:
      box_format, point_format: conventions of boxes and points.
      mask_fill: class of a mask's pixels that recipes move in from outside the image.
    """

    box_format: str = "rel_yxyx"
    point_format: str = "rel_yx"
    mask_fill: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError if the fill is not a mask's class."""
        if not 0 <= self.mask_fill <= IGNORED:
            raise UsageError(f"--mask_fill={self.mask_fill}: must be a class of masks, 0 to {IGNORED}")

    def features(
        self, feature_map: Sequence[tuple[str, str]], records: Sequence[Mapping[str, Any]], file: str
    ) -> dict[str, Feature]:
        """Returns the features that are located on the image, by name, as known from the first Examples of a file.

        Raises:
          UsageError: a flag does not fit the first record.
        """
        named = dict(feature_map)
        if BOX_LABELS in named and BOXES not in named:
            raise UsageError(
                f"--feature_map={BOX_LABELS}:{named[BOX_LABELS]}: needs {BOXES}:FEATURE, whose classes it has"
            )
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
        if name == BOX_LABELS:
            kinds = {kind(record[theirs]) for record in records if len(record.get(theirs, ()))}
            if theirs not in first:
                raise unknown(f"{flag}: {file}", theirs, first)
            if kinds - {"int64"}:
                raise UsageError(
                    f"{flag}: {file}: holds {', '.join(sorted(kinds))}; the classes of boxes must be int64"
                )
            return Feature("int64", (None,), stored_as=theirs, convention="classes")
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
