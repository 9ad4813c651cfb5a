"""Chooses, by flags and types, the columns of a table that become image, label, key, split and features."""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
from collections.abc import Collection, Sequence

import pyarrow as pa

from beam_jobs.flag_values import path_pattern
from beam_jobs.sources import placed_columns
from beam_jobs.sources.arrow_types import (
    IMAGE_FIELD,
    class_names,
    element_of,
    image_type,
    kind_of,
    lacks,
    listed,
    plain,
    shown,
)
from beam_jobs.sources.base import LABEL, SourceOptions
from beam_jobs.sources.placed_columns import PlacedColumn
from pipeline.errors import UsageError, to_run
from pipeline.manifest import Feature
from pipeline.records import splits
from pipeline.records.schema import OTHER_DATA, OWN_FEATURES

_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label",)
_LABELS, _KEYS = ("int", "bool", "string"), ("int", "string", "bytes", "fixed")  # kinds of types
_VALUES = ("int", "bool", "time", "string", "bytes", "fixed")  # kinds whose values have one text each
_NUMBERS = ("int", "bool", "float", "decimal")
_GIVEN = ("float32", "int64", "string")  # types that the user can give a kept column


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns to read; equal for two files that are read the same way.

    Attributes:
      image: name of the image column.
      nested: whether the image column is a struct with the field `bytes`.
      label: name of the label column; "" if there is none.
      label_kind: `int`, `bool` or `string`; `float` for labels that are not classes; `boxes` for the classes of an
        image's boxes; `none` for -1.
      key: name of the key column; "" if keys are made of file and row.
      kept: (name, feature) of each other column.
      given: kept columns whose type the user gave: they are converted to it, with rounding for float32.
      has_lists: whether an image has several labels, of this kind.
      separator: text between several labels in one text; "" if they are lists.
      placed: columns of masks, boxes and points.
      doubles: other float64 columns, whose values float32 must hold exactly. Files may differ in these.
    """

    image: str
    nested: bool
    label: str
    label_kind: str
    key: str
    kept: tuple[tuple[str, Feature], ...]
    given: tuple[str, ...] = ()
    has_lists: bool = False
    separator: str = ""
    placed: tuple[PlacedColumn, ...] = ()
    doubles: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    def label_feature(self, classes: int) -> Feature:
        """Returns the feature of the labels: a class, a number, or a value for each of `classes`."""
        is_vector = self.has_lists or self.label_kind == "boxes"
        return Feature("float32") if self.label_kind == "float" else Feature("int64", (classes,) * is_vector)

    @property
    def instead(self) -> str:
        """Flags to give instead if these labels are not classes."""
        found = [] if self.has_lists else ["--float_labels predicts numbers"]
        if self.label_kind == "string" and not self.has_lists:
            found.insert(0, "--label_separator=' ' divides a text into classes")
        return "; ".join([*found, "--label_column=NAME names another column"])

    @property
    def paths(self) -> list[str]:
        """The dotted paths to read: only the field `bytes` of a struct."""
        image = f"{self.image}.{IMAGE_FIELD}" if self.nested else self.image
        read = [image, self.label, self.key, *(name for name, _ in self.kept)]
        return list(dict.fromkeys(name for name in (*read, *(each.column for each in self.placed)) if name))

    @property
    def features(self) -> dict[str, Feature]:
        """The features other than image, label and key."""
        return {**dict(self.kept), **{each.name: each.feature for each in self.placed}}


def resolved(
    path: str,
    schema: pa.Schema,
    options: SourceOptions,
    images: Sequence[str] = _IMAGE_NAMES,
    labels: Sequence[str] = _LABEL_NAMES,
    are_paths: bool = False,
    folders: Collection[str] = (),
) -> SourceOptions:
    """Returns the options with the names of the image, label and split columns: as given, or else the usual names.

    Args:
      path: path of the file, for errors.
      schema: columns of the file.
      options: options that the user gave.
      images, labels: usual names, in order of preference; `File Name` counts as `filename`.
      are_paths: whether the image column holds file paths.
      folders: columns from the names of folders, which are kept unless a flag names them.

    Raises:
      UsageError: no column for images or labels is given and none has a usual name; a column is missing; the image
        column is of another type.
    """
    image = options.image_column or _usual(schema, images)
    if not image:
        kind = "string" if are_paths else "bytes"
        could_be = [each.name for each in schema if kind_of(image_type(each.type)) == kind]
        raise _missing(path, schema, "image", could_be)
    _check_image(path, schema, image, are_paths)
    label = options.label_column or _usual(schema, labels)
    if not label and not options.has_annotations:
        used = (image, options.key_column)
        could_be = [each.name for each in schema if kind_of(plain(each.type)) in _LABELS and each.name not in used]
        raise _missing(path, schema, "label", could_be)
    split = splits.column_of(schema.names, options.split_column)
    for flag, name in (("label_column", label), ("key_column", options.key_column), ("split_column", split)):
        if name:
            type_of(path, schema, flag, name)
    for flag, name in _of_new_splits(options):
        _checked_kind(path, schema, flag, name, _VALUES, "strings, binary, integers, booleans or dates")
    chosen = dataclasses.replace(options, image_column=image, label_column=label, split_column=split)
    of_flags = named(path, schema, chosen)
    kept = (*options.keep_columns, *(name for name in folders if name not in of_flags))
    return dataclasses.replace(chosen, keep_columns=kept)


def _of_new_splits(options: SourceOptions) -> list[tuple[str, str]]:
    """Returns (flag, column) for the columns that new splits are drawn by, other than the label's."""
    given = (("group_by", options.group_by), ("stratify", options.stratify))
    return [(flag, name) for flag, name in given if name not in ("", LABEL) and path_pattern(name) is None]


