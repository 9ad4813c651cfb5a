"""Columns: one value per record of each split, in files next to the shards; views choose and weigh records by them.

A column is a `.npy` file per split, which NumPy maps into memory, so that a view costs no more than the columns that it
names. The manifest has each file's CRC32C. Strings are stored as numbers, with their values in the manifest.
"""

from __future__ import annotations

import dataclasses
import io
import keyword
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, UsageError, to_run, unknown
from pipeline.files.paths import PathLike, folder
from pipeline.manifest import naming
from pipeline.manifest.manifest import BOXES, POINTS, Column, Feature, Manifest
from pipeline.manifest.splits import Selection, select

Values = NDArray[Any]
FROM_RECORDS = "records"  # in place of a file: the values are in the shards
NO_COLUMNS = "none"
ORIENTATION = "exif_orientation"  # column: EXIF orientations, if readers rotate (`Manifest.turns_images`)
MOST_STRINGS = 1 << 16  # distinct strings per column; each process reads them with the manifest
LONGEST_STRING = 256  # most characters of a string in a column that nobody asked for by name
_NOT_IDENTIFIER = re.compile(r"\W")
_INTEGERS = ("int8", "int16", "int32", "int64")
_HEADER = 1 << 10  # most bytes of a file's header
_MADE_BY = to_run("pipeline.index") + " {} --add_columns=" + FROM_RECORDS


def column_name(feature: str) -> str:
    """Returns the column name of a feature: `image/height` becomes `image_height`."""
    found = _NOT_IDENTIFIER.sub("_", feature)
    found = f"_{found}" if found[:1].isdigit() else found
    return f"{found}_" if keyword.iskeyword(found) else found


def column_names(features: Iterable[str], flag: str) -> dict[str, str]:
    """Returns {feature: name of its column}; `flag` is the flag that selects columns, for the message.

    Raises:
      UsageError: two features would become the same column.
    """
    found: dict[str, str] = {}
    for feature in dict.fromkeys(features):
        name = column_name(feature)
        other = next((other for other, theirs in found.items() if theirs == name), None)
        if other is not None:
            value = shlex.quote(f"{FROM_RECORDS}:label,{feature}")
            raise UsageError(
                f"features {other!r} and {feature!r}: both would be the column {name!r}; name one of them: "
                f"{flag}={value}"
            )
        found[feature] = name
    return found


def counted(features: Mapping[str, Feature]) -> list[str]:
    """Returns the features, boxes and points, whose columns hold how many a record has."""
    return [name for name in (BOXES, POINTS) if name in features and features[name].convention]


def encode(splits: Mapping[str, Sequence[Any] | Values], names: Sequence[str] = ()) -> tuple[Column, dict[str, bytes]]:
    """Returns a column, and the content of its file for each split.

    Args:
      splits: {split: value of each record}: numbers, truth values, or strings.
      names: sorted strings that the numbers stand for, all of which occur; empty if the numbers are values.

    Raises:
      ValueError: the values are of several kinds, or of another kind.
    """
    arrays = {split: _array(values) for split, values in splits.items()}
    kinds = {array.dtype.kind for array in arrays.values()}
    if kinds <= set("OUS"):
        texts = {split: [_text(value) for value in array.tolist()] for split, array in arrays.items()}
        names = sorted(set().union(*map(set, texts.values())))
        if len(names) > MOST_STRINGS:
            raise ValueError(f"{len(names):,} different strings, at most {MOST_STRINGS:,}, which the manifest lists")
        codes = {name: code for code, name in enumerate(names)}
        arrays = {split: np.array([codes[text] for text in found], np.int64) for split, found in texts.items()}
    elif not kinds <= set("biuf"):
        raise ValueError("values must be numbers, truth values or strings, all of one kind")
    dtype = smallest(list(arrays.values()))
    files = {split: _npy(array.astype(dtype)) for split, array in arrays.items()}
    return Column(dtype, {split: f"{crc32c.crc32c(data):08x}" for split, data in files.items()}, tuple(names)), files


