"""Data sets in Parquet files. The unit of reading is the row group.

Format: https://parquet.apache.org/docs/file-format/; Hugging Face's layout of splits, images and class names:
https://huggingface.co/docs/datasets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs.sources import grouped, listing, streams
from beam_jobs.sources.base import SOURCES, Source, SourceOptions
from beam_jobs.sources.blocks import arrow_errors
from beam_jobs.sources.grouped import MAX_GROUP_BYTES, Format, GroupedFile, OpenFile
from pipeline.commands.text import count_of
from pipeline.errors import DataError
from pipeline.files import paths
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import SourceFile

_BATCH_BYTES = 16 << 20  # 16 MiB
_MAX_BATCH = 512  # rows: dictionary-encoded rows can be larger than the footer says
_BUFFER = 1 << 20  # 1 MiB: reads page by page rather than a whole column of the row group
_FOOTERS = 256  # files whose footers a process keeps
_SUFFIX = ".parquet"
_TAIL = 8  # bytes: length of the footer, uint32, and PAR1


@dataclasses.dataclass(frozen=True)
class ParquetFile(GroupedFile):
    """A Parquet file, whose footer is parsed once per process."""

    def _open(self, stack: contextlib.ExitStack) -> OpenFile:
        with arrow_errors(self.path, "cannot be read as Parquet"):
            file = pq.ParquetFile(
                stack.enter_context(self.path.open_native()),
                metadata=_footer(self.path, self.stamp),
                pre_buffer=False,  # or the whole row group is read into memory first
                buffer_size=self.path.read_ahead(_BUFFER),
                page_checksum_verification=True,
            )
        return _OpenParquet(self.path, dict(self.partitions), self.fills, file)


@functools.lru_cache(maxsize=_FOOTERS)
def _footer(path: StoragePath, stamp: tuple[int, int]) -> pq.FileMetaData:
    del stamp  # part of the cache's key: if a file changes, so does its footer
    with path.open_native() as stream:
        return pq.read_metadata(stream)


@dataclasses.dataclass(frozen=True)
class _OpenParquet(OpenFile):
    file: pq.ParquetFile

    @property
    def own_schema(self) -> pa.Schema:
        with arrow_errors(self.path, "its schema cannot be read"):
            return self.file.schema_arrow

    @property
    def groups(self) -> range:
        return range(self.file.num_row_groups)

    def count(self, group: int) -> int:
        return int(self.file.metadata.row_group(group).num_rows)

    def read(self, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        info = self.file.metadata.row_group(group)
        rows, size = info.num_rows, max(info.total_byte_size, 1)
        count = max(1, min(_MAX_BATCH, _BATCH_BYTES * rows // size))
        yield from self.file.iter_batches(count, row_groups=[group], columns=list(names), use_threads=False)

    def rows_of_groups(self, names: Sequence[str]) -> tuple[int, ...]:
        counts = tuple(self.file.metadata.row_group(group).num_rows for group in self.groups)
        for group, rows in enumerate(counts):
            if rows < 0:
                raise DataError(
                    f"row group {group}: has {rows} rows; its footer is corrupt, get the file again", path=self.path
                )
            size = self._num_bytes(group, names)
            if size > MAX_GROUP_BYTES:
                raise DataError(
                    f"row group {group}: has {count_of(size, 'byte')}, above {MAX_GROUP_BYTES:,}",
                    path=self.path,
                    advice="write the file with "
                    "smaller row groups: pyarrow.parquet.write_table(table, path, row_group_size=1000)",
                )
        if sum(counts) != self.file.metadata.num_rows:  # a footer has no checksum
            raise DataError(
                f"its row groups have {count_of(sum(counts), 'row')}, but its footer says "
                f"{self.file.metadata.num_rows:,}; it is corrupt, get the file again",
                path=self.path,
            )
        return counts

    def _num_bytes(self, group: int, names: Sequence[str]) -> int:
        """Returns the decompressed size of the given columns, or of all columns if that is small enough."""
        info = self.file.metadata.row_group(group)
        if info.total_byte_size <= MAX_GROUP_BYTES:
            return int(info.total_byte_size)
        # A corrupt `info.column(...)` crashes pyarrow 25 while reading a corrupt row does not, so read one first.
        next(self.read(group, names), None)
        paths = [self.file.metadata.schema.column(leaf).path for leaf in range(self.file.metadata.num_columns)]
        wanted = tuple(f"{column}." for column in names)
        leaves = [leaf for leaf, name in enumerate(paths) if f"{name}.".startswith(wanted)]
        return sum(info.column(leaf).total_uncompressed_size for leaf in leaves)


@SOURCES.named("parquet", needs="a Parquet file, a folder of them, or a glob", remote=True)
def open_source(options: SourceOptions) -> Source:
    """Opens Parquet files, as `grouped.open_source` does."""
    return grouped.open_source(options, Format(_find, ParquetFile.of, _describe))


def _find(options: SourceOptions) -> tuple[StoragePath, dict[str, list[str]]]:
    kinds = f"--source of parquet is a file, a folder of *{_SUFFIX}, or a glob"
    is_parquet = functools.partial(listing.is_visible, suffixes=(_SUFFIX,))
    folder, names = listing.find(options.source, is_parquet, True, f"*{_SUFFIX}, at any depth", kinds)
    return folder, grouped.by_names(folder, names, options)


def _describe(folder: StoragePath, names: Sequence[str]) -> tuple[SourceFile, ...]:
    """Returns the manifest entry of each file.

    The digest of a local file covers its content, the digest of a remote file only its footer, with length and magic,
    as reading all bytes from a store would take too long. The footer has the offset and size of every column chunk and
    the writer's statistics; two files that agree in all of these have the same digest.
    """
    if isinstance(folder, LocalPath):
        return streams.describe([(name, folder / name) for name in names])

    def of_footer(name: str) -> SourceFile:
        with streams.errors_of(folder / name), (folder / name).open_native() as stream:
            size = stream.size()
            length = int.from_bytes(stream.read_at(_TAIL, size - _TAIL)[:4], "little") + _TAIL
            return SourceFile(name, size, hashlib.sha256(stream.read_at(length, size - length)).hexdigest())

    return tuple(paths.each(of_footer, names, remote=True))
