"""Columns of a conversion: made of a shard's rows while it is written, kept in its receipt, and joined at the end.

So no shard is read a second time, and a conversion that was killed goes on with the values of the finished shards.
Receipts have all values that could be columns; `--columns` chooses among them at the end.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.examples.selection import Selected
from pipeline.commands.text import count_of
from pipeline.errors import DataError, unknown
from pipeline.manifest import Column, Feature
from pipeline.manifest.columns import (
    FROM_RECORDS,
    LONGEST_STRING,
    MOST_STRINGS,
    NO_COLUMNS,
    column_names,
    encode,
    smallest,
)

_SIZES = ("height", "width")
_ONE_VALUE = ((), (1,))  # shapes

Packed = dict[str, Any]


def chosen(columns: str, features: Mapping[str, Feature]) -> tuple[str, ...] | None:
    """Returns the columns that --columns names; None: all those that every data set gets.

    Args:
      columns: the flag: `none`; `records`, or `records:label,width`. A file or a function adds to all.
      features: the source's own.

    Raises:
      UsageError: there is no such value, or two features would be one column.
    """
    kind, _, names = columns.partition(":")
    if kind == NO_COLUMNS:
        return ()
    wanted = [name.strip() for name in names.split(",") if name.strip()] if kind == FROM_RECORDS else []
    known = {"label": "label", "bytes": "bytes", **{name: name for name in _SIZES}}
    scalars = _scalars(features)
    for name in wanted:
        if name not in (*known, *scalars):
            raise unknown("--columns: feature", name, (*known, *scalars))
    found = column_names(scalars if not wanted else [name for name in wanted if name in scalars], "--columns")
    return tuple((known | found)[name] for name in wanted) if wanted else None


def _scalars(features: Mapping[str, Feature]) -> list[str]:
    return [
        name
        for name, feature in features.items()
        if feature.shape in _ONE_VALUE and feature.encoding is None and not name.endswith("encoded")
    ]


def packed(rows: Selected, record_bytes: NDArray[np.int64], features: Mapping[str, Feature]) -> dict[str, Packed]:
    """Returns what a receipt keeps of a shard's rows: {feature: values}, small and as JSON has it.

    Args:
      rows: of the shard.
      record_bytes: bytes of each record, (n,).
      features: the source's own.
    """
    height, width = rows.recoded.sides(len(record_bytes)).T
    numbers = {"label": rows.rows.labels, "bytes": record_bytes, "height": height, "width": width}
    values = {name: rows.rows.extra[name] for name in _scalars(features)}
    of_strings = {name for name in values if features[name].dtype == "string"}
    found = {name: _of_numbers(column) for name, column in numbers.items()}
    for name, column in values.items():
        found[name] = _of_strings(column) if name in of_strings else _of_numbers(np.asarray(column).reshape(-1))
    return found


def _of_numbers(values: NDArray[Any]) -> Packed:
    file = io.BytesIO()
    np.save(file, values.astype(smallest([values])), allow_pickle=False)
    return {"numbers": base64.b64encode(zlib.compress(file.getvalue(), 1)).decode()}


def _of_strings(values: Iterable[Any]) -> Packed:
    texts = [bytes(_one(value)).decode(errors="surrogateescape") for value in values]
    names = sorted(set(texts))
    # Their number over all shards is checked at the end. One shard must not blow up its receipt.
    if len(names) > MOST_STRINGS or any(len(name) > LONGEST_STRING for name in names):
        return {"too": "many" if len(names) > MOST_STRINGS else "long"}
    codes = {name: code for code, name in enumerate(names)}
    return {"strings": names, **_of_numbers(np.array([codes[text] for text in texts], np.int64))}


def _one(value: Any) -> Any:
    return value if isinstance(value, bytes) else np.asarray(value, object).reshape(-1)[0]


def joined(
    columns: str, features: Mapping[str, Feature], splits: Mapping[str, list[dict[str, Packed]]], are_sized: bool
) -> tuple[dict[str, Column], dict[str, dict[str, bytes]]]:
    """Returns the columns of a data set, and the content of their files, {column: {split: bytes}}.

    Columns of more strings, or longer ones, than one would choose by are left out unless they are named.

    Args:
      columns: the flag --columns.
      features: the source's own.
      splits: of each, what `packed` returned of its shards, in their order.
      are_sized: whether images have several sizes, so that height and width are columns though nobody names them.

    Raises:
      DataError: a named column has too many strings, or too long ones.
    """
    names = chosen(columns, features)
    of_column = {"label": "label", "bytes": "bytes", **{side: side for side in _SIZES if are_sized or names}}
    if names != ():
        of_column |= {column: name for name, column in column_names(_scalars(features), "--columns").items()}
    found: dict[str, Column] = {}
    files: dict[str, dict[str, bytes]] = {}
    for column in sorted(of_column) if names is None else names:
        parts = {split: [shard[of_column[column]] for shard in shards] for split, shards in splits.items()}
        problem = _problem(part for shards in parts.values() for part in shards)
        if problem and names is not None:
            raise DataError(
                f"--columns={columns}: {column!r} has {problem}",
                advice="rerun with others; the shards are kept",
            )
        if not problem:
            found[column], files[column] = encode({split: _unpacked(shards) for split, shards in parts.items()})
    return found, files


def _problem(parts: Iterable[Packed]) -> str:
    names: set[str] = set()
    for part in parts:
        if part.get("too") == "long":
            return f"strings of more than {LONGEST_STRING} characters"
        names.update(part.get("strings", ()))
        if part.get("too") or len(names) > MOST_STRINGS:
            return f"more than {MOST_STRINGS:,} different strings"
    return ""


def _unpacked(parts: list[Packed]) -> Any:
    arrays = [np.load(io.BytesIO(zlib.decompress(base64.b64decode(part["numbers"])))) for part in parts]
    if "strings" not in parts[0]:
        return np.concatenate(arrays)
    return [part["strings"][code] for part, codes in zip(parts, arrays, strict=True) for code in codes.tolist()]


def left_out(columns: str, features: Mapping[str, Feature], made: Collection[str]) -> list[str]:
    """Returns a line for features that have one value, and are no columns because of their strings."""
    if chosen(columns, features) is not None:
        return []
    missing = [name for name, column in column_names(_scalars(features), "--columns").items() if column not in made]
    if not missing:
        return []
    return [
        f"{count_of(len(missing), 'feature')} without a column ({', '.join(missing)}): more than {MOST_STRINGS:,} "
        f"different strings, or of more than {LONGEST_STRING} characters"
    ]
