"""The class names of a Parquet source: from Hugging Face's metadata, the labels' texts, or the highest label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_jobs.sources import files
from beam_jobs.sources.files import Place, Stamp
from beam_jobs.sources.parquet import reader as parquet_reader
from beam_jobs.sources.parquet.columns import Columns, plain
from pipeline.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CLASSES = 100_000  # the largest published label sets have a fifth of that; more is a column of names or numbers

_Made = TypeVar("_Made")


def class_names(known: Sequence[tuple[Place, Stamp]], columns: Columns, named: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one name a label.

    Args:
      known: (path, stamp) of each file.
      columns: of all of them.
      named: what the files' metadata say; () where it says nothing.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if columns.label_kind == "bool":
        return "false", "true"
    if columns.label_kind == "string":
        return _texts(known, columns.label)
    if named:
        _check_count(len(named), known[0][0], columns.label)
        return named
    return _numbers(known, columns.label)


def _numbers(known: Sequence[tuple[Place, Stamp]], label: str) -> tuple[str, ...]:
    def highest_of(one: tuple[Place, Stamp]) -> int:
        with parquet_reader.opened(*one) as file:
            return max([-1, *_maxima(one[0], file, label)])

    highest = -1
    for (path, _), found in zip(known, _each(highest_of, known), strict=True):
        highest = max(highest, found)
        _check_count(highest + 1, path, label)
    if highest < 0:
        raise DataError(f"{known[0][0]}: column {label!r}: no row has a label of 0 or more")
    return tuple(map(str, range(highest + 1)))


def _texts(known: Sequence[tuple[Place, Stamp]], label: str) -> tuple[str, ...]:
    found: set[str] = set()
    path = known[-1][0]
    for (path, _), texts in zip(known, _each(lambda one: _texts_of(*one, label), known), strict=True):
        found |= texts
        _check_count(len(found), path, label)
    if not found:
        raise DataError(f"{path}: column {label!r}: no row has a label")
    return tuple(sorted(found))


def _texts_of(path: Place, expected: Stamp, label: str) -> set[str]:
    found: set[str] = set()
    with parquet_reader.opened(path, expected) as file:
        for group in range(file.num_row_groups):
            for values in _columns(path, file, group, label):
                with parquet_reader.one_line(f"{path}: row group {group}: column {label!r} cannot be read"):
                    found.update(text for text in pc.unique(values).to_pylist() if text)
                _check_count(len(found), path, label)
    return found


def _each(function: Callable[[tuple[Place, Stamp]], _Made], known: Sequence[tuple[Place, Stamp]]) -> Iterator[_Made]:
    return files.each(function, known, files.is_remote(known[0][0]))


def _maxima(path: Place, file: pq.ParquetFile, label: str) -> Iterator[int]:
    for group in range(file.num_row_groups):  # by reading: pyarrow 25 ends the process where statistics are corrupt
        for values in _columns(path, file, group, label):
            highest = pc.max(values).as_py()
            yield -1 if highest is None else highest


def _columns(path: Place, file: pq.ParquetFile, group: int, label: str) -> Iterator[pa.Array]:
    for batch in parquet_reader.batches(path, file, group, [label]):
        values = batch.column(label)
        yield values if plain(values.type) == values.type else values.dictionary_decode()


def _check_count(count: int, path: Place, label: str) -> None:
    if count > MAX_CLASSES:
        raise DataError(
            f"{path}: column {label!r} has {count} classes or more, above {MAX_CLASSES}, the most that can be; "
            "name the column of labels with --label_column"
        )
