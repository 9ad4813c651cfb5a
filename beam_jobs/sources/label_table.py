"""The labels that a table gives to records of a data set, by their keys."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs.sources import columns, loaded
from beam_jobs.sources.table import MAX_CLASSES
from pipeline.commands.text import shape_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature, Manifest
from pipeline.records import labels

KEY, LABEL = "key", "label"  # names of the columns
_FORM = re.compile(rf"{loaded.DECIMAL}|[+-]?(nan|inf)", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_SEPARATOR = ","  # between the classes in one text, if the data set's own labels were not texts


def read(path: StoragePath, made: Manifest) -> tuple[dict[bytes, Any], tuple[str, ...]]:
    """Returns {key: label, as the records of a data set hold it}, and the names of the classes.

    New classes come after the data set's own.

    Args:
      path: path of a table (CSV, TSV, JSON, Parquet) with the columns `key` and `label`.
      made: manifest of the data set.

    Raises:
      DataError: the file cannot be read, or a row has no key, another row's key, or an invalid label.
      UsageError: the table lacks a column, or the data set's labels have a form that tables cannot hold.
    """

    def choose(schema: pa.Schema) -> Sequence[str]:
        for name in (KEY, LABEL):
            columns.type_of(str(path), schema, "set_labels", name)
        return KEY, LABEL

    feature = made.features["label"]
    if feature.shape and (feature.dtype != "int64" or feature.shape != (len(made.class_names),)):
        raise UsageError(
            f"--set_labels: its labels are {feature.dtype} {shape_of(feature.shape)}, which a table cannot give"
        )
    table = loaded.read(path, choose)
    keys, given = (table.column(name).to_pylist() for name in (KEY, LABEL))
    parts = [_parts(value, feature, str(made.options.get("label_separator") or _SEPARATOR)) for value in given]
    if feature.dtype != "float32":  # read 1.0 as 1, as conversions do, if all new names are whole numbers
        whole = labels.as_one_number({text for texts in parts for text in texts}.difference(made.class_names))
        parts = [[whole.get(text, text) for text in texts] for texts in parts]
    names = made.class_names if feature.dtype == "float32" else _class_names(parts, made)
    _check_names(names, made.class_names, path)
    numbers = _Numbers(names, made)
    found: dict[bytes, Any] = {}
    for row, (key, texts, value) in enumerate(zip(keys, parts, given, strict=True)):
        name = key if isinstance(key, bytes) else str("" if key is None else key).encode(errors="surrogateescape")
        problem = "has no key" if not name else f"has the key {key!r} of an earlier row" if name in found else ""
        try:
            found[name] = _label(texts, feature, numbers, value is None)
        except ValueError as error:
            problem = problem or f"has the label {value!r}: {error}"
        if problem:
            raise DataError(problem, path=path, part=f"row {row}", advice="nothing was changed")
    if not found:
        raise DataError("has no rows", path=path)
    return found, names


def _parts(value: Any, feature: Feature, separator: str) -> list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    text = "" if value is None else str(value).strip()
    text = text.lower() if isinstance(value, bool) else text  # conversions name the classes of booleans in lower case
    if isinstance(value, float) and value.is_integer() and feature.dtype == "int64":
        text = str(int(value))  # a column of whole numbers with missing values
    if not feature.shape:
        return [text]
    return [each.strip() for each in text.split(separator) if each.strip()]


def _class_names(parts: Sequence[Sequence[str]], made: Manifest) -> tuple[str, ...]:
    """Returns the classes of a data set, followed by the new ones that labels name."""
    if made.features["label"].shape:  # all records have a value for each class
        return made.class_names
    there, given = made.class_names, {text for texts in parts for text in texts if text}
    if _are_numbers(there):  # classes are all numbers up to the highest
        most = max((int(text) for text in given if _is_number(text)), default=0)
        return tuple(map(str, range(max(len(there), most + 1)))) if most < MAX_CLASSES else there
    if not made.options.get("na_is_class"):
        given -= {*labels.MISSING}
    new = given - {*there}
    return (*there, *labels.in_order(new if _have_numbers(there) else (text for text in new if not _is_number(text))))


def _check_names(names: Sequence[str], there: Sequence[str], path: StoragePath) -> None:
    """Raises DataError if a conversion would refuse a new class's name; prints names that differ only in case."""
    labels.check_lines(names, path)
    for pair in labels.alike(names, as_numbers=True):
        if not {*pair} <= {*there}:
            shown = " and ".join(map(ascii, sorted(pair, key=names.index)))
            problem = f"the classes {shown} look alike (spaces, Unicode's form of a letter, the form of a number)"
            raise DataError(problem, path=path, advice="write them alike; nothing was changed")
    for one, other in labels.alike(names, ignore_case=True):
        if not {one, other} <= {*there}:
            print(f"{path}: the classes {one!r} and {other!r} differ only in case", file=sys.stderr, flush=True)


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii()


def _are_numbers(names: Sequence[str]) -> bool:
    return tuple(names) == tuple(map(str, range(len(names))))


def _have_numbers(names: Sequence[str]) -> bool:
    """Returns whether class names are numbers, but not the classes' own numbers: 1, 3 and 7."""
    return any(map(_is_number, names)) and not _are_numbers(names)


class _Numbers:
    """The numbers of classes, by name, or by number unless another class of the data set has it as its name."""

    def __init__(self, names: Sequence[str], made: Manifest) -> None:
        self._of_names = {name: number for number, name in enumerate(names)}
        self._are_names = _have_numbers(made.class_names)

    def __len__(self) -> int:
        return len(self._of_names)

    def of(self, text: str) -> int:
        """Returns the number of a class; raises ValueError if there is none."""
        number = self._of_names.get(text, int(text) if _is_number(text) and not self._are_names else -1)
        if not 0 <= number < len(self):
            if text in labels.MISSING:
                raise ValueError("a missing value, and not a class of the data set")
            raise ValueError(f"not a class of the data set, which has {len(self):,}" if text else "it is empty")
        return number


def _label(texts: Sequence[str], feature: Feature, numbers: _Numbers, is_null: bool) -> Any:
    if feature.dtype == "float32":
        return _number(texts[0])
    if not feature.shape:
        return numbers.of(texts[0])
    if is_null:
        raise ValueError("it is null; a record without a class has an empty list, or text")
    label = np.zeros(len(numbers), np.int64)
    label[[numbers.of(text) for text in texts]] = 1
    return label


def _number(text: str) -> np.float32:
    """Returns a label that is a number, rounded; in a whole number, such as an id, every digit counts."""
    if not text:
        raise ValueError("it is empty")
    if not _FORM.fullmatch(text):
        raise ValueError("it is not a number")
    with np.errstate(over="ignore"):  # beyond float32: infinite
        value = np.float32(text)
    if not math.isfinite(value):
        raise ValueError("it is not a finite number in float32")
    if _WHOLE.fullmatch(text) and int(value) != int(text):
        raise ValueError("it is not exactly a float32")
    return value
