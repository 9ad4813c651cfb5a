"""Reads columns of tables (CSV, TSV, JSON, Parquet) into memory; text that looks like numbers stays text.

Text may be gzipped. It is unpacked as a stream, from the beginning: a table is read whole anyway.
Formats: https://www.rfc-editor.org/rfc/rfc4180 (CSV), https://jsonlines.org, https://www.rfc-editor.org/rfc/rfc8259
(JSON), https://parquet.apache.org/docs.
"""

from __future__ import annotations

import codecs
import contextlib
import decimal
import functools
import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from beam_jobs.sources import streams
from beam_jobs.sources.arrow_types import kind_of
from beam_jobs.sources.blocks import arrow_errors, decoded
from beam_jobs.sources.image_files import IMAGES, extension_of
from beam_jobs.sources.listing import GZIP
from beam_jobs.sources.parquet import ParquetFile
from beam_jobs.sources.table import SHOWN
from pipeline.commands.text import count_of
from pipeline.errors import DataError
from pipeline.files.paths import StoragePath
from pipeline.records import labels

_TSV = ".tsv"
TEXTS = (".csv", _TSV)
_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"
SUFFIXES = (*TEXTS, *_LINES, _PARQUET)
_ARRAY = b"["  # begins a JSON file that is one list of objects; no line of JSON lines begins so
_DELIMITERS = ",\t;|"
_LONGEST = 16 << 20  # 16 MiB: longest line of JSON, object of a JSON list, or line of column names
_LINES_AT_ONCE = 1 << 14  # lines held as Python objects
_UTF16_MARKS = b"\xff\xfe", b"\xfe\xff"
_ENCODING = "save it as UTF-8 (in Excel: CSV UTF-8)"
_WHOLE = r"^-?(0|[1-9][0-9]*)$"
_WHOLE_VALUE = r"^[+-]?[0-9]+(\.0*)?$"  # also as pandas writes it: 7.0
_MAYBE_INEXACT = r"([0-9]\.?){16}|[eE]"  # numbers that float64 may not hold exactly; with fewer digits it does
NO_NUMBER = "which is no number"
_DIGITS = 17  # significant digits that tell all float64 values apart
DECIMAL = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_NUMBER = rf"^{DECIMAL}$|^-?([nN][aA][nN]|[iI]nf)$"
_AS_TEXT = "write larger numbers than int64 holds as strings"
_SPACE = re.compile(r"[ \t\r\n]*")
_ONE_LIST = "a JSON file is one list of objects, [{...}, {...}], or has one object on each line"
_CODE = r"^[+-]?0[0-9]"  # a number with leading zeros, such as 007, is a name

Choose = Callable[[pa.Schema], Sequence[str]]


def suffix_of(name: str) -> str:
    """Returns the suffix of `SUFFIXES` that tells the format of a table, without `.gz`; "" if there is none."""
    plain = name.lower().removesuffix(GZIP)
    suffix = os.path.splitext(plain)[1]
    return suffix if suffix in SUFFIXES and (suffix != _PARQUET or plain == name.lower()) else ""


def read(path: StoragePath, choose: Choose, delimiter: str = "") -> pa.Table:
    """Reads columns of a table into memory, without dictionaries and views.

    Strings are stripped of surrounding spaces. All columns of CSV and TSV are strings; a blank field is an empty one.

    Args:
      path: path of the file, whose suffix tells the format.
      choose: function that returns the names of the columns to read, given the schema.
      delimiter: character between the fields of CSV and TSV. "": a tab if the file is called `.tsv` and its first line
        has one, else whichever of `,`, tab, `;` and `|` is most frequent in the first line.

    Raises:
      DataError: the file cannot be read, is not UTF-8, or has rows that do not match its first line.
    """
    suffix = suffix_of(path.name)
    if suffix == _PARQUET:
        return _read_parquet(path, choose)
    if not suffix:
        raise DataError(f"its name ends in none of {', '.join(SUFFIXES)}, so it is not known how to read it", path=path)
    return _read_csv(path, choose, delimiter) if suffix in TEXTS else _read_json(path, choose)


