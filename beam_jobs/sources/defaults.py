"""Values for nulls: `--default=score:0.0`. Only exact values of the column's type are accepted."""

from __future__ import annotations

import dataclasses
import decimal
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.sources import blocks, columns
from beam_jobs.sources.arrow_types import kind_of, plain
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.columns import Columns
from pipeline.commands.text import some_of
from pipeline.errors import UsageError
from pipeline.manifest import Feature
from pipeline.records import labels, splits

_MOST_NAMED = 8  # classes in an error
_NO_NULLS = {"image_column": "an image", "key_column": "a key"}  # values that a row must have itself


@dataclasses.dataclass(frozen=True)
class Fill:
    """The value that nulls of a column become.

    Attributes:
      column: name of the column.
      value: the value.
      words: texts of the column that count as nulls.
    """

    column: str
    value: pa.Scalar
    words: tuple[str, ...] = ()


def named(path: str, schema: pa.Schema, options: SourceOptions) -> dict[str, str]:
    """Returns {column: default as a text}.

    Args:
      path: path of the file, for errors.
      schema: columns of the file.
      options: options from `columns.resolved`.

    Raises:
      UsageError: there is no such column, it has two defaults, or it is not read, so that its default has no effect.
    """
    found: dict[str, str] = {}
    for text in options.default:
        parts = text.split(":")
        starts = (":".join(parts[:end]) for end in range(1, len(parts)))  # a name may contain a colon
        name = next((start for start in starts if start in schema.names), parts[0])
        columns.type_of(path, schema, "default", name)
        for flag, what in _NO_NULLS.items():
            if name == getattr(options, flag):
                problem = f"--default={text}: column {name!r} holds {what}, which each row must have of its own"
                raise UsageError(f"{problem}; a row without one is an invalid row (--max_rejects)")
        if name in found:
            raise UsageError(f"--default={text}: column {name!r} has another default, {found[name]!r}")
        if name not in columns.named(path, schema, options):
            raise UsageError(f"--default={text}: column {name!r} is not read; --keep_columns={name} keeps it")
        found[name] = text[len(name) + 1 :]
    return found


def chosen(
    path: str, schema: pa.Schema, used: Columns, options: SourceOptions, class_names: Sequence[str]
) -> tuple[Fill, ...]:
    """Returns the defaults as values of the columns' types.

    Args:
      path: path of the file, for errors.
      schema: columns of the file.
      used: the columns to read.
      options: options from `columns.resolved`.
      class_names: names of the classes, if labels are their numbers and the names are known.

    Raises:
      UsageError: see `named`; or a default is not a value of its column that shards can hold exactly.
    """
    kept = dict(used.kept)
    fills = []
    for name, text in named(path, schema, options).items():
        found = plain(schema.field(name).type)
        found = pa.large_string() if pa.types.is_string_view(found) else found
        if name == options.split_column:
            is_split = bool(splits.of_value(text.strip(), True))
            fill = _fill(name, text, pa.string(), "" if is_split else "names no split", ("",))
        elif name == used.label:
            fill = _label(name, text, found, used, class_names, options.na_is_class)
        elif name not in kept:  # a column of groups, strata, boxes or points: an empty text is no group
            fill = _fill(name, text, found, "", ("",) if kind_of(found) == "string" else ())
        else:
            fill = _kept(name, text, found, kept[name], name in used.given)
        fills.append(fill)
    return tuple(fills)


def texts(column: pa.ChunkedArray, words: Sequence[str], text: str) -> pa.ChunkedArray:
    """Returns a column of texts with `text` in place of nulls and of some words."""
    is_null = pc.is_in(column, value_set=pa.array([*words, None], column.type))
    return pc.if_else(is_null, pa.scalar(text, column.type), column)


def missing(na_is_class: bool) -> tuple[str, ...]:
    """Returns the texts that stand for a missing label."""
    return ("",) if na_is_class else ("", *labels.MISSING)


def filled(batch: pa.RecordBatch, fills: Sequence[Fill]) -> pa.RecordBatch:
    """Returns a batch with nulls replaced by the defaults, in the columns that it has."""
    for fill in fills:
        if fill.column in batch.schema.names:
            number = batch.schema.names.index(fill.column)
            array = blocks.decoded(batch.column(number))
            if array.type != fill.value.type:  # views of texts, or a text column of splits
                array = array.cast(fill.value.type)
            words = pa.array([*fill.words, None], array.type) if fill.words else None
            is_null = array.is_null() if words is None else pc.is_in(array, value_set=words)
            batch = batch.set_column(number, fill.column, pc.if_else(is_null, fill.value, array))
    return batch


def _label(name: str, text: str, found: pa.DataType, used: Columns, names: Sequence[str], na_is_class: bool) -> Fill:
    if used.has_lists:
        return _fill(name, text, found, "")
    if used.label_kind == "string":
        words = missing(na_is_class)
        return _fill(name, text, found, labels.refusal(text) if text in words else "", words)
    if used.label_kind == "float":
        return _kept(name, text, found, Feature("float32"), True)
    if text in names:
        text = str(names.index(text))
    elif names and not labels.whole_number(text):
        raise UsageError(f"--default={name}:{text}: {text!r} names none of the classes {some_of(names, _MOST_NAMED)}")
    fill = _fill(name, text, found, "")
    number = int(fill.value.as_py())
    if number < 0 or (names and number >= len(names)):
        raise UsageError(f"--default={name}:{text}: must be 0 or more" + f", and below {len(names)}" * bool(names))
    return fill


def _kept(name: str, text: str, found: pa.DataType, feature: Feature, is_given: bool) -> Fill:
    fill = _fill(name, text, found, "")
    if pa.types.is_floating(found) and not is_given and _is_rounded(text, fill.value.as_py()):
        raise UsageError(
            f"--default={name}:{text}: {found} does not hold {text} exactly, but {fill.value.as_py()!r}; give that, or "
            f"--keep_columns={name}:float32, which rounds"
        )
    bad: dict[int, str] = {}
    blocks.kept(pa.repeat(fill.value, 1), name, feature, is_given, bad)
    if bad:
        hint = f"; --keep_columns={name}:float32 rounds" if pa.types.is_floating(found) and not is_given else ""
        raise UsageError(f"--default={name}:{text}: {bad[0]}{hint}")
    return fill


def _is_rounded(text: str, value: float) -> bool:
    exact = decimal.Decimal(text.strip())
    return exact.is_finite() and decimal.Decimal(value) != exact and repr(value) != repr(float(text))


def _fill(name: str, text: str, found: pa.DataType, problem: str, words: tuple[str, ...] = ()) -> Fill:
    if not problem:
        try:
            return Fill(name, _scalar(text, found), words)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            reason = " ".join(str(error).split())[:100]
            form = "a list, as [1, 2]" if pa.types.is_nested(found) else f"{found}, as the column"
            problem = f"is not {form} ({reason})"
    raise UsageError(f"--default={name}:{text}: {text!r} {problem}")


def _scalar(text: str, found: pa.DataType) -> pa.Scalar:
    if pa.types.is_nested(found):
        return pa.scalar(json.loads(text), found)
    if pa.types.is_integer(found):
        text = labels.whole_number(text.strip()) or text.strip()  # 0.0 is a whole number, too
    if kind_of(found) in ("bytes", "fixed"):
        return pa.scalar(text.encode(), found)
    return pa.scalar(text).cast(found)
