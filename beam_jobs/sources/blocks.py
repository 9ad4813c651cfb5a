"""Converts Arrow columns into blocks: images, labels, keys and features, each value exact or its row invalid."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources import arrow_types
from beam_jobs.sources.base import BlockBuilder
from beam_jobs.sources.columns import Columns
from pipeline.errors import PipelineError, kind_of
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS, NO_LABEL
from pipeline.records import labels

_MOST_TEXT = 200  # characters of pyarrow's message
_HIGHEST = np.iinfo(np.int64).max


@contextlib.contextmanager
def arrow_errors(path: object, problem: str) -> Iterator[None]:
    """Context manager that turns pyarrow's errors into ours, in one line with the file and the problem."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:  # corrupt files raise pyarrow's kinds, OSError, UnicodeDecodeError, OverflowError, ...
        text = " ".join(str(error).split())
        reason = f"{problem} ({text[:_MOST_TEXT] or type(error).__name__})"
        raise kind_of(error)(reason, path=path) from None


class BatchedBuilder(BlockBuilder):
    """A block that is filled batch by batch, each row at its position."""

    def __init__(
        self, count: int, columns: Columns, class_names: tuple[str, ...], keys: NDArray[np.bytes_] | None
    ) -> None:
        """Makes a block of `count` rows; string labels become their numbers in `class_names`."""
        super().__init__(count, columns.features, keys=keys, label=columns.label_feature(len(class_names)))
        self._columns = columns
        self._classes = len(class_names)
        self._texts = pa.array(class_names, pa.large_string()) if columns.label_kind == "string" else None

    def put(self, positions: NDArray[np.int64], batch: pa.RecordBatch, rows: NDArray[np.int64]) -> None:
        """Writes rows of a batch, int64 (n,), to positions, int64 (n,).

        Raises:
          ValueError, pyarrow.ArrowException: the values do not have the types in the footer.
        """
        columns = self._columns
        nested = {each.column for each in columns.placed} - {columns.image}
        taken = {name: _taken(batch.column(name), rows) for name in batch.schema.names if name not in nested}
        bad: dict[int, str] = {}
        missing = "has no image bytes (a path is not followed)" if columns.nested else f"{columns.image} is null"
        self.images[positions] = _bytes(taken[columns.image], missing, bad)
        for each in (one for one in columns.placed if not one.is_path):  # paths are read later
            for row, value in enumerate(batch.column(each.column).take(pa.array(rows)).to_pylist()):
                try:
                    self.extra[each.name][positions[row]] = each.value(value)
                except ValueError as error:
                    bad.setdefault(row, str(error))
        if columns.label_kind == "none":
            self.labels[positions] = NO_LABEL
        elif columns.label_kind == "boxes":
            self.labels[positions] = self._of_boxes(positions, bad)
        elif columns.has_lists:
            self.labels[positions] = _several(taken[columns.label], columns, self._texts, self._classes, bad)
        elif columns.label_kind == "float":
            self.labels[positions] = _float_labels(taken[columns.label], columns.label, bad)
        else:
            self.labels[positions] = _labels(taken[columns.label], columns.label, self._texts, bad)
        if columns.key:
            self.keys[positions] = _keys(taken[columns.key], columns.key, bad)
        for name, feature in columns.kept:
            self.extra[name][positions] = kept(taken[name], name, feature, name in columns.given, bad)
        self.bad.update({int(positions[row]): reason for row, reason in bad.items()})

    def _of_boxes(self, positions: NDArray[np.int64], bad: dict[int, str]) -> NDArray[np.int64]:
        """Returns, for each row, 1 for each class among its boxes."""
        made = np.zeros((len(positions), self._classes), np.int64)
        for row, position in enumerate(positions.tolist()):
            classes = self.extra[BOX_LABELS][position] if row not in bad else np.zeros(0, np.int64)
            if len(classes) and not 0 <= min(classes) <= max(classes) < self._classes:
                bad[row] = (
                    f"its boxes have the classes {sorted(set(classes.tolist()))}, not all in 0..{self._classes - 1}"
                )
            elif len(classes):
                made[row, classes] = 1
        return made


