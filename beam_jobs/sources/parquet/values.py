"""Gathers the columns of Arrow batches into a block, with a reason for each invalid row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources.builder import BlockBuilder
from beam_jobs.sources.parquet.columns import IMAGE_FIELD, Columns
from pipeline.manifest import Feature

_HIGHEST = np.iinfo(np.int64).max


class BatchedBuilder(BlockBuilder):
    """A block that is filled batch by batch, each row at its position."""

    def __init__(
        self, count: int, columns: Columns, class_names: tuple[str, ...], keys: NDArray[np.bytes_] | None
    ) -> None:
        """Starts a block of `count` rows; labels that are strings become their numbers in `class_names`."""
        super().__init__(count, dict(columns.kept), keys=keys)
        self._columns = columns
        self._texts = pa.array(class_names, pa.large_string()) if columns.label_kind == "string" else None

    def put(self, positions: NDArray[np.int64], batch: pa.RecordBatch, rows: NDArray[np.int64]) -> None:
        """Puts rows of a batch, int64 (n,), to positions, int64 (n,).

        Raises:
          ValueError, pyarrow.ArrowException: the values do not have the types that the footer says.
        """
        columns = self._columns
        taken = {name: _taken(batch.column(name), rows) for name in batch.schema.names}
        bad: dict[int, str] = {}
        missing = "has no image bytes (a path is not followed)" if columns.nested else f"{columns.image} is null"
        self.images[positions] = _bytes(taken[columns.image], missing, bad)
        self.labels[positions] = _labels(taken[columns.label], columns, self._texts, bad)
        if columns.key:
            self.keys[positions] = _keys(taken[columns.key], columns.key, bad)
        for name, feature in columns.kept:
            self.extra[name][positions] = _kept(taken[name], name, feature, bad)
        self.bad.update({int(positions[row]): reason for row, reason in bad.items()})


def _taken(array: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    if pa.types.is_struct(array.type):
        array = pc.struct_field(array, IMAGE_FIELD)
    if pa.types.is_binary_view(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.large_binary())  # Arrow cannot take rows of a view
    whole = len(rows) == len(array) and bool((rows[1:] > rows[:-1]).all())
    return decoded(array if whole else array.take(pa.array(rows)))


def _refuse(bad: dict[int, str], rows: NDArray[np.bool_], reason: str) -> None:
    for row in np.flatnonzero(rows).tolist():
        bad.setdefault(row, reason)


def _refuse_nulls(bad: dict[int, str], array: pa.Array, reason: str) -> None:
    if array.null_count:
        _refuse(bad, array.is_null().to_numpy(zero_copy_only=False), reason)


def decoded(array: pa.Array) -> pa.Array:
    """Returns the values of a column, also if it is dictionary-encoded."""
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


def _labels(array: pa.Array, columns: Columns, class_names: pa.Array | None, bad: dict[int, str]) -> NDArray[np.int64]:
    if class_names is None:
        return _integers(array, columns.label, bad)
    array = array.cast(pa.large_string())
    _refuse_nulls(bad, array, f"{columns.label} is null")
    numbers = pc.index_in(array, value_set=class_names).fill_null(-1).to_numpy().astype(np.int64)
    _refuse(bad, numbers < 0, f"{columns.label} is empty")  # only an empty text names no class
    return np.maximum(numbers, 0)


def _keys(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.object_]:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.large_string())
    keys = _bytes(array, f"{name} is null", bad)
    _refuse(bad, keys == b"", f"{name} is empty")
    return keys


def _kept(array: pa.Array, name: str, feature: Feature, bad: dict[int, str]) -> NDArray[Any]:
    if feature.dtype == "string":
        return _bytes(array, f"{name} is null", bad)
    if feature.shape == ():
        return _numbers(array, name, bad)
    _refuse_nulls(bad, array, f"{name} is null")
    return _lists(array, name, bad) if feature.shape == (None,) else _vectors(array, name, bad)


def _numbers(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[Any]:
    if not pa.types.is_floating(array.type):
        return _integers(array, name, bad)
    _refuse_nulls(bad, array, f"{name} is null")
    with np.errstate(over="ignore"):  # beyond float32: infinite
        return array.to_numpy(zero_copy_only=False).astype(np.float32)  # nulls become NaN


def _lists(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[np.object_]:
    offsets = array.offsets.to_numpy()
    values, wrong = _elements(array.values, name)
    for element, reason in wrong.items():
        row = int(np.searchsorted(offsets, element, side="right")) - 1
        if 0 <= row < len(array):  # else it is outside the slice
            bad.setdefault(row, reason)
    out = np.empty(len(array), object)
    for row, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        out[row] = values[start:stop]
    return out


def _vectors(array: pa.Array, name: str, bad: dict[int, str]) -> NDArray[Any]:
    size = array.type.list_size
    values, wrong = _elements(array.values.slice(array.offset * size, len(array) * size), name)
    for element, reason in wrong.items():
        bad.setdefault(element // size, reason)
    return values.reshape(len(array), size)


def _elements(array: pa.Array, name: str) -> tuple[NDArray[Any], dict[int, str]]:
    """Returns the numbers in lists, and {element: reason} of the invalid ones."""
    wrong: dict[int, str] = {}
    return _numbers(array, f"an element of {name}", wrong), wrong
