"""Columns of a conversion: collected while a shard is written, kept in its receipt, and joined at the end.

So no shard is read twice, and a killed conversion resumes with the values of the finished shards. Receipts keep every
value that could be a column; `--columns` chooses among them at the end.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    counted,
    encode,
    smallest,
)
from pipeline.records import annotation

_LABEL = "label"
_OF_ANY = (_LABEL, "bytes")  # columns of any data set, except labels that are vectors (`_of_any`)
_SIZES = ("height", "width")
_ONE_VALUE = ((), (1,))  # shapes of features with one value

Packed = dict[str, Any]
Shard = dict[str, Packed]  # {feature: values}


def chosen(columns: str, features: Mapping[str, Feature]) -> dict[str, str] | None:
    """Returns {column: feature} for the columns that --columns names; None for the default columns.

    Args:
      columns: value of the flag: `none`; `records`, or `records:label,width`. A file or a function adds to the default
        columns.
      features: features of the source.

    Raises:
      UsageError: the value is unknown, or two of the features would become the same column.
    """
    kind, _, names = columns.partition(":")
    if kind == NO_COLUMNS:
        return {}
    wanted = [name.strip() for name in names.split(",") if name.strip()] if kind == FROM_RECORDS else []
    scalars = _scalars(features)
    known = (*_of_any(features), *_SIZES, *counted(features), *scalars)
    for name in wanted:
        if name not in known:
            raise unknown("--columns: feature", name, known)
    found = column_names(wanted or scalars, "--columns")
    return {column: name for name, column in found.items()} if wanted else None


def _of_any(features: Mapping[str, Feature]) -> list[str]:
    # A plan's features include the label only if it cannot be a column.
    return [name for name in _OF_ANY if name != _LABEL or _LABEL not in features]


def _scalars(features: Mapping[str, Feature]) -> list[str]:
    return [
        name
        for name, feature in features.items()
        if feature.shape in _ONE_VALUE and feature.encoding is None and name != _LABEL and not name.endswith("encoded")
    ]


def packed(rows: Selected, record_bytes: NDArray[np.int64], features: Mapping[str, Feature]) -> dict[str, Packed]:
    """Returns the values of a shard's rows as a receipt keeps them: {feature: values}, compact and JSON-compatible.

    Args:
      rows: rows of the shard.
      record_bytes: bytes of each record, (n,).
      features: features of the source.
    """
    height, width = rows.recoded.sides(len(record_bytes)).T
    numbers = {"label": rows.rows.labels, "bytes": record_bytes, "height": height, "width": width}
    values = {name: rows.rows.extra[name] for name in _scalars(features)}
    of_strings = {name for name in values if features[name].dtype == "string"}
    found = {name: of_numbers(column) for name, column in numbers.items() if name in (*_of_any(features), *_SIZES)}
    for name in counted(features):
        counts = [annotation.counts({name: each}, features)[name] for each in rows.rows.extra[name]]
        found[name] = of_numbers(np.array(counts, np.int64))
    for name, column in values.items():
        found[name] = _of_strings(column) if name in of_strings else of_numbers(np.asarray(column).reshape(-1))
    return found


def of_numbers(values: NDArray[Any], strings: Sequence[str] = ()) -> Packed:
    """Returns a column's values, given as in its file and manifest entry, in the form of `packed`."""
    file = io.BytesIO()
    np.save(file, values.astype(smallest([values])), allow_pickle=False)
    numbers = {"numbers": base64.b64encode(zlib.compress(file.getvalue(), 1)).decode()}
    return {"strings": list(strings), **numbers} if strings else numbers


def _of_strings(values: Iterable[Any]) -> Packed:
    ones = (value if isinstance(value, bytes) else np.asarray(value, object).reshape(-1)[0] for value in values)
    texts = [bytes(one).decode(errors="surrogateescape") for one in ones]
    names = sorted(set(texts))
    # The number over all shards is checked at the end; this only keeps a single receipt from growing too large.
    if len(names) > MOST_STRINGS or any(len(name) > LONGEST_STRING for name in names):
        return {"too": "many" if len(names) > MOST_STRINGS else "long"}
    codes = {name: code for code, name in enumerate(names)}
    return {"strings": names, **of_numbers(np.array([codes[text] for text in texts], np.int64))}