def _taken(array: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    if pa.types.is_struct(array.type):
        array = pc.struct_field(array, arrow_types.IMAGE_FIELD)
    if pa.types.is_binary_view(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.large_binary())  # Arrow cannot take rows from a view
    whole = len(rows) == len(array) and bool((rows[1:] > rows[:-1]).all())
    return decoded(array if whole else array.take(pa.array(rows)))


def _refuse(bad: dict[int, str], rows: NDArray[np.bool_], reason: str | Callable[[int], str]) -> None:
    for row in np.flatnonzero(rows).tolist():
        bad.setdefault(row, reason if isinstance(reason, str) else reason(row))


def _refuse_nulls(bad: dict[int, str], array: pa.Array, reason: str) -> None:
    if array.null_count:
        _refuse(bad, array.is_null().to_numpy(zero_copy_only=False), reason)


def decoded(array: pa.Array) -> pa.Array:
    """Returns the values of a column, without dictionary encoding."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _bytes(array: pa.Array, missing: str, bad: dict[int, str]) -> NDArray[np.object_]:
    if not pa.types.is_binary(array.type):
        array = array.cast(pa.large_binary())
    if array.null_count:
        _refuse_nulls(bad, array, missing)
        array = array.fill_null(b"")
    values: NDArray[np.object_] = array.to_numpy(zero_copy_only=False)
    return values


def _integers(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.int64]:
    """Returns integers or booleans; 0 in bad rows."""
    _refuse_nulls(bad, array, f"{name} is null")
    values = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64 and len(values) and values.max() > _HIGHEST:
        _refuse(bad, values > _HIGHEST, f"{name} is above {_HIGHEST}, the most that int64 holds")
        values = np.where(values > _HIGHEST, 0, values)
    return values.astype(np.int64)


def _labels(array: pa.Array, name: str, class_names: pa.Array | None, bad: dict[int, str]) -> NDArray[np.int64]:
    if class_names is None:
        return _integers(array, name, bad)
    array = array.cast(pa.large_string())
    _refuse_nulls(bad, array, f"{name} is null")
    numbers = pc.index_in(array, value_set=class_names).fill_null(-1).to_numpy().astype(np.int64)
    _refuse(bad, numbers < 0, lambda row: f"{name} {labels.refusal(array[row].as_py() or '')}")
    return np.maximum(numbers, 0)


def label_lists(array: pa.Array, separator: str) -> pa.Array:
    """Returns the labels of each row as a list; `separator` separates labels within a text, and is empty for lists."""
    if not separator:
        is_vector = pa.types.is_fixed_size_list(array.type)
        return array.cast(pa.list_(array.type.value_type)) if is_vector else array
    parts = pc.split_pattern(array.cast(pa.large_string()), separator)
    texts = pc.utf8_trim_whitespace(parts.values)
    is_text = pc.not_equal(texts, "")
    # "beach  sea" has two labels, and an empty text none.
    counts = np.concatenate([[0], np.cumsum(is_text.to_numpy(zero_copy_only=False))])[parts.offsets.to_numpy()]
    return pa.ListArray.from_arrays(pa.array(counts, pa.int32()), texts.filter(is_text), mask=parts.is_null())


def _several(
    array: pa.Array, columns: Columns, class_names: pa.Array | None, classes: int, bad: dict[int, str]
) -> NDArray[np.int64]:
    """Returns 1 for each class that is in a row's list and 0 for the others, int64 (n, classes)."""
    lists = label_lists(array, columns.separator)
    _refuse_nulls(bad, lists, f"{columns.label} is null")
    rows, wrong = pc.list_parent_indices(lists).to_numpy(), dict[int, str]()
    name = f"an element of {columns.label}"
    numbers = _labels(decoded(lists.flatten()), name, class_names, wrong)
    outside = (numbers < 0) | (numbers >= classes)
    _refuse(wrong, outside, lambda element: f"{name} is {numbers[element]}, not in 0..{classes - 1}")
    for element, reason in wrong.items():
        bad.setdefault(int(rows[element]), reason)
    good = np.setdiff1d(np.arange(len(numbers)), list(wrong))
    out = np.zeros((len(array), classes), np.int64)
    out[rows[good], numbers[good]] = 1
    return out


def _float_labels(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.float32]:
    if pa.types.is_integer(array.type):
        # A fraction is rounded, but in a whole number, such as an id, every digit counts.
        whole = _integers(array, name, bad)
        values = whole.astype(np.float32)
        _refuse(bad, values.astype(np.int64) != whole, lambda row: f"{name} {whole[row]} is not exactly a float32")
        return values
    values = _numbers(array, name, "float32", bad)
    _refuse(bad, ~np.isfinite(values), f"{name} is no finite number")
    return values


def _keys(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.object_]:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.large_string())
    keys = _bytes(array, f"{name} is null", bad)
    _refuse(bad, keys == b"", f"{name} is empty")
    return keys


