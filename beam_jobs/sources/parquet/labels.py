"""The class names of a Parquet source: from Hugging Face's metadata, the labels' texts, or the highest label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.sources.parquet.columns import Columns, plain
from beam_jobs.sources.parquet.reader import KnownFile
from beam_jobs.storage import paths
from pipeline.errors import DataError

MAX_CLASSES = 100_000  # the largest published label sets have a fifth of that; more is a column of names or numbers

_Made = TypeVar("_Made")


def class_names(files: Sequence[KnownFile], columns: Columns, named: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one name per label.

    Args:
      files: all of them.
      columns: of all of them.
      named: what the files' metadata say; () where it says nothing.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if columns.label_kind == "bool":
        return "false", "true"
    if columns.label_kind == "string":
        return _texts(files, columns.label)
    if named:
        _check_count(len(named), files[0], columns.label)
        return named
    return _numbers(files, columns.label)


def _numbers(files: Sequence[KnownFile], label: str) -> tuple[str, ...]:
    def highest_of(file: KnownFile) -> int:  # by reading: pyarrow 25 ends the process where statistics are corrupt
        return max([-1, *(highest for highest in _scan(file, label, _highest) if highest is not None)])

    highest = -1
    for file, found in zip(files, _each(highest_of, files), strict=True):
        highest = max(highest, found)
        _check_count(highest + 1, file, label)
    if highest < 0:
        raise DataError(f"{files[0].path}: column {label!r}: no row has a label of 0 or more")
    return tuple(map(str, range(highest + 1)))


def _texts(files: Sequence[KnownFile], label: str) -> tuple[str, ...]:
    def texts_of(file: KnownFile) -> set[str]:
        found: set[str] = set()
        for texts in _scan(file, label, _distinct):
            found |= texts
            _check_count(len(found), file, label)
        return found

    found: set[str] = set()
    for file, texts in zip(files, _each(texts_of, files), strict=True):
        found |= texts
        _check_count(len(found), file, label)
    if not found:
        raise DataError(f"{files[-1].path}: column {label!r}: no row has a label")
    return tuple(sorted(found))


def _highest(values: pa.Array) -> int | None:
    highest: int | None = pc.max(values).as_py()
    return highest


def _distinct(values: pa.Array) -> set[str]:
    return {text for text in pc.unique(values).to_pylist() if text}


def _each(function: Callable[[KnownFile], _Made], files: Sequence[KnownFile]) -> Iterator[_Made]:
    return paths.each(function, files, files[0].path.is_remote)


def _scan(file: KnownFile, label: str, function: Callable[[pa.Array], _Made]) -> Iterator[_Made]:
    """Yields what a function makes of the labels of each batch."""
    with file.opened() as opened:
        for group in opened.groups:
            for batch in opened.batches(group, [label]):
                values = batch.column(label)
                with opened.errors_of(group):
                    made = function(values if plain(values.type) == values.type else values.dictionary_decode())
                yield made


def _check_count(count: int, file: KnownFile, label: str) -> None:
    if count > MAX_CLASSES:
        raise DataError(
            f"{file.path}: column {label!r} has {count} classes or more, above the most, {MAX_CLASSES}; "
            "name the column of labels with --label_column"
        )