def _array(values: Sequence[Any] | Values) -> Values:
    # NumPy would turn numbers among strings into strings, cut bytes off at trailing zeros, and give each string as
    # much memory as the longest.
    are_numbers = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
    are_texts = not are_numbers and any(isinstance(value, str | bytes) for value in values)
    array = np.array(list(values), object) if are_texts else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"each record needs one value, not {array.shape[1:]}")
    return array


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string, as other values are")
    return value


def smallest(arrays: Sequence[Values]) -> str:
    """Converts values to the smallest type that holds them all exactly, including float64 to float32.

    Raises:
      ValueError: a whole number is not in the range of a signed 64-bit integer.
    """
    if any(array.dtype.kind == "f" for array in arrays):
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, so that it differs
            single = all(np.array_equal(array, array.astype(np.float32), equal_nan=True) for array in arrays)
        return "float32" if single else "float64"
    least = min((int(array.min()) for array in arrays if array.size), default=0)
    most = max((int(array.max()) for array in arrays if array.size), default=0)
    for name in _INTEGERS:
        if np.iinfo(name).min <= least and most <= np.iinfo(name).max:
            return name
    raise ValueError(f"{most if most > 0 else least} is not in the range of a signed 64-bit integer")


def _npy(values: Values) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(values), version=(1, 0), allow_pickle=False)
    return file.getvalue()


@dataclasses.dataclass(frozen=True)
class Columns(Mapping[str, Values]):
    """The columns of a selection, read on demand: `columns["label"]` has one value per record id.

    `height` and `width` need no file if all images have one size.

    Attributes:
      data_dir: folder of the data set.
      manifest: manifest of the data set.
      selection: records of the selection.
      used: {name: CRC32Cs} of the columns that were read.
    """

    data_dir: PathLike
    manifest: Manifest
    selection: Selection
    used: dict[str, str] = dataclasses.field(default_factory=dict)
    _read: dict[str, Values] = dataclasses.field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self.manifest.columns, *self._fixed()}))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Values:
        """Returns the values of a column, (records,), of the column's dtype; strings as their codes.

        Raises:
          DataError: a file of the column is missing, cut, or from another conversion.
          UsageError: there is no such column.
        """
        if name in self._read:
            return self._read[name]
        if name in self.manifest.columns:
            found = self._selected(name, self.manifest.columns[name])
        elif name in self._fixed():
            found = np.broadcast_to(np.int64(self._fixed()[name]), self.selection.num_examples)
        else:
            raise self.unknown(name)
        self._read[name] = found
        return found

    def unknown(self, name: str) -> UsageError:
        """Returns the error for a column that does not exist; it lists the existing ones."""
        if not self.manifest.columns:
            return UsageError(
                f"column {name!r}: the data set has no columns",
                advice=f"write those of its features with: {_MADE_BY.format(os.fspath(self.data_dir))}",
            )
        return unknown("column", name, self)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Returns the meanings of a column's values 0, 1, ...: strings, or class names; empty for numbers."""
        if name not in self.manifest.columns:
            return ()
        feature = self.manifest.features.get(name)
        of_feature = feature.class_names if feature else ()
        return self.manifest.columns[name].values or (self.manifest.class_names if name == "label" else of_feature)

    def is_text(self, name: str) -> bool:
        """Whether a column has strings."""
        return name in self.manifest.columns and bool(self.manifest.columns[name].values)

    def name_of(self, record: int) -> str:
        """Names a record of the selection for a message."""
        file, row = self.selection.locate(record)
        return f"record {row} of {file}"

    def _fixed(self) -> dict[str, int]:
        feature = self.manifest.features.get("image")
        sides = zip(("height", "width"), feature.shape if feature else (), strict=False)
        return {name: side for name, side in sides if side is not None and name not in self.manifest.columns}

    def _selected(self, name: str, column: Column) -> Values:
        """Returns the values of the selection's records; a whole split shares the memory of the file."""
        splits = self.manifest.splits.items()
        places = {file: (split, first) for split, info in splits for file, first in info.firsts.items()}
        parts: list[tuple[str, int, int]] = []  # split, first record, end
        for segment in self.selection.segments:
            split, first = places[segment.shard.file]
            start, stop = first + segment.start, first + segment.stop
            if parts and parts[-1][0] == split and parts[-1][2] == start:
                parts[-1] = split, parts[-1][1], stop
            else:
                parts.append((split, start, stop))
        files = {}
        for split in dict.fromkeys(split for split, _, _ in parts):
            if split not in column.files:
                raise UsageError(f"column {name!r}: has no values for the split {split!r}")
            files[split] = _load(self.data_dir, self.manifest, split, name, column)
        self.used[name] = "+".join(column.files[split] for split in files)
        if column.values:  # the files only have their numbers
            text = "\0".join(column.values).encode(errors="surrogateescape")
            self.used[name] += f" of {crc32c.crc32c(text):08x}"
        found = [files[split][start:stop] for split, start, stop in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)


