"""The class names of a Parquet source: from Hugging Face's metadata, the labels' texts, or the highest label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from beam_jobs.sources.parquet.columns import Columns
from beam_jobs.sources.parquet.reader import ParquetFile
from beam_jobs.sources.parquet.values import decoded
from beam_jobs.storage import paths
from pipeline.errors import DataError

MAX_CLASSES = 100_000  # the largest published label sets have a fifth of that; more is a column of names or numbers


def class_names(files: Sequence[ParquetFile], columns: Columns, named: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one name per label of all files; `named` is what their metadata say, () where that is nothing.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if columns.label_kind == "bool":
        return "false", "true"
    is_text = columns.label_kind == "string"
    if named and not is_text:
        _check_count(len(named), files[0], columns.label)
        return named
    found: set[Any] = set()
    for file, own in zip(
        files, paths.each(lambda file: _labels(file, columns), files, files[0].path.is_remote), strict=True
    ):
        found |= own
        _check_count(_count(found, is_text), file, columns.label)
    if not _count(found, is_text):
        problem = "no row has a label" if is_text else "no row has a label of 0 or more"
        raise DataError(f"{files[0].path}: column {columns.label!r}: {problem}")
    return tuple(sorted(found)) if is_text else tuple(map(str, range(_count(found, is_text))))


def _labels(file: ParquetFile, columns: Columns) -> set[Any]:
    """Returns the texts of a file, or the highest number of each batch.

    By reading: pyarrow 25 ends the process where statistics are corrupt.
    """
    is_text = columns.label_kind == "string"
    found: set[Any] = set()
    with file.opened() as opened:
        for group in opened.groups:
            for batch in opened.batches(group, [columns.label]):
                with opened.errors_of(group):
                    values = decoded(batch.column(columns.label))
                    found |= set(pc.unique(values).to_pylist() if is_text else [pc.max(values).as_py()]) - {None, ""}
                _check_count(_count(found, is_text), file, columns.label)
    return found


def _count(found: set[Any], is_text: bool) -> int:
    return len(found) if is_text else max(found | {-1}) + 1


def _check_count(count: int, file: ParquetFile, label: str) -> None:
    if count > MAX_CLASSES:
        raise DataError(
            f"{file.path}: column {label!r} has {count} classes or more, above the most, {MAX_CLASSES}; "
            "name the column of labels with --label_column"
        )
