"""Converts rows of a block to a user function's arguments, and its results to columns of a block, exactly."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from beam_jobs.sources import blocks, columns
from beam_jobs.sources.base import Block, Source
from pipeline import images
from pipeline.commands.text import some_of
from pipeline.errors import line_of
from pipeline.manifest import Feature

IMAGE, LABEL, KEY = "image", "label", "key"
BELOW = b"/"  # separates the key of a row from what distinguishes the rows made from it
_FILES = Feature("uint8", (None, None, None))  # images of any size and format
_MOST_NAMED = 8  # columns in an error


class WrongColumnsError(Exception):
    """A function's result is not a block of rows; the text follows `returns`."""


@dataclasses.dataclass(frozen=True)
class UserColumns:
    """Rows that a function returned.

    Attributes:
      values: {column: values as in `Block`}; labels that are classes are a list of their names, "" where there is none.
        Without rows there are no columns.
      features: {column: feature} of the image and of the columns other than label and key.
      origins: row of the given block that each row was made of, int64 (n,).
      open: columns whose lists are all empty, so that other rows determine the type of their elements.
    """

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    features: dict[str, Feature] = dataclasses.field(default_factory=dict)
    origins: NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    open: frozenset[str] = frozenset()

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Joins rows of one block; raises WrongColumnsError if they differ in their columns."""
        filled = [part for part in parts if part.values]
        if len(filled) < 2:
            return filled[0] if filled else cls()
        features, still_open = alike(filled)
        columns = {name: [part.values[name] for part in filled] for name in filled[0].values}
        values = {
            name: list(itertools.chain(*each)) if isinstance(each[0], list) else np.concatenate(each)
            for name, each in columns.items()
        }
        return cls(values, features, np.concatenate([part.origins for part in filled]), still_open)

    @property
    def checksum(self) -> int:
        """CRC32C of all values."""
        crc = crc32c.crc32c(self.origins.tobytes())
        for name, column in sorted(self.values.items()):
            for value in column if isinstance(column, list) else [column]:
                text = repr(value) if isinstance(value, list) else value
                data = _encoded(name, text) if isinstance(text, str | bytes) else text.tobytes()
                crc = crc32c.crc32c(data, crc32c.crc32c(len(data).to_bytes(8, "little"), crc))
        return crc


def alike(parts: Sequence[UserColumns]) -> tuple[dict[str, Feature], frozenset[str]]:
    """Returns the features of all parts, and the columns that are open in each.

    Raises:
      WrongColumnsError: a column is not the same in two of them.
    """
    features, still_open = dict(parts[0].features), parts[0].open
    for part in parts[1:]:
        for name in sorted(features.keys() | part.features.keys()):
            one, other = features.get(name), part.features.get(name)
            is_open = name in still_open or name in part.open  # one of them has no element that shows the type
            if one is None or other is None or (one != other and not (is_open and one.shape == other.shape == (None,))):
                kinds = [str(each or "nothing") for each in (one, other)]
                raise WrongColumnsError(f"{name!r} as {kinds[0]} for some rows and as {kinds[1]} for others")
            if name in still_open:
                features[name] = other
        still_open &= part.open
    return features, still_open


def has_label(source: Source) -> bool:
    """Returns whether the rows of a source have labels; with masks, boxes or points they need none."""
    return bool(source.class_names) or not source.label.is_class


def given(source: Source, block: Block, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Returns rows of a block, none of them bad, as a function gets them: {column: values (n, ...)}.

    Files are bytes, pixels uint8, texts str, and classes their names. The arrays are copies that it may change.

    Args:
      source: source of the block.
      block: the block.
      rows: int64 (n,).
    """
    chosen = block.part(rows)
    found: dict[str, Any] = {IMAGE: chosen.images, KEY: [_text(bytes(key)) for key in chosen.keys], **chosen.extra}
    if has_label(source):
        is_class = source.label.is_class
        found[LABEL] = [source.class_names[label] for label in chosen.labels] if is_class else chosen.labels
    for name, feature in source.features.items():
        if isinstance(found[name], list) and feature.dtype != "string" and None not in feature.shape:
            found[name] = np.array(found[name], feature.dtype)
        elif isinstance(found[name], list):
            is_text = feature.dtype == "string" and feature.encoding is None
            sides = feature.shape[1:] if feature.convention else ()  # four numbers of each box, two of each point
            found[name] = [_value(value, sides, is_text) for value in found[name]]
    return {name: objects(values) if isinstance(values, list) else values for name, values in found.items()}


def _value(value: Any, sides: tuple[int | None, ...], is_text: bool) -> Any:
    if isinstance(value, bytes):
        return _text(value) if is_text else value
    if is_text:
        return objects([_text(each) for each in value])
    return np.array(value).reshape(-1, *(side or 0 for side in sides))


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """Returns values as an object array (n,), whatever they are."""
    made = np.empty(len(values), object)
    for row, value in enumerate(values):  # assigned together, arrays of one length would add dimensions
        made[row] = value
    return made