def named(path: str, schema: pa.Schema, options: SourceOptions) -> list[str]:
    """Returns the names of all columns that `resolved` options name; raises UsageError if one to keep is missing."""
    kept = [name_and_type(schema, text)[0] for text in options.keep_columns]
    for name in kept:
        type_of(path, schema, "keep_columns", name)
    own = [options.image_column, options.label_column, options.key_column, options.split_column]
    own += [name for _, name in _of_new_splits(options)]
    on_images = placed_columns.names(path, schema, options)
    return list(dict.fromkeys(name for name in (*own, *kept, *on_images) if name))


def _usual(schema: pa.Schema, names: Sequence[str]) -> str:
    found = {re.sub(r"[\W_]", "", name.lower()): name for name in reversed(schema.names)}
    return next((name if name in schema.names else found[name] for name in names if name in found), "")


def choose(path: str, schema: pa.Schema, options: SourceOptions, are_paths: bool = False) -> Columns:
    """Returns the columns to read.

    Args:
      path: path of the file, for errors.
      schema: columns of the file.
      options: options from `resolved`.
      are_paths: whether the image column holds file paths.

    Raises:
      UsageError: a flag names a missing column, or one whose type cannot be converted; a kept column is read
        already or has the name of another feature.
    """
    image, label = options.image_column, options.label_column
    nested = _check_image(path, schema, image, are_paths)
    placed = placed_columns.choose(path, schema, options, are_paths)
    label_kind, has_lists = placed_columns.label_kind(placed), False
    if label:
        label_kind, has_lists = _label_kind(path, schema, options)
    if options.key_column:
        _checked_kind(path, schema, "key_column", options.key_column, _KEYS, "strings, binary or integers")
    kept: list[tuple[str, Feature]] = []
    given: list[str] = []
    doubles: list[str] = []
    for text in options.keep_columns:
        name, wanted = name_and_type(schema, text)
        if (
            name in OWN_FEATURES
            or name in {each.name for each in placed}
            or name in (image, label, options.key_column, *(other for other, _ in kept))
        ):
            problem = "every example has that feature" if name in OWN_FEATURES else "that column is already in use"
            raise UsageError(f"--keep_columns: {name!r} cannot be kept: {problem}")
        feature = _feature(path, schema, name, wanted)
        own_names = class_names(schema, name) if feature.dtype == "int64" else ()
        kept.append((name, dataclasses.replace(feature, class_names=own_names)))
        found = plain(schema.field(name).type)
        if wanted:
            given.append(name)
        elif pa.types.is_float64(found if (element := element_of(found)) is None else element):
            doubles.append(name)
    if len({image, label, options.key_column} - {""}) != sum(map(bool, (image, label, options.key_column))):
        raise UsageError(
            f"image, label and key must be three columns, not {image}, {label}, {options.key_column}", path=path
        )
    return Columns(
        *(image, nested, label, label_kind, options.key_column, tuple(kept), tuple(given)),
        has_lists=has_lists,
        separator=options.label_separator,
        placed=placed,
        doubles=tuple(doubles),
    )


