"""The class names of a Parquet source: from Hugging Face's metadata, or the labels that occur."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from beam_jobs.sources.parquet.columns import Columns
from beam_jobs.sources.parquet.reader import ParquetFile
from beam_jobs.sources.parquet.values import decoded
from beam_jobs.sources.seen_labels import SeenLabels
from beam_jobs.storage import paths

MAX_CLASSES = 100_000  # the largest published label sets have a fifth of that; more is a column of names or numbers


def class_names(files: Sequence[ParquetFile], columns: Columns, named: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one name per label of all files; `named` are those in their metadata, if any.

    Labels are read, as pyarrow 25 crashes on corrupt statistics.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if columns.label_kind == "bool":
        return "false", "true"
    is_text = columns.label_kind == "string"
    if named and not is_text:
        return named
    seen = SeenLabels(f"column {columns.label!r}", MAX_CLASSES, "name the column of labels with --label_column")

    def read(file: ParquetFile) -> None:
        with file.opened() as opened:
            for group in opened.groups:
                for batch in opened.batches(group, [columns.label]):
                    with opened.errors_of(group):
                        values = decoded(batch.column(columns.label))
                        found = pc.unique(values).to_pylist() if is_text else [pc.max(values).as_py()]
                    seen.add((label for label in found if label is not None), file.path)

    for _ in paths.each(read, files, files[0].path.is_remote):
        pass
    return seen.class_names(files[0].path)