def _read_parquet(path: StoragePath, choose: Choose) -> pa.Table:
    with ParquetFile.of(path).opened() as file:
        schema = file.own_schema
        names = choose(schema)
        file.rows_of_groups(names)
        columns = [[_plain(pa.array([], schema.field(name).type))] for name in names]
        for group in file.groups:
            for batch in file.batches(group, names):
                with file.errors_of(group):
                    for name, chunks in zip(names, columns, strict=True):
                        chunks.append(_plain(batch.column(name)))
    table = _with_text(path, pa.table(list(map(pa.chunked_array, columns)), names=list(names)))
    return table.replace_schema_metadata(schema.metadata)


def _plain(array: pa.Array) -> pa.Array:
    array = decoded(array)
    if pa.types.is_string_view(array.type):  # Arrow cannot take rows from a view
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


def _read_json(path: StoragePath, choose: Choose) -> pa.Table:
    """Reads objects with Python's parser: pyarrow's takes some texts for times, and some damaged files crash it."""
    with _opened(path) as raw:
        stream = io.BufferedReader(raw)  # type: ignore[type-var]
        found = _objects(path, stream)
        first = list(itertools.islice(found, _LINES_AT_ONCE))
        if not first:
            raise DataError("holds no object", path=path, advice="each row is one object")
        others = iter(lambda: list(itertools.islice(found, _LINES_AT_ONCE)), [])
        return of_objects(path, itertools.chain([first], others), choose(schema_of(first)))


def of_objects(path: StoragePath, batches: Iterable[Sequence[dict[str, Any]]], names: Sequence[str]) -> pa.Table:
    """Returns columns of objects, with texts stripped of spaces; one batch of objects is in memory at a time.

    Raises:
      DataError: a column is not of one type.
    """
    parts, rows = list[pa.Table](), 0
    for objects in batches:
        values = {name: [each.get(name) for each in objects] for name in names}
        parts.append(pa.table({name: _array(path, name, column, rows) for name, column in values.items()}))
        rows += len(objects)
    with arrow_errors(path, "its rows cannot be joined into one table"):
        return _with_text(path, pa.concat_tables(parts, promote_options="permissive"))