def numbers(data_dir: PathLike, manifest: Manifest) -> dict[str, dict[str, Values]]:
    """Returns {column: {split: number of each record}} for the quantities shown as numbers, if they have columns.

    These are labels to predict, and the counts of boxes and points. Splits without labels are left out.

    Raises:
      DataError: a file of the column is missing, cut, or from another conversion.
    """
    label = manifest.features.get("label")
    shown = ["label"] if label is not None and label.dtype == "float32" and not label.shape else []
    shown += [name for name in counted(manifest.features) if name in manifest.columns]
    found = {}
    for name in shown:
        column = manifest.columns.get(name)
        if column is not None and (name == "label" or not column.is_own):
            splits = [split for split in manifest.splits if split in column.files]
            found[name] = {split: Columns(data_dir, manifest, select(manifest, split))[name] for split in splits}
    return {name: splits for name, splits in found.items() if splits}


def values_of(data_dir: PathLike, split: str, name: str, column: Column, first: int, stop: int) -> Values | None:
    """Returns some values of a column without reading its whole file or checking its CRC32C.

    Args:
      data_dir: folder of the data set.
      split: split of the records.
      name: name of the column.
      column: entry of the column in the manifest.
      first: first record, counted in the split.
      stop: number of the record after the last.

    Returns:
      Values, (stop - first,), as in `Columns`; None if the file is missing, cut, or not this column's.
    """
    try:
        with (folder(data_dir) / naming.column_name(split, name, column.files[split])).open_file() as opened:
            head = io.BytesIO(bytes(opened.read_at(0, min(_HEADER, opened.identity().num_bytes))))
            np.lib.format.read_magic(head)
            shape, _, dtype = np.lib.format.read_array_header_1_0(head)
            if len(shape) != 1 or shape[0] < stop or dtype.name != column.dtype:
                return None
            data = opened.read_at(head.tell() + first * dtype.itemsize, (stop - first) * dtype.itemsize)
            return np.frombuffer(bytes(data), dtype)
    except (DataError, ValueError, KeyError):
        return None


def _load(data_dir: PathLike, manifest: Manifest, split: str, name: str, column: Column) -> Values:
    """Returns a column's values for a split, mapped into memory if the file is local."""
    parent = folder(data_dir)
    file = parent / naming.column_name(split, name, column.files[split])
    advice = f"add the column again: {_MADE_BY.format(os.fspath(data_dir))} (or the file that it came from)"
    if name == ORIENTATION:  # not a feature of the records
        advice = "copy it again, or index the files again with --overwrite; by it images are turned upright"
    try:
        with file.open_file() as opened:
            if parent.is_remote:
                data = bytes(opened.read_at(0, file.identity().num_bytes))
            crc = f"{crc32c.crc32c(data):08x}" if parent.is_remote else opened.crc32c()
    except DataError as error:
        raise error.changed(reason=f"the manifest lists this column, but it {error.reason}").advised(advice) from None
    if crc != column.files[split]:
        raise DataError(
            f"its CRC32C is {crc}, not {column.files[split]} as the manifest says: cut, or of another conversion",
            path=file,
            advice=advice,
        )
    try:
        count = manifest.splits[split].num_examples
        # NumPy cannot map an empty array.
        found = np.load(io.BytesIO(data)) if parent.is_remote else np.load(str(file), mmap_mode="r" if count else None)
    except ValueError as error:
        raise DataError(f"is not a column: {error}", path=file, advice=advice) from None
    if found.shape != (count,) or found.dtype.name != column.dtype:
        raise DataError(
            f"has {found.dtype} of shape {found.shape}, but the manifest says {column.dtype} for {count} records",
            path=file,
            advice=advice,
        )
    return found