def _label_kind(path: str, schema: pa.Schema, options: SourceOptions) -> tuple[str, bool]:
    label, found = options.label_column, plain(type_of(path, schema, "label_column", options.label_column))
    element = element_of(found)
    of_elements = "" if element is None else kind_of(plain(element))
    if of_elements in ("float", "decimal"):
        raise UsageError(
            f"--label_column={label}: {_another_label(schema, options, _LABELS)}: {path} has it as {shown(found)}; a "
            "label is one number per image (--float_labels), or one or several classes (integers or strings); a "
            f"vector per image: write TFRecords, run {to_run('pipeline.index')}, and read it by a trainer.Task "
            "(docs/reading.md)"
        )
    if options.float_labels and options.label_separator:
        raise UsageError("--label_separator: texts between separators are classes; leave out --float_labels, or it")
    if options.float_labels:
        advice = f"leave out --float_labels, or {_another_label(schema, options, _NUMBERS)}"
        must = "one number per image, as --float_labels says"
        _checked_kind(path, schema, "label_column", label, _NUMBERS, must, advice)
        return "float", False
    if options.label_separator:
        advice = f"leave out --label_separator, or {_another_label(schema, options, ('string',))}"
        must = "strings, as --label_separator says, which lists do not need"
        _checked_kind(path, schema, "label_column", label, ("string",), must, advice)
        return "string", True
    if of_elements in ("int", "string"):
        return of_elements, True
    advice = _another_label(schema, options, _LABELS)
    if kind_of(found) in _NUMBERS:
        whole = "write whole numbers that are classes as such (pandas: astype('Int64'))"
        advice = f"give --float_labels to predict numbers, {whole}, or {advice}"
    must = "integers, booleans or strings, or lists of integers or strings"
    return _checked_kind(path, schema, "label_column", label, _LABELS, must, advice), False


def _another_label(schema: pa.Schema, options: SourceOptions, kinds: Sequence[str]) -> str:
    """Returns advice to name another label column: the first unused column of one of these kinds."""
    used = (options.image_column, options.label_column, options.key_column, options.split_column)
    others = [each.name for each in schema if each.name not in used and kind_of(plain(each.type)) in kinds]
    return f"name another column with --label_column={shlex.quote(listed(others[:1])) if others else 'NAME'}"


def _missing(path: str, schema: pa.Schema, what: str, could_be: Sequence[str]) -> UsageError:
    """Returns an error about a file without a column of the usual name; `could_be` lists suitable columns."""
    columns = listed([f"{field.name} ({shown(field.type)})" for field in schema])
    if not could_be:
        return UsageError(f"{path} has no column that could be the {what}; it has {columns}; {OTHER_DATA}")
    near = difflib.get_close_matches(what, could_be, n=1, cutoff=0.5)
    choices = listed([*near, *(name for name in could_be if name not in near)])
    return UsageError(
        f"--{what}_column is missing: {path} has no column {what!r}, but {columns}; the {what} could be {choices}; if "
        f"none is, {OTHER_DATA}"
    )


def type_of(path: str, schema: pa.Schema, flag: str, name: str) -> pa.DataType:
    """Returns the type of the column that a flag names; raises UsageError if there is no such column, or several."""
    count = schema.names.count(name)
    if count == 1:
        return schema.field(name).type
    if count:
        raise UsageError(f"--{flag}={name}: {path} has {count} columns of that name")
    raise UsageError(f"--{flag}: {path} {lacks(schema, name, name)}")