def _objects(path: StoragePath, stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    numbered = enumerate(iter(functools.partial(stream.readline, _LONGEST), b""), 1)
    for line_number, line in numbered:
        start = line.removeprefix(codecs.BOM_UTF8).lstrip()
        if start.startswith(_ARRAY):
            yield from _List(path, start[len(_ARRAY) :], stream).objects()
            return
        if start:
            yield _object(path, f"line {line_number}", line)
            break
    for line_number, line in numbered:
        if line.strip():
            yield _object(path, f"line {line_number}", line)


class _List:
    """The elements of a JSON list, with one part in memory at a time.

    `start` is the text read so far after the list's opening bracket, and `stream` has the rest of the file.
    """

    def __init__(self, path: StoragePath, start: bytes, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._parse = json.JSONDecoder(parse_float=number).raw_decode
        self._text, self._at = "", 0
        self._add(start)

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yields the elements, all of which must be objects."""
        for number in itertools.count():
            for is_whole in self._grown():
                begin = self._begin(number)
                if begin is None:
                    return
                try:
                    found, self._at = self._parse(self._text, begin)
                except (ValueError, RecursionError) as error:
                    if is_whole or isinstance(error, RecursionError):
                        reason = " ".join(str(error).split(":")[0].split())
                        problem = f"is not JSON of at most {_LONGEST:,} characters ({reason})"
                        raise self._refused(number, problem, begin) from None
                    continue
                if not isinstance(found, dict):
                    raise self._refused(number, "is not an object", begin)
                yield found
                break

    def _grown(self) -> Iterator[bool]:
        """Reads on step by step; yields True if no more is read of the element: it would be too long, or the file ends.

        Each step reads twice as much; otherwise, parsing a long element again would take quadratic time.
        """
        yield False
        size = streams.BLOCK
        while len(self._text) - self._at <= _LONGEST and (block := self._stream.read(size)):
            self._text, self._at = self._text[self._at :], 0
            self._add(block)
            size *= 2
            yield False
        self._add(b"", is_last=True)
        yield True

    def _begin(self, number: int) -> int | None:
        """Returns where the next element begins in the text; None at the list's end."""
        begin = self._behind_space(self._at)
        mark = self._text[begin : begin + 1]
        if mark == "]":
            self._add(self._stream.read(_LONGEST))
            if self._text[begin + 1 :].strip():
                raise self._refused(number, "continues after its list", begin + 1)
            return None
        if number and mark == ",":
            return self._behind_space(begin + 1)
        if number and mark:
            raise self._refused(number, "is not preceded by a comma", begin)
        return begin

    def _behind_space(self, at: int) -> int:
        return _SPACE.match(self._text, at).end()  # type: ignore[union-attr]

    def _refused(self, number: int, problem: str, at: int) -> DataError:
        shown = self._text[at : at + SHOWN]
        text = f"{problem}: {shown!r}" if shown else "is missing: the file ends before its list does"
        return DataError(text, path=self._path, part=f"row {number}", advice=_ONE_LIST)

    def _add(self, data: bytes, is_last: bool = False) -> None:
        try:
            self._text += self._decode(data, is_last)
        except UnicodeDecodeError as error:
            wrong = error.object[error.start : error.start + SHOWN]
            raise DataError(f"is not UTF-8 text: {wrong!r}", path=self._path, advice=_ENCODING) from None


def schema_of(objects: Sequence[dict[str, Any]]) -> pa.Schema:
    """Returns the columns of objects; a column with values of several types counts as strings until it is read."""
    types = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(objects)):
        try:
            types[name] = pa.infer_type([each.get(name) for each in objects])
        except (pa.ArrowException, OverflowError, UnicodeError):
            types[name] = pa.string()
    return pa.schema(types)


def _object(path: StoragePath, part: str, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8-sig"), parse_float=number)
        problem = "" if isinstance(found, dict) else "is not an object"
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
        problem = f"is not JSON of at most {_LONGEST:,} bytes in UTF-8 ({' '.join(str(error).split())})"
    if problem:
        advice = "each line must be one object (pandas: to_json(path, orient='records', lines=True))"
        raise DataError(f"{problem}: {line[:SHOWN]!r}", path=path, part=part, advice=advice)
    return dict(found)


def number(text: str) -> float | decimal.Decimal:
    """Parses a JSON number; a whole one that float64 cannot hold, such as 9007199254740993.0, becomes a decimal."""
    value = float(text)
    if len(text) <= _DIGITS and math.isfinite(value):
        return value
    exact = decimal.Decimal(text)
    is_whole = exact == exact.to_integral_value() and "e" not in text.lower()
    return exact if not math.isfinite(value) or (is_whole and decimal.Decimal(value) != exact) else value


def _array(path: StoragePath, name: str, values: Sequence[Any], first: int) -> pa.Array:
    """Returns the values of a column; `first` is the row number of the first one."""
    try:
        return pa.array(values)
    except Exception as error:  # pyarrow's kinds, OverflowError, UnicodeEncodeError, ...
        usual = next(type(value) for value in values if value is not None)
        row = next((row for row, value in enumerate(values) if type(value) not in (usual, type(None))), None)
        large = next((row for row, value in enumerate(values) if isinstance(value, int) and abs(value) >> 63), None)
        if row is None and large is not None:
            problem = f"column {name!r} has {str(values[large])[:SHOWN]}, which int64 does not hold"
            raise DataError(problem, path=path, part=f"row {first + large}", advice=_AS_TEXT) from None
        if row is None:
            problem = f"column {name!r}: {' '.join(str(error).split())[:SHOWN]}"
            raise DataError(problem, path=path, part=f"rows {first} to {first + len(values) - 1}") from None
        inexact = next((row for row, value in enumerate(values) if isinstance(value, decimal.Decimal)), None)
        if inexact is not None:
            problem = f"column {name!r} has {str(values[inexact])[:SHOWN]}, which float64 does not hold exactly"
            advice = "write whole numbers without a point, and larger ones than int64 holds as strings"
            raise DataError(problem, path=path, part=f"row {first + inexact}", advice=advice) from None
        problem = f"column {name!r} has {str(values[row])[:SHOWN]!r}, which is no {usual.__name__} as in rows before it"
        raise DataError(problem, path=path, part=f"row {first + row}", advice="give all rows one type") from None


def _read_csv(path: StoragePath, choose: Choose, delimiter: str) -> pa.Table:
    wrong: list[pa.csv.InvalidRow] = []

    def refuse(row: pa.csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    with _opened(path) as stream:
        try:
            first = stream.readline(_LONGEST).decode()
        except UnicodeDecodeError:
            raise DataError("its first line is not UTF-8 text", path=path, advice=_ENCODING) from None
        if not delimiter:
            is_tsv = suffix_of(path.name) == _TSV and "\t" in first
            delimiter = "\t" if is_tsv else max(_DELIMITERS, key=first.count)
        parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse)
        in_order = pa.csv.ReadOptions(use_threads=False)  # otherwise rows have no numbers
        try:
            problem = f"cannot be read as a table with {delimiter!r} between its columns"
            with arrow_errors(path, problem), streams.errors_of(path):  # the second handles damaged gzip data
                stream.seek(0)
                there = pa.csv.open_csv(stream, in_order, parse, pa.csv.ConvertOptions()).schema.names
                plain = [name.strip() for name in there]
                if image := next((name for name in plain if extension_of(name.encode()) in IMAGES), None):
                    raise DataError(
                        f"its first line names an image, {image!r}, but must name the columns",
                        path=path,
                        advice="put a line like file_name,label above it",
                    )
                names = choose(pa.schema([(name, pa.string()) for name in plain]))
                raw = [there[plain.index(name)] for name in names]
                types = pa.csv.ConvertOptions(column_types=dict.fromkeys(raw, pa.binary()), include_columns=raw)
                stream.seek(0)
                table = pa.csv.read_csv(stream, in_order, parse, types)
        except DataError:
            if not wrong:
                raise
            row = wrong[0]
            raise DataError(
                f"has {count_of(row.actual_columns, 'column')}, not {row.expected_columns} as the first line: "
                f"{row.text[:SHOWN]!r}",
                path=path,
                part=f"line {row.number}",
                advice=f"texts that hold {delimiter!r} or a line break must be in double quotes, which must be closed; "
                "--delimiter names another delimiter",
            ) from None
    return pa.table([_text(path, *each) for each in zip(names, table.columns, strict=True)], names=list(names))


@contextlib.contextmanager
def _opened(path: StoragePath) -> Iterator[IO[bytes]]:
    """Opens a text file, gzipped or not; pyarrow skips UTF-8's byte order mark."""
    with streams.opened(path) as stream:
        begin = stream.read(len(_UTF16_MARKS[0]))
        if begin.startswith(_UTF16_MARKS):
            raise DataError("is UTF-16 text", path=path, advice=_ENCODING)
        if not begin:
            raise DataError("is empty", path=path, advice="its first line must name its columns")
        stream.seek(0)
        yield stream


def _with_text(path: StoragePath, table: pa.Table) -> pa.Table:
    for number, name in enumerate(table.schema.names):
        column = table.column(number)
        if kind_of(column.type) == "string":
            table = table.set_column(number, name, _text(path, name, column.cast(pa.large_binary())))
    return table


def _text(path: StoragePath, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return pc.utf8_trim_whitespace(column.cast(pa.string()))  # also checks that it is UTF-8
    except pa.ArrowInvalid:
        for row, value in enumerate(column.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                problem = f"column {name!r} has {value[:SHOWN]!r}, which is not UTF-8 text"
                raise DataError(problem, path=path, part=f"row {row}", advice=_ENCODING) from None
        raise


def typed(
    column: pa.ChunkedArray, wanted: str, has_default: bool = False
) -> tuple[pa.ChunkedArray, tuple[int, str] | None]:
    """Converts a string column to int64 or float64 if its values are numbers.

    Empty strings become nulls. No number changes its value, except that `float32` allows rounding.

    Args:
      column: string column.
      wanted: `int64` or `float32` if the values must be numbers, with words for missing values as nulls; `string` to
        keep them; "" to choose by the values, where texts with leading zeros, such as 007, are not numbers.
      has_default: whether nulls get a value, so that words for missing values are nulls among numbers, and empty texts
        among texts.

    Returns:
      The column; and (row, problem) of the first row that is not such a number although it must be, or None.
    """
    has_words = (wanted == "" and has_default) or wanted not in ("", "string")
    empty = ["", *(each for each in labels.MISSING if has_words and "nan" not in each.lower())]
    if has_default:
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    is_empty = pc.is_in(column, value_set=pa.array(empty, column.type))
    values = pc.if_else(is_empty, pa.scalar(None, column.type), column)
    is_number, is_code = (pc.match_substring_regex(values, form) for form in (_NUMBER, _CODE))
    if wanted == "string" or values.null_count == len(values) or (not wanted and pc.any(is_code).as_py()):
        return column, None
    if (row := pc.index(is_number, False).as_py()) >= 0:
        return column, (row, NO_NUMBER) if wanted else None
    if pc.all(pc.match_substring_regex(values, _WHOLE_VALUE if wanted == "int64" else _WHOLE)).as_py():
        digits = pc.replace_substring_regex(values, r"^\+|\.0*$", "")
        try:
            return digits.cast(pa.int64()), None
        except pa.ArrowInvalid:
            numbers = enumerate(digits.to_pylist())
            too_large = next(row for row, text in numbers if text and not -(1 << 63) <= int(text) < 1 << 63)
            if wanted != "float32":
                return column, (too_large, "which int64 does not hold")
    row = -1 if wanted == "float32" else _first_inexact(values)
    return (values.cast(pa.float64()), None) if row < 0 else (column, (row, "which float64 does not hold exactly"))


def _first_inexact(values: pa.ChunkedArray) -> int:
    """Returns the first row with a number that is neither exact in float64 nor the shortest text of one; -1 if none."""
    for row in np.flatnonzero(pc.match_substring_regex(values, _MAYBE_INEXACT).fill_null(False).to_numpy()).tolist():
        text = values[row].as_py()
        exact, value = decimal.Decimal(text), float(text)
        is_told_apart = len(exact.as_tuple().digits) <= _DIGITS and exact != exact.to_integral_value()
        if decimal.Decimal(value) != exact and not is_told_apart:
            return row
    return -1


def first_no_number(column: pa.ChunkedArray) -> int | None:
    """Returns the first row whose text is not a number if most others are numbers; else None."""
    filled = pc.not_equal(column, "").fill_null(False)
    is_number = pc.match_substring_regex(column, _NUMBER).fill_null(False)
    count, numbers = (pc.sum(each).as_py() or 0 for each in (filled, is_number))
    has_codes = pc.any(pc.match_substring_regex(column, _CODE)).as_py()
    if numbers == count or numbers * 2 <= count or has_codes:
        return None
    return int(pc.index(pc.and_(filled, pc.invert(is_number)), True).as_py())