def returned(source: Source, block: Block, rows: NDArray[np.int64], found: Any) -> UserColumns:
    """Converts the result of a user's function to columns of a block.

    Args:
      source, block, rows: rows that the function got, as for `given`.
      found: result of the function.

    Raises:
      WrongColumnsError: it is not a dict of equally long columns, lacks a column, or a value cannot be stored exactly.
    """
    if not isinstance(found, Mapping):
        raise WrongColumnsError(f"{type(found).__name__}, not a dict")
    for name in (IMAGE, KEY, *[LABEL] * has_label(source)):
        if name not in found:
            raise WrongColumnsError(f"no {name!r}, but {some_of([*map(repr, found)], _MOST_NAMED)}")
    for name, values in found.items():
        is_named = isinstance(name, str) and name
        if not is_named or not isinstance(values, list | np.ndarray) or not np.shape(values[:0]):
            kind = f"{name!r} as {type(values).__name__}, not as an array or a list of values"
            raise WrongColumnsError(kind if is_named else f"a column called {name!r}; names are texts")
    if len({len(values) for values in found.values()}) > 1:
        each = [f"{name!r} of {len(values)}" for name, values in found.items()]
        raise WrongColumnsError(f"columns of different lengths, {some_of(each, _MOST_NAMED)}")
    if not len(found[KEY]):
        return UserColumns()
    keys = [_encoded(KEY, key) for key in found[KEY]]
    values = {KEY: keys}
    features: dict[str, Feature] = {}
    still_open = set[str]()
    for name in found:
        try:
            if name == LABEL and has_label(source):
                values[name] = _labels(source, found[name])
            elif name == IMAGE:
                features[name], values[name] = _images(source, found[name])
            elif name != KEY:
                features[name], values[name], is_open = _column(name, found[name], source.features.get(name))
                still_open |= {name} if is_open else set()
        except (ValueError, TypeError, OverflowError, NotImplementedError) as error:  # NumPy's or Arrow's
            raise WrongColumnsError(f"{name!r} with values that do not fit ({line_of(error)})") from None
    origins = _origins(keys, {bytes(block.keys[row]): row for row in rows.tolist()})
    return UserColumns(values, features, origins, frozenset(still_open))


def _origins(keys: Sequence[bytes], rows: Mapping[bytes, int]) -> NDArray[np.int64]:
    """Returns the row that each key comes from, int64 (n,), given {key: row} of the rows that the function got."""
    found, seen = [], set[bytes]()
    for key in keys:
        begins = key
        while begins and begins not in rows:
            begins = begins.rpartition(BELOW)[0]
        if begins not in rows or key in seen:
            why = "twice" if key in seen else "of no row that it got, with /more behind it or not"
            raise WrongColumnsError(f"the {KEY} {key.decode(errors='backslashreplace')!r} {why}")
        seen.add(key)
        found.append(rows[begins])
    return np.array(found, np.int64)


def _encoded(name: str, value: Any) -> bytes:
    if not isinstance(value, str | bytes):
        raise WrongColumnsError(f"{name!r} with {type(value).__name__} instead of text")
    return value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)


def _labels(source: Source, values: Any) -> Any:
    """Returns the names of classes, "" where there is none; or an array of the label's feature."""
    if source.label.is_class:
        of_numbers = [str(value) if isinstance(value, int | np.integer) else value for value in values]
        return [_encoded(LABEL, "" if value is None else value).decode() for value in of_numbers]
    array = np.asarray(values, np.float64).astype(source.label.dtype)  # --float_labels rounds
    if array.shape[1:] != source.label.shape:
        raise WrongColumnsError(f"{LABEL!r} as {array.shape[1:]} of each row, not as {source.label}")
    return array


def _images(source: Source, values: Any) -> tuple[Feature, Any]:
    if source.image_shape is None:
        return _FILES, [_file(IMAGE, value) for value in values]
    array = np.stack([*values])
    if array.ndim != 4 or array.dtype != np.uint8:
        raise WrongColumnsError(f"{IMAGE!r} as {array.dtype} {array.shape}, not as uint8 (n, height, width, channels)")
    return Feature("uint8", array.shape[1:], "raw"), array


def _file(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    pixels = value[..., None] if np.ndim(value) == 2 else value
    if getattr(pixels, "dtype", None) != np.uint8 or pixels.ndim != 3:
        raise WrongColumnsError(f"{name!r} with {type(value).__name__}, not with the bytes of a file or uint8 pixels")
    return images.encoded(pixels, "png")


def _column(name: str, values: Any, known: Feature | None) -> tuple[Feature, Any, bool]:
    """Returns (feature, values, whether it is open) of a column; `known` is the source's feature of this name."""
    if known is not None and known.encoding is not None:
        return known, [_file(name, value) for value in values], False
    if known is not None and known.convention:
        return known, [np.asarray(value, known.dtype).ravel() for value in values], False
    shape = np.shape(values)[1:] if isinstance(values, np.ndarray) else ()
    if not shape and len({isinstance(value, bytes) for value in values}) > 1:
        values = [_encoded(name, value) for value in values]
    array = pa.array(values.ravel() if shape else values)
    is_open = array.type == pa.list_(pa.null())  # all lists are empty
    if is_open:
        array = array.cast(pa.list_(pa.string() if known is not None and known.dtype == "string" else pa.float32()))
    feature, bad = columns.feature_of(array.type), dict[int, str]()
    if feature is None or (shape and feature.dtype == "string"):
        raise WrongColumnsError(f"{name!r} as {array.type}{f' {shape}' if shape else ''}")
    found = blocks.kept(array, name, feature, False, bad)
    if bad:
        raise WrongColumnsError(f"{name!r}: {next(iter(bad.values()))}")
    feature = Feature(feature.dtype, shape or feature.shape)
    names = known.class_names if known is not None and dataclasses.replace(known, class_names=()) == feature else ()
    feature = dataclasses.replace(feature, class_names=names)
    values = found.tolist() if found.dtype == object else found.reshape(-1, *shape) if shape else found
    return feature, values, is_open