def _check_image(path: str, schema: pa.Schema, name: str, are_paths: bool) -> bool:
    """Returns whether the image column is a struct with the field `bytes`."""
    if are_paths:
        must = "strings, the paths of image files; for a column of the images themselves give --dataset=parquet"
        _checked_kind(path, schema, "image_column", name, ("string",), must)
        return False
    found = type_of(path, schema, "image_column", name)
    if kind_of(image_type(found)) != "bytes":
        raise UsageError(
            f"--image_column={name}: {path} has it as {shown(found)}; it must be binary, the bytes of PNG, JPEG, ... "
            f"files, or a struct with such a field {IMAGE_FIELD!r}; for paths of files give --dataset=image_table"
        )
    return bool(pa.types.is_struct(found))


def _checked_kind(
    path: str, schema: pa.Schema, flag: str, name: str, kinds: Sequence[str], must: str, advice: str = ""
) -> str:
    found = type_of(path, schema, flag, name)
    kind = kind_of(plain(found))
    if kind not in kinds:
        if flag == "label_column" and pa.types.is_nested(found):
            must += f"; {OTHER_DATA}"
        # What to do comes first: paths and types may be long.
        first = f"{advice}: " if advice else ""
        raise UsageError(f"--{flag}={name}: {first}{path} has it as {shown(found)}; it must be {must}")
    return kind


def name_and_type(schema: pa.Schema, text: str) -> tuple[str, str]:
    """Returns the name of a column to keep and the type given, or ""; the name itself may contain a colon."""
    name, colon, wanted = text.rpartition(":")
    if text in schema.names or not colon or name not in schema.names:
        return text, ""
    if wanted not in _GIVEN:
        choices = " or ".join(f"{name}:{kind}" for kind in _GIVEN)
        raise UsageError(f"--keep_columns={text}: must be {name}, {choices}")
    return name, wanted


def _feature(path: str, schema: pa.Schema, name: str, wanted: str) -> Feature:
    """Returns the feature that a column becomes, with the type `wanted` unless that is empty."""
    found = plain(type_of(path, schema, "keep_columns", name))
    if (feature := feature_of(found, wanted)) is not None:
        return feature
    advice = "integers, booleans, floats, lists of them, strings and binary can be kept; write it as one of them"
    if choices := [f"{name}:{type_}" for type_ in _GIVEN if feature_of(found, type_)]:
        advice = f"keep it as {' or '.join(choices)}"
    raise UsageError(f"--keep_columns: {path} has {name!r} as {shown(found)}; {advice}")


def feature_of(found: pa.DataType, wanted: str = "") -> Feature | None:
    """Returns the feature that a type becomes, of the dtype `wanted` unless that is empty; None: it cannot be kept."""
    kind = kind_of(found)
    if kind in _DTYPES and not wanted:
        return Feature(_DTYPES[kind])
    if kind in _CASTS[wanted] and not _has_bytes(found):
        return Feature(wanted)
    element = element_of(found)
    inner = "" if element is None or wanted == "string" else _DTYPES.get(kind_of(plain(element)), "")
    if inner == "string":
        return Feature(inner, (None,)) if not wanted else None
    return Feature(wanted or inner, (found.list_size if kind == "vector" else None,)) if inner else None


def _has_bytes(found: pa.DataType) -> bool:
    """Returns whether lists or structs hold bytes, at any depth, which JSON cannot represent."""
    element = element_of(found)
    inner = [element] if element is not None else [each.type for each in found] if pa.types.is_struct(found) else []
    return any(kind_of(plain(each)) in ("bytes", "fixed") or _has_bytes(plain(each)) for each in inner)


def suspects(schema: pa.Schema, given: str) -> list[str]:
    """Returns the names of columns that may hold splits; `given` is the value of --split_column."""
    texts = [field.name for field in schema if kind_of(plain(field.type)) == "string"]
    return splits.suspects(schema.names, texts, given)


_DTYPES = {  # dtypes of features by Arrow type
    **dict.fromkeys(("int", "bool"), "int64"),
    "float": "float32",
    **dict.fromkeys(("string", "bytes", "fixed"), "string"),
}
_CASTS: dict[str, tuple[str, ...]] = {  # {type that the user gives: kinds of columns that can be converted to it}
    "": (),
    "float32": ("int", "bool", "float", "decimal"),
    "int64": ("int", "bool", "float", "decimal", "time"),
    "string": ("int", "bool", "float", "decimal", "time", "string", "bytes", "fixed", "list", "vector"),  # lists: JSON
}
