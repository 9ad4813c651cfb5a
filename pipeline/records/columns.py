"""Adds columns to a data set from a file, joined by key, from the shards' own features, or from a user's function.

The shards and the data's digest stay unchanged. Files get their final names together at the end, the manifest last.
"""

from __future__ import annotations

import dataclasses
import io
import keyword
import os
import pathlib
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tqdm
from numpy.typing import NDArray

from pipeline import manifest as manifests
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, of_user, unknown
from pipeline.files.paths import LocalPath, alone_in, folder, with_version
from pipeline.files.write import Drafts, drafts_in
from pipeline.manifest import Column, Manifest, croissant, naming, versions
from pipeline.manifest.columns import (
    FROM_RECORDS,
    LONGEST_STRING,
    MOST_STRINGS,
    ORIENTATION,
    column_name,
    column_names,
    encode,
)
from pipeline.records import annotation, tf_example
from pipeline.records.stream import records_of

OfRecord = Callable[[bytes], Mapping[str, Any]]
Values: TypeAlias = list[Any] | NDArray[Any]
_FLAG = "--add_columns"
_KEY = "key"
_FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
_BLOCK = 1 << 16  # most values held as Python objects before they become an array
_SHOW_AFTER = 2.0  # seconds until a progress bar appears


def add(data_dir: str, source: str) -> None:
    """Adds the columns that the flag `--add_columns` names, and prints what was added.

    Args:
      data_dir: folder of the data set.
      source: `FILE.parquet`; `records`, or `records:label,width` for some features; or `FILE.py:FUNCTION`, a function
        of a record's bytes that returns {column: value}.

    Raises:
      DataError: there is no valid data set, a file cannot be read, or values are missing.
      UsageError: `source` cannot work.
    """
    check(source, "--add_columns")
    place, version = with_version(data_dir)
    if version is not None:
        raise UsageError(
            f"{data_dir}: columns are added to the newest version of a data set alone, {place}; the values of older "
            "ones stay as they are"
        )
    with alone_in(pathlib.Path(data_dir)):
        manifest = manifests.load(data_dir)
        kind, _, names = source.partition(":")
        found: Mapping[str, Mapping[str, Any]]
        if kind == FROM_RECORDS:
            wanted = [name.strip() for name in names.split(",") if name.strip()]
            scalars = Scalars(manifest, wanted)
            found = of_records(data_dir, manifest, scalars, None if wanted else scalars.left_out)
            if missing := [name for name in wanted if column_name(name) not in found]:
                raise unknown("--add_columns: feature", missing[0], found)
            for name, why in sorted(scalars.left_out.items()):
                print(f"  {name}: left out, {why}")
            if not wanted:
                found = dict(without_names(found))
        elif match := _FUNCTION.fullmatch(source):
            found = of_records(data_dir, manifest, _function(match["file"], match["name"]))
        else:
            found = _of_file(data_dir, manifest, source)
        made = write(data_dir, manifest, found, is_own=kind != FROM_RECORDS)
        for name in found:
            column = made.columns[name]
            kinds = f"{count_of(len(column.values), 'string')} as {column.dtype}" if column.values else column.dtype
            print(f"  {name}: {kinds}, for {', '.join(column.files)}")
        example = "label" if "label" in found else next(iter(found))
        print(
            f"{data_dir}: {count_of(len(found), 'column')} added; choose by them: input_fn(..., where='{example} ...')"
        )