def sources(columns: str, features: Mapping[str, Feature], are_sized: bool) -> dict[str, str]:
    """Returns {column: name of its values in the receipts} for the columns that the conversion will make.

    Args:
      columns: value of the flag --columns.
      features: features of the source.
      are_sized: whether images vary in size, so that height and width become columns without being named.

    Raises:
      UsageError: see `chosen`.
    """
    if (named := chosen(columns, features)) is not None:
        return named
    own = {column: name for name, column in column_names(_scalars(features), "--columns").items()}
    usual = (*_of_any(features), *counted(features), *(_SIZES if are_sized else ()))
    return dict(sorted({**{name: name for name in usual}, **own}.items()))


def joined(
    columns: str, features: Mapping[str, Feature], of_column: Mapping[str, str], splits: Mapping[str, list[Shard]]
) -> Iterator[tuple[str, Column, dict[str, bytes]]]:
    """Yields the name, manifest entry and files, {split: bytes}, of each column of a data set.

    The values of a column are dropped once they are read, so that a caller that keeps no files has one column in
    memory. Columns with too many or too long strings to select rows by are left out unless they are named.

    Args:
      columns: value of the flag --columns.
      features: features of the source.
      of_column: result of `sources`.
      splits: results of `packed` for the shards of each split, in order; emptied.

    Raises:
      DataError: a named column has too many or too long strings; raised before the first column.
    """
    is_named = chosen(columns, features) is not None
    made = []
    for column, name in of_column.items():
        problem = _problem(shard[name] for shards in splits.values() for shard in shards)
        if problem and is_named:
            raise DataError(
                f"--columns={columns}: {column!r} has {problem}",
                advice="rerun with others; the shards are kept",
            )
        if not problem:
            made.append(column)
    for column in made:
        parts = {split: [shard.pop(of_column[column]) for shard in shards] for split, shards in splits.items()}
        names = sorted({text for shards in parts.values() for part in shards for text in part.get("strings", ())})
        yield column, *encode({split: _unpacked(shards, names) for split, shards in parts.items()}, names)


def _problem(parts: Iterable[Packed]) -> str:
    names: set[str] = set()
    for part in parts:
        if part.get("too") == "long":
            return f"strings of more than {LONGEST_STRING} characters"
        names.update(part.get("strings", ()))
        if part.get("too") or len(names) > MOST_STRINGS:
            return f"more than {MOST_STRINGS:,} different strings"
    return ""


def _unpacked(parts: list[Packed], names: Sequence[str]) -> NDArray[Any]:
    """Returns the values of all shards of a split, emptying `parts`; for strings, their indices in `names`."""
    numbers = {name: number for number, name in enumerate(names)}
    arrays = []
    for part in parts:
        array = np.load(io.BytesIO(zlib.decompress(base64.b64decode(part.pop("numbers")))))
        if "strings" in part:
            array = np.array([numbers[name] for name in part["strings"]], np.int32)[array]
        arrays.append(array)
    return np.concatenate(arrays)


def notes(columns: str, features: Mapping[str, Feature], made: Collection[str]) -> list[str]:
    """Returns notes on features left out because of their strings, and on features that hide a built-in column."""
    scalars, found = _scalars(features), []
    missing: list[str] = []
    if chosen(columns, features) is None:
        missing = [name for name, column in column_names(scalars, "--columns").items() if column not in made]
    if missing:
        found.append(
            f"{count_of(len(missing), 'feature')} without a column ({', '.join(missing)}): more than {MOST_STRINGS:,} "
            f"different strings, or of more than {LONGEST_STRING} characters"
        )
    for name in sorted({*scalars} & {"bytes", *_SIZES} & {*made}):
        kept = "record's bytes" if name == "bytes" else f"image's {name}"
        found.append(f"the column {name!r} has the source's feature of that name, not the {kept}")
    return found
