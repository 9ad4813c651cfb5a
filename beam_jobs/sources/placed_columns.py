"""Columns of a table with boxes, their classes, points and masks: which ones flags name, and what values mean.

A column may also be a field of a struct (`objects.bbox`) or of structs in a list, as in Hugging Face's data sets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs.sources.arrow_types import IMAGE_FIELD, class_names, element_of, image_type, kind_of, lacks, shown
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import UsageError
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS, BOXES, CONVENTIONS, MASK, POINTS
from pipeline.records import labels

_DEFAULTS = {BOXES: "rel_yxyx", POINTS: "rel_yx"}
_FLAGS = {BOXES: "boxes_column", BOX_LABELS: "box_labels_column", POINTS: "points_column", MASK: "mask_column"}
_NEEDS = {  # {flag: flag that it requires}
    "box_format": "boxes_column",
    "box_labels_column": "boxes_column",
    "point_format": "points_column",
    "mask_fill": "mask_column",
    "mask_dir": "mask_column",
}
_SHOWN = 80  # characters of a value in reasons


@dataclasses.dataclass(frozen=True)
class PlacedColumn:
    """A column whose values lie on the image.

    Attributes:
      name: name of the feature: `mask`, `boxes`, `box_labels` or `points`.
      path: names of the column and of nested fields.
      feature: the source's feature.
      has_texts: whether the classes of boxes are names.
      is_path: whether masks are files that the column names.
    """

    name: str
    path: tuple[str, ...]
    feature: Feature
    has_texts: bool = False
    is_path: bool = False

    @property
    def column(self) -> str:
        """Name of the column to read."""
        return self.path[0]

    def value(self, stored: Any) -> Any:
        """Returns the value of a row, as a block has it: bytes of a mask, classes int64 (n,), numbers float32 (n,).

        Args:
          stored: value of the whole column, as Python objects.

        Raises:
          ValueError: the value is missing or invalid; the message gives the reason.
        """
        found, named = at(stored, self.path[1:]), ".".join(self.path)
        if found is None:
            raise ValueError(
                f"{named} is null; a row without any has an empty list" if self.name != MASK else f"{named} is null"
            )
        if self.name == MASK:
            return found[IMAGE_FIELD] or b"" if isinstance(found, dict) else bytes(found)
        if None in found:
            raise ValueError(f"{named} has a null in it")
        if self.name == BOX_LABELS:
            numbers = {text: number for number, text in enumerate(self.feature.class_names)}
            for text in found if self.has_texts else ():
                if text not in numbers:
                    raise ValueError(f"an element of {named} {labels.refusal(text)}")
            return np.array([numbers[text] for text in found] if self.has_texts else found, np.int64)
        count = len(CONVENTIONS[self.name][self.feature.convention])
        for number, each in enumerate(found):
            if isinstance(each, list | tuple) and (len(each) != count or None in each):
                raise ValueError(f"{named}, number {number}, is {str(each)[:_SHOWN]}, not {count} numbers")
        return np.array(found, np.float64).astype(np.float32).ravel()


def at(value: Any, fields: Sequence[str]) -> Any:
    """Returns a field of a value: of a struct, or of each struct in a list."""
    for number, field in enumerate(fields):
        if value is None:
            return None
        if isinstance(value, list):
            return [at(each, fields[number:]) for each in value]
        value = value[field]
    return value


def names(path: str, schema: pa.Schema, options: SourceOptions) -> list[str]:
    """Returns the columns to read for the flags; raises UsageError if one is missing."""
    return [_path(path, schema, flag, text)[0] for flag, text, _ in _given(options)]


def choose(path: str, schema: pa.Schema, options: SourceOptions, are_paths: bool) -> tuple[PlacedColumn, ...]:
    """Returns the columns that flags name.

    Args:
      path: path of the file, for errors.
      schema: columns of the file.
      options: options of the source.
      are_paths: whether the table has paths of files, for masks too.

    Raises:
      UsageError: a column is missing or has the wrong type; a flag needs another one.
    """
    check_needs(options)
    return tuple(_column(path, schema, options, are_paths, *given) for given in _given(options))


def check_needs(options: SourceOptions) -> None:
    """Raises UsageError if a flag is given without the flag that it requires."""
    for flag, needed in _NEEDS.items():
        if getattr(options, flag) not in ("", None) and not getattr(options, needed):
            raise UsageError(f"--{flag}={getattr(options, flag)}: needs --{needed}=NAME")


def label_kind(placed: Sequence[PlacedColumn]) -> str:
    """Returns the kind of labels in a table without a label column."""
    return "boxes" if any(each.name == BOX_LABELS for each in placed) else "none"


def _given(options: SourceOptions) -> Iterator[tuple[str, str, str]]:
    """Yields (flag, its value, feature) of the flags that are given."""
    for name, flag in _FLAGS.items():
        if text := getattr(options, flag):
            yield flag, text, name


def _path(path: str, schema: pa.Schema, flag: str, text: str) -> tuple[str, ...]:
    parts = text.split(".")
    for count in range(len(parts), 0, -1):
        if (name := ".".join(parts[:count])) in schema.names:
            return (name, *parts[count:])
    raise UsageError(f"--{flag}: {path} {lacks(schema, text, parts[0])}")


def _column(
    path: str, schema: pa.Schema, options: SourceOptions, are_paths: bool, flag: str, text: str, name: str
) -> PlacedColumn:
    parts = _path(path, schema, flag, text)
    found = _type(path, schema.field(parts[0]).type, flag, parts)
    if name == MASK:
        return _mask(path, options, are_paths, parts, found)
    inner = element_of(found)
    if name == BOX_LABELS:
        has_texts = inner is not None and kind_of(inner) == "string"
        if inner is None or kind_of(inner) not in ("string", "int"):
            raise _wrong(path, flag, text, found, "a list of strings or integers, one for each box")
        known = class_names(schema, *parts) if not has_texts else ()
        return PlacedColumn(name, parts, Feature("int64", (None,), class_names=known, convention="classes"), has_texts)
    nested = None if inner is None else element_of(inner)
    numbers = inner if nested is None else nested
    if numbers is None or not (kind_of(numbers) in ("int", "float") or pa.types.is_null(numbers)):
        count = "four" if name == BOXES else "two"
        raise _wrong(path, flag, text, found, f"a list with {count} numbers for each of the {name}")
    convention = (options.box_format if name == BOXES else options.point_format) or _DEFAULTS[name]
    shape = (None, len(CONVENTIONS[name][convention]))
    return PlacedColumn(name, parts, Feature("float32", shape, convention=convention))


def _mask(
    path: str, options: SourceOptions, are_paths: bool, parts: tuple[str, ...], found: pa.DataType
) -> PlacedColumn:
    feature = Feature("uint8", (None, None, 1), "png", convention="classes", fill=options.mask_fill or 0)
    inner = found if are_paths else image_type(found)  # Arrow cannot take rows of view types
    fits = kind_of(inner) == ("string" if are_paths else "bytes") and not pa.types.is_binary_view(inner)
    if not fits or (are_paths and len(parts) > 1):
        what = "strings, the paths of PNG files" if are_paths else "binary, the bytes of PNG files"
        raise _wrong(path, "mask_column", ".".join(parts), found, what)
    return PlacedColumn(MASK, parts, feature, is_path=are_paths)


def _type(path: str, found: pa.DataType, flag: str, parts: Sequence[str]) -> pa.DataType:
    """Returns the type of a field; for a field of structs in a list, a list of that type."""
    for number, field in enumerate(parts[1:], 1):
        inner = element_of(found)
        if inner is not None:
            return pa.list_(_type(path, inner, flag, parts[number - 1 :]))
        if not pa.types.is_struct(found) or found.get_field_index(field) < 0:
            known = ", ".join(each.name for each in found) if pa.types.is_struct(found) else str(found)[:_SHOWN]
            raise UsageError(f"--{flag}: {path}: {'.'.join(parts[:number])!r} has no field {field!r}; it has {known}")
        found = found.field(field).type
    return found


def _wrong(path: str, flag: str, text: str, found: pa.DataType, must: str) -> UsageError:
    return UsageError(f"--{flag}={text}: {path} has it as {shown(found)}; it must be {must}")