def is_inexact(values: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Returns which values float32 cannot hold exactly, bool (n,); NaN is exact."""
    with np.errstate(over="ignore"):  # beyond float32: infinite
        different: NDArray[np.bool_] = values.astype(np.float32) != values
    return different & ~np.isnan(values)


def kept(array: pa.Array, name: str, feature: Feature, is_given: bool, bad: dict[int, str]) -> NDArray[Any]:
    """Returns the values of a kept column in its feature's form, and adds rows without a value to `bad`.

    Args:
      array: values of the column.
      name: name of the column.
      feature: feature that the column becomes.
      is_given: whether the user gave the feature's type, so that values are converted to it.
      bad: {row: reason}.
    """
    if feature.dtype == "string" and pa.types.is_nested(array.type) and not feature.shape:
        return _json(array, name, bad)
    if feature.dtype == "string" and feature.shape:
        return _texts(array, name, bad)
    if feature.dtype == "string":
        if is_given and arrow_types.kind_of(array.type) not in ("bytes", "fixed"):
            array = array.cast(pa.large_string())  # a float becomes the shortest text with exactly its value
        return _bytes(array, f"{name} is null", bad)
    dtype = feature.dtype if is_given else ""
    if feature.shape == ():
        return _numbers(array, name, dtype, bad)
    _refuse_nulls(bad, array, f"{name} is null")
    return _lists(array, name, dtype, bad) if feature.shape == (None,) else _vectors(array, name, dtype, bad)


def _texts(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.object_]:
    _refuse_nulls(bad, array, f"{name} is null")
    out = np.empty(len(array), object)
    for row, values in enumerate(array.cast(pa.list_(pa.large_binary())).to_pylist()):
        out[row] = values or []
        if None in out[row]:
            bad.setdefault(row, f"an element of {name} is null")
    return out


def _json(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.object_]:
    """Returns lists as JSON with exact numbers; decimals, dates and times become texts."""
    _refuse_nulls(bad, array, f"{name} is null")
    texts = [json.dumps(value, ensure_ascii=False, default=str).encode() for value in array.to_pylist()]
    return np.array(texts, object)


def _numbers(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[Any]:
    if pa.types.is_decimal(array.type) or pa.types.is_temporal(array.type):
        return _from_objects(array, name, given, bad)
    if not pa.types.is_floating(array.type):
        integers = _integers(array, name, bad)
        return integers.astype(np.float32) if given == "float32" else integers
    _refuse_nulls(bad, array, f"{name} is null")
    values = array.to_numpy(zero_copy_only=False)  # nulls become NaN

    def refuse(rows: NDArray[np.bool_], problem: str) -> None:
        _refuse(bad, rows, lambda row: f"{name} {float(values[row])!r} {problem}")

    if given == "int64":
        whole = (np.floor(values) == values) & (values >= -(2.0**63)) & (values < 2.0**63)
        refuse(~whole, "is not a whole number that int64 holds")
        return np.where(whole, values, 0).astype(np.int64)
    with np.errstate(over="ignore"):  # beyond float32: infinite
        rounded = values.astype(np.float32)
    if given:
        refuse(np.isinf(rounded) & np.isfinite(values), "is beyond float32")
    else:
        refuse(is_inexact(values), "is not exactly a float32")
    return rounded


def _from_objects(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[Any]:
    """Returns decimals, or dates and times as numbers of units, as int64 or float32; 0 in bad rows."""
    _refuse_nulls(bad, array, f"{name} is null")
    if pa.types.is_temporal(array.type):
        units = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())  # days, s, ms, us, ns as stored
        return _integers(units.fill_null(0), name, bad)
    out = np.zeros(len(array), given)
    for row, value in enumerate(array.to_pylist()):
        if value is None:
            continue
        if given == "int64" and (value != value.to_integral_value() or not -_HIGHEST - 1 <= value <= _HIGHEST):
            bad.setdefault(row, f"{name} {value} is not a whole number that int64 holds")
        else:
            with np.errstate(over="ignore"):  # beyond float32: infinite
                out[row] = value
            if given == "float32" and np.isinf(out[row]):
                bad.setdefault(row, f"{name} {value} is beyond float32")
    return out


def _lists(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[np.object_]:
    offsets = array.offsets.to_numpy()
    values, wrong = _elements(array.values, name, given)
    for element, reason in wrong.items():
        row = int(np.searchsorted(offsets, element, side="right")) - 1
        if 0 <= row < len(array):  # otherwise it is outside the slice
            bad.setdefault(row, reason)
    out = np.empty(len(array), object)
    for row, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        out[row] = values[start:stop]
    return out


def _vectors(array: pa.Array, name: str, given: str, bad: dict[int, str]) -> NDArray[Any]:
    size = array.type.list_size
    values, wrong = _elements(array.values.slice(array.offset * size, len(array) * size), name, given)
    for element, reason in wrong.items():
        bad.setdefault(element // size, reason)
    return values.reshape(len(array), size)


def _elements(array: pa.Array, name: str, given: str) -> tuple[NDArray[Any], dict[int, str]]:
    wrong: dict[int, str] = {}
    return _numbers(array, f"an element of {name}", given, wrong), wrong