def without_names(found: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the columns except those with too many strings to select rows by, such as file names."""
    for name, splits in found.items():
        of_texts = [values for values in splits.values() if isinstance(values, list)]
        texts = {value for values in of_texts for value in values if isinstance(value, str | bytes)}
        if len(texts) > MOST_STRINGS:
            print(f"  {name}: left out, has {len(texts):,} different strings; a column has {MOST_STRINGS:,} at most")
        elif any(len(text) > LONGEST_STRING for text in texts):
            print(f"  {name}: left out, has strings of more than {LONGEST_STRING} characters; name it to have it")
        else:
            yield name, splits


def check(source: str, flag: str) -> None:
    """Checks the value of a flag that names the source of columns, as far as possible without the data set.

    Raises:
      UsageError: `add` does not accept it, or it names a file that does not exist.
    """
    match = _FUNCTION.fullmatch(source)
    file = match["file"] if match else source
    if source.partition(":")[0] == FROM_RECORDS:
        return
    if not match and not source.endswith(".parquet"):
        raise UsageError(
            f"{flag}={source}: must be FILE.parquet, {FROM_RECORDS}, {FROM_RECORDS}:NAME,... or FILE.py:FUNCTION"
        )
    if not os.path.isfile(file):
        raise UsageError(f"{flag}={source}: there is no file {file}")


def write(data_dir: str, manifest: Manifest, found: Mapping[str, Mapping[str, Any]], is_own: bool = False) -> Manifest:
    """Writes columns and a manifest that lists them, and returns the manifest. Columns of the same names are replaced.

    Args:
      data_dir: folder of the data set.
      manifest: manifest of the data set.
      found: {column: {split: value of each record}}.
      is_own: whether the values come from a user's file or function.

    Raises:
      DataError: the folder cannot be written to.
      UsageError: a column has values of several kinds.
    """
    place = pathlib.Path(data_dir)
    advice = "columns lie beside the records: make the folder writable, or copy the data set to one that is"
    with drafts_in(place, advice) as drafts:
        made = drafted(drafts, manifest, found, is_own)
        for name, data in {**croissant.files(folder(data_dir), made), naming.MANIFEST: made.to_bytes()}.items():
            drafts.add(name, data)
        drafts.publish(naming.MANIFEST)
    remove_others(place, made)
    return made


def drafted(
    drafts: Drafts, manifest: Manifest, found: Mapping[str, Mapping[str, Any]], is_own: bool = False
) -> Manifest:
    """Adds the files of columns to drafts; returns the manifest that lists them. For other arguments see `write`.

    Raises:
      DataError: the folder cannot be written to.
      UsageError: a column has values of several kinds.
    """
    columns: dict[str, Column] = dict(manifest.columns)
    for name in found:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"column {name!r}: must be a name of letters, digits and _, and no word of Python")
    if ORIENTATION in found and ORIENTATION in manifest.columns and manifest.turns_images:
        raise UsageError(f"column {ORIENTATION!r}: by it images are turned upright; give yours another name")
    for name, splits in found.items():
        try:
            column, files = encode(splits)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"column {name!r}: {error}") from None
        columns[name] = dataclasses.replace(column, is_own=is_own)
        for split, data in files.items():
            drafts.add(naming.column_name(split, name, columns[name].files[split]), data)
    return dataclasses.replace(manifest, columns=columns)


def remove_others(data_dir: pathlib.Path, manifest: Manifest) -> None:
    """Removes column files that neither a manifest nor another version of the data set lists."""
    every = (manifest, *versions.older_in(LocalPath(data_dir)))
    columns = [column for made in every for column in made.columns.items()]
    listed = {naming.column_name(split, name, crc) for name, c in columns for split, crc in c.files.items()}
    for path in (data_dir / naming.COLUMNS).glob("*.npy"):
        if f"{naming.COLUMNS}/{path.name}" not in listed:
            path.unlink(missing_ok=True)


def of_records(
    data_dir: str, manifest: Manifest, of_record: OfRecord, left_out: dict[str, str] | None = None
) -> dict[str, dict[str, Values]]:
    """Returns {column: {split: values}} computed by a function of each record; numbers become an array.

    Args:
      data_dir: folder of the data set.
      manifest: manifest of the data set.
      of_record: function that returns {column: value} for a serialized record, with the same columns for each.
      left_out: output: {column: reason} for columns that not all records have; None makes them an error.

    Raises:
      DataError: a shard is missing, cut short or corrupt, or a record does not have the columns of the others.
    """
    found: dict[str, dict[str, Values]] = {}
    with tqdm.tqdm(
        total=manifest.num_examples, unit=" records", unit_scale=True, delay=_SHOW_AFTER, disable=None
    ) as bar:
        for split, info in manifest.splits.items():
            count, gathered = 0, {name: Gathered() for name in found}
            for shard in info.shards:
                file = folder(data_dir) / shard.file
                for number, (offset, record) in enumerate(records_of(file, shard.compression)):
                    values = _values(of_record, record, file, number, offset)
                    if count == 0 and not gathered:
                        gathered = {name: Gathered() for name in values}
                    odd = sorted(values.keys() ^ gathered.keys())
                    for name in odd:
                        if left_out is None:
                            raise DataError(
                                f"has no value {name!r}, or is the first that has one; every record needs one",
                                path=file,
                                record=number,
                                offset=offset,
                            )
                        left_out.setdefault(name, f"record {number:,} of {shard.file} has no single value of it")
                        gathered.pop(name, None)
                        found.pop(name, None)
                    for name, column in gathered.items():
                        column.append(values[name])
                    count += 1
                bar.update(shard.num_examples)
            if count != info.num_examples:
                raise DataError(f"split {split!r} has {count} records, but the manifest says {info.num_examples}")
            if count:
                for name, column in gathered.items():
                    found.setdefault(name, {})[split] = column.taken()
    if not found:
        raise UsageError("--add_columns: the records have no feature with one number or string each")
    return found


class Gathered:
    """Collects a column's values one by one. Numbers become arrays of at most 8 bytes per value, block by block."""

    def __init__(self, block: int = _BLOCK) -> None:
        self._block = block
        self._arrays: list[NDArray[Any]] = []
        self._rest: list[Any] = []
        self._are_numbers = True

    def append(self, value: Any) -> None:
        """Adds a value."""
        self._rest.append(value)
        if self._are_numbers and len(self._rest) == self._block:
            self._pack()

    def taken(self) -> Values:
        """Returns and forgets the values: an array (n,) if all are numbers, else a list."""
        if self._are_numbers and self._rest:
            self._pack()
        found = np.concatenate(self._arrays) if self._arrays else self._rest
        self._arrays, self._rest = [], []
        return found

    def _pack(self) -> None:
        array = _numbers(self._rest)
        if array is not None:
            self._arrays.append(array)
            self._rest = []
        else:  # strings, or a mistake: `encode`, which sees all values, decides
            self._rest = [value for one in self._arrays for value in one.tolist()] + self._rest
            self._arrays, self._are_numbers = [], False


def _numbers(values: list[Any]) -> NDArray[Any] | None:
    if any(isinstance(value, str | bytes) for value in values):
        return None
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # lists of unequal length
        return None
    # NumPy would join an int64 and a uint64 array into float64.
    is_large = array.dtype == np.uint64 and bool(array.max() >> 63)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or is_large:
        return None
    return array.astype(np.int64) if array.dtype == np.uint64 else array


def _values(of_record: OfRecord, record: bytes, file: object, number: int, offset: int) -> Mapping[str, Any]:
    try:
        found = of_record(record)
    except tf_example.BadExampleError as error:
        raise error.at(file, number, offset) from None
    except (DataError, UsageError):
        raise
    except Exception as error:
        raise DataError(of_user(error), path=file, record=number, offset=offset) from error
    if not isinstance(found, Mapping):
        text = f"the function returned {type(found).__name__}, must be {{column: value}}"
        raise DataError(text, path=file, record=number, offset=offset)
    return found


class Scalars:
    """Extracts an Example's features with one value: `label`, scores, strings; also `bytes`, `height` and `width`.

    For boxes and points it extracts how many the record has.

    Args:
      manifest: manifest of the data set.
      wanted: feature names to extract; empty for all that every record has, except its key.

    Attributes:
      left_out: {feature: reason} for features left out although none are named.

    Raises:
      UsageError: two features would become the same column.
    """

    def __init__(self, manifest: Manifest, wanted: Iterable[str]) -> None:
        self._wanted = list(wanted)
        self._names: list[str] | None = self._wanted or None
        self.left_out: dict[str, str] = {}
        self._known: set[str] = set()
        self._columns = column_names(self._wanted, _FLAG)
        self._features, self._upright = manifest.features, manifest.turns_images
        feature = manifest.features.get("image")
        self._has_sizes = feature is not None and feature.encoding != "raw" and None in feature.shape[:2]
        self._shared: dict[str, Any] = {}  # sides that all images share
        if feature is not None and not self._has_sizes:
            sides = zip(("height", "width"), feature.shape, strict=False)
            self._shared = {name: size for name, size in sides if name in self._wanted and size is not None}

    def __call__(self, record: bytes) -> dict[str, Any]:
        """Returns {column: value} of a serialized Example; raises BadExampleError."""
        try:
            stored = tf_example.decode(record)
            values = tf_example.as_ours(stored, self._features)
        except ValueError as error:
            raise tf_example.BadExampleError(str(error)) from None
        counts = annotation.counts(stored, self._features)
        if self._names is None:
            reasons = {name: _reason(name, value) for name, value in values.items() if name not in counts}
            self._names = sorted(name for name, why in reasons.items() if not why)
            self._columns = column_names(self._names, _FLAG)
            self.left_out |= {name: why for name, why in reasons.items() if why}
            self._known |= values.keys()
        if not self._wanted and (later := values.keys() - self._known):
            self.left_out |= dict.fromkeys(later, "is not in the first record")
            self._known |= later
        found: dict[str, Any] = {"bytes": len(record), **self._shared, **counts}
        if self._has_sizes:
            found["height"], found["width"] = _size(values, self._upright)
        if not self._known:  # the first record, which must have the requested features
            self._known |= values.keys() | found.keys()
            for name in self._wanted:
                if name not in self._known:
                    raise unknown(f"{_FLAG}=records", name, self._known)
        for name in self._names:
            if name in counts or (name in found and name not in values):  # not a feature, but computed here
                continue
            value: Any = values.get(name, [])
            if len(value) != 1 and not self._wanted:
                continue
            if len(value) != 1:
                raise tf_example.BadExampleError(f"feature {name!r} has {len(value)} values; a column needs one")
            found[self._columns[name]] = value[0]
        wanted = self._wanted and {column_name(name) for name in self._wanted}
        return {name: value for name, value in found.items() if not wanted or name in wanted}


def _reason(name: str, value: Any) -> str:
    """Returns why a feature of the first record cannot be a column; empty if it can."""
    if name in (_KEY, "image") or name.endswith("encoded"):
        return f"is {'an image' if name != _KEY else 'the key'}"
    return "" if len(value) == 1 else f"has {count_of(len(value), 'value')} in the first record"


def _size(values: Mapping[str, Any], upright: bool) -> tuple[int, int]:
    """Returns the height and width of a record's image, after rotation if `upright`."""
    import PIL.Image  # noqa: PLC0415, raw images do not need it

    from pipeline import images  # noqa: PLC0415, like Pillow

    try:
        with PIL.Image.open(io.BytesIO(values["image"][0]), formats=("PNG", "JPEG")) as image:
            turn = images.orientation_of(values["image"][0]) if upright else 1
            return images.turned_size((image.height, image.width), turn)
    except (OSError, KeyError, IndexError) as error:
        raise tf_example.BadExampleError(f"its image has no size: {error}") from None


def _function(file: str, name: str) -> OfRecord:
    flag = f"--add_columns={file}:{name}"
    try:
        found = runpy.run_path(file).get(name)
    except Exception as error:
        raise UsageError(f"{flag}: {of_user(error)}") from None
    if not callable(found):
        raise UsageError(f"{flag}: {file} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def _of_file(data_dir: str, manifest: Manifest, file: str) -> dict[str, dict[str, NDArray[Any]]]:
    """Returns the columns of a Parquet file, joined by key.

    Records missing in the file get NaN, False or an empty string; whole numbers have no such value. A split without any
    record in the file gets no values.
    """
    table = _table(file)
    if _KEY not in table or len(table) < 2:
        raise UsageError(
            f"--add_columns={file}: must have a column {_KEY!r} and others; it has {', '.join(table) or 'none'}"
        )
    keys = [_plain(key) for key in table.pop(_KEY)]
    if not keys:
        raise DataError("has no rows", path=file)
    rows = {key: row for row, key in enumerate(keys)}
    if len(rows) < len(keys):
        twice = next(key for row, key in enumerate(keys) if rows[key] != row)
        raise DataError(f"the key {twice!r} is there twice", path=file)
    for name in table:
        if not name.isidentifier():
            raise UsageError(f"--add_columns={file}: the column {name!r} must be a name of letters, digits and _")
    key = manifest.key_feature or _KEY
    index = of_records(data_dir, manifest, lambda record: {_KEY: rows.get(_key_of(record, key), -1)})[_KEY]
    at = {split: rows_of for split, found in index.items() if (rows_of := np.asarray(found, np.int64)).max() >= 0}
    matched = sum(int((found >= 0).sum()) for found in at.values())
    if not matched:
        raise DataError(
            f"none of its {count_of(len(keys), 'key')}, such as {str(keys[0])!r}, is in {data_dir}", path=file
        )
    total = sum(len(found) for found in at.values())
    left = f"{total - matched:,} records of {', '.join(at)} are not in it"
    print(f"{file}: {matched:,} of its {count_of(len(keys), 'key')} match; {left}")
    return {
        name: {split: _joined(file, name, values, rows_of) for split, rows_of in at.items()}
        for name, values in table.items()
    }


def _joined(file: str, name: str, values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    found, is_missing = values[np.maximum(rows, 0)], rows < 0
    if not is_missing.any():
        return found
    kind = found.dtype.kind
    if kind in "iu":
        raise DataError(
            f"column {name!r}: {int(is_missing.sum()):,} records are not in the file, which no whole number can mark",
            path=file,
            advice="give all records, or numbers with a fraction (missing ones become NaN), truth values (False) or "
            "strings (empty)",
        )
    found = found.copy()
    found[is_missing] = np.nan if kind == "f" else False if kind == "b" else ""
    return found


def _table(file: str) -> dict[str, NDArray[Any]]:
    """Returns the columns of a Parquet file as arrays."""
    try:
        import pyarrow.parquet  # noqa: PLC0415, only this flag needs it
    except ImportError:
        raise UsageError(f"--add_columns={file}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        table = pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"is not a Parquet file: {error}".splitlines()[0], path=file) from None
    found = {}
    for name in table.column_names:
        column = table.column(name)
        if column.null_count and name == _KEY:
            raise DataError(f"{count_of(column.null_count, 'row')} without a key", path=file)
        found[name] = column.to_numpy()
        if found[name].dtype.kind == "O":
            found[name] = np.array(["" if value is None else _plain(value) for value in found[name]], object)
    return found


def _plain(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _key_of(record: bytes, name: str) -> str:
    values = tf_example.decode(record, [name]).get(name, [])
    if not isinstance(values, list) or len(values) != 1:
        raise tf_example.BadExampleError("not an Example with one key, by which the file could be joined")
    found: str = _plain(values[0])
    return found
