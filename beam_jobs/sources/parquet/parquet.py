"""Data sets in Parquet files: a column of encoded images, one of labels, others as features.

The unit of reading is the row group. Format: https://parquet.apache.org/docs/file-format/; Hugging Face's layout of
splits, images and class names: https://huggingface.co/docs/datasets.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from beam_jobs.sources import base, digest, streams
from beam_jobs.sources.base import Files, SourceOptions
from beam_jobs.sources.digest import Digest
from beam_jobs.sources.parquet import columns as parquet_columns
from beam_jobs.sources.parquet import files as parquet_files
from beam_jobs.sources.parquet import labels as parquet_labels
from beam_jobs.sources.parquet import reader as parquet_reader
from beam_jobs.sources.parquet.columns import Columns
from beam_jobs.sources.parquet.reader import KnownFile
from beam_jobs.sources.parquet.rows import ParquetSource, RowGroups
from beam_jobs.storage import paths
from beam_jobs.storage.paths import StoragePath
from pipeline.errors import DataError, UsageError
from pipeline.manifest import SourceFile

_TAIL = 8  # bytes: the length of the footer, uint32, and PAR1


@dataclasses.dataclass(frozen=True)
class _File:
    """What the footer of a file says."""

    name: str
    known: KnownFile
    columns: Columns
    class_names: tuple[str, ...]
    groups: tuple[int, ...]


def open_source(options: SourceOptions) -> ParquetSource:
    """Opens files, finds their columns, splits and classes.

    Args:
      options: `source` is a file, a folder of *.parquet, or a glob; the columns are as `config.ConvertConfig` says.

    Raises:
      UsageError: no source is named; a column is missing or cannot be converted.
      DataError: a file is missing or cannot be read, files differ in their columns or class names, it cannot be told
        which split a file is of, a split has no row, a row group is larger than 1 GiB, or no row has a label.
    """
    folder, names = parquet_files.find(options.source)
    by_split = parquet_files.by_split(folder, names)
    first = _open(folder, names[0], options)
    resolved = dataclasses.replace(options, image_column=first.columns.image, label_column=first.columns.label)
    others = paths.each(lambda name: _open_another(folder, name, resolved, first), names[1:], folder.is_remote)
    files = {file.name: file for file in [first, *others]}
    groups = {split: _groups(folder, split, [files[name] for name in members]) for split, members in by_split.items()}
    parts = {
        split: Files(tuple(members), tuple(sum(files[name].groups) for name in members))
        for split, members in by_split.items()
    }
    known = [file.known for file in files.values()]
    return ParquetSource(
        dataset=options.dataset,
        class_names=parquet_labels.class_names(known, first.columns, first.class_names),
        files=_describe(folder, names),
        splits=base.rows_of(parts),
        features=dict(first.columns.kept),
        unique_keys=not first.columns.key,
        parts=parts,
        folder=folder,
        columns=first.columns,
        groups=groups,
    )


def _open(folder: StoragePath, name: str, options: SourceOptions) -> _File:
    path = folder / name
    known = KnownFile(path, streams.stamp(path))
    with known.opened() as file:
        with parquet_reader.one_line(f"{path}: its schema cannot be read"):
            schema = file.file.schema_arrow
        columns = parquet_columns.choose(str(path), schema, options)
        groups = tuple(file.rows(group, columns.paths) for group in file.groups)
    return _File(name, known, columns, parquet_columns.class_names(schema).get(columns.label, ()), groups)


def _open_another(folder: StoragePath, name: str, options: SourceOptions, first: _File) -> _File:
    try:
        file = _open(folder, name, options)
    except UsageError as error:
        raise DataError(f"{error}; {first.known.path} has them; all files must have the same columns") from None
    if (file.columns, file.class_names) != (first.columns, first.class_names):
        raise DataError(
            f"{file.known.path}: its columns {', '.join(first.columns.paths)} differ from those of {first.known.path} "
            "in type or class names; all files must have the same"
        )
    return file


def _groups(folder: StoragePath, split: str, files: Sequence[_File]) -> RowGroups:
    if not any(sum(file.groups) for file in files):
        raise DataError(f"{folder}: split {split!r} of {len(files)} files ({files[0].name}, ...) has no row")
    return RowGroups(
        np.array([file.known.stamp for file in files], np.int64),
        np.array([rows for file in files for rows in file.groups], np.int64),
        np.repeat(np.arange(len(files)), [len(file.groups) for file in files]),
    )


def _describe(folder: StoragePath, names: Sequence[str]) -> tuple[SourceFile, ...]:
    """Returns the manifest's entry of each file.

    Of a local file the digest is of its content. Of a remote one it is of the footer with its length and magic, which
    end the file: reading all bytes from a store would take too long. The footer has the offset and size of every
    column chunk and what statistics the writer made; a file that differs in nothing of that is not told apart.
    """
    if folder.is_remote:
        return tuple(paths.each(lambda name: SourceFile(name, *_of_footer(folder / name)), names, remote=True))
    return digest.describe([(name, str(folder / name)) for name in names])


def _of_footer(path: StoragePath) -> Digest:
    with streams.errors_of(path), path.open_native() as stream:
        size = stream.size()
        length = int.from_bytes(stream.read_at(_TAIL, size - _TAIL)[:4], "little") + _TAIL
        if length > size:
            raise DataError(f"{path}: is not a Parquet file: its footer cannot have {length} of {size} bytes")
        return Digest(size, hashlib.sha256(stream.read_at(length, size - length)).hexdigest())
