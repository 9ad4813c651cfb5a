"""Reads row groups of Parquet files batch by batch; every error is one line with the file and the row group."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs.sources.streams import KnownFile
from beam_jobs.storage.errors import kind_of
from beam_jobs.storage.paths import StoragePath
from pipeline.commands.text import count_of
from pipeline.errors import DataError

MAX_GROUP_BYTES = 1 << 30  # 1 GiB: shards read whole row groups, and two shards read one at their boundary
_BATCH_BYTES = 16 << 20  # 16 MiB
_MAX_BATCH = 512  # rows: with a dictionary, rows can be larger than the footer says
_BUFFER = 1 << 20  # 1 MiB: read page by page, not a whole column of the row group
_FOOTERS = 256  # files whose footers a process keeps
_MOST_TEXT = 200  # characters of pyarrow's message


@dataclasses.dataclass(frozen=True)
class ParquetFile(KnownFile):
    """A Parquet file as it was when the source was opened.

    Attributes:
      groups: the rows of each of its row groups.
    """

    groups: tuple[int, ...] = ()

    @contextlib.contextmanager
    def opened(self) -> Iterator[OpenFile]:
        """Opens the file, its footer parsed once per process, and checks before and after that it is unchanged.

        Raises:
          DataError: it changed, or its footer cannot be read.
        """
        self.check_unchanged()
        with contextlib.ExitStack() as stack:
            with one_line(f"{self.path}: cannot be read as Parquet"):
                file = pq.ParquetFile(
                    stack.enter_context(self.path.open_native()),
                    metadata=_footer(self.path, self.stamp),
                    pre_buffer=False,  # else it first reads the whole row group into memory
                    buffer_size=self.path.read_ahead(_BUFFER),
                    page_checksum_verification=True,
                )
            yield OpenFile(self.path, file)
        self.check_unchanged()


@functools.lru_cache(maxsize=_FOOTERS)
def _footer(path: StoragePath, stamp: tuple[int, int]) -> pq.FileMetaData:
    del stamp  # part of the cache's key: if a file changes, so does its footer
    with path.open_native() as stream:
        return pq.read_metadata(stream)


@dataclasses.dataclass(frozen=True)
class OpenFile:
    """An open Parquet file; `path` is for errors."""

    path: StoragePath
    file: pq.ParquetFile

    @property
    def groups(self) -> range:
        """The numbers of the row groups."""
        return range(self.file.num_row_groups)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the columns of some dotted paths of a row group, in batches of about 16 MiB.

        Raises:
          DataError: a page is corrupt, or rows are missing.
        """
        info = self.file.metadata.row_group(group)
        rows, size = info.num_rows, max(info.total_byte_size, 1)
        count = max(1, min(_MAX_BATCH, _BATCH_BYTES * rows // size))
        read = 0
        with self.errors_of(group):
            for batch in self.file.iter_batches(count, row_groups=[group], columns=list(columns), use_threads=False):
                read += len(batch)
                yield batch
        if read != rows:
            raise DataError(
                f"{self.path}: row group {group}: has {count_of(read, 'row')}, but its footer says "
                f"{rows:,}; get the file again"
            )

    def rows_of_groups(self, columns: Sequence[str]) -> tuple[int, ...]:
        """Returns the number of rows in each row group, after checking some columns of it.

        Raises:
          DataError: as `rows`; or they do not sum to the file's rows: the footer, which has no checksum, is corrupt.
        """
        counts = tuple(self.rows(group, columns) for group in self.groups)
        if sum(counts) != self.file.metadata.num_rows:
            raise DataError(
                f"{self.path}: its row groups have {count_of(sum(counts), 'row')}, but its footer says "
                f"{self.file.metadata.num_rows:,}; it is corrupt, get the file again"
            )
        return counts

    def rows(self, group: int, columns: Sequence[str]) -> int:
        """Returns the number of rows in a row group, after checking that some columns of it fit into memory.

        Raises:
          DataError: the row group is larger than 1 GiB or cannot be read; its footer is corrupt.
        """
        rows: int = self.file.metadata.row_group(group).num_rows
        if rows < 0:
            raise DataError(
                f"{self.path}: row group {group}: has {rows} rows; its footer is corrupt, get the file again"
            )
        size = self._num_bytes(group, columns)
        if size > MAX_GROUP_BYTES:
            raise DataError(
                f"{self.path}: row group {group}: has {count_of(size, 'byte')}, above "
                f"{MAX_GROUP_BYTES:,}; write the file with "
                "smaller row groups: pyarrow.parquet.write_table(table, path, row_group_size=1000)"
            )
        return rows

    def _num_bytes(self, group: int, columns: Sequence[str]) -> int:
        """Returns the decompressed size of some columns, or of all if that is small enough."""
        info = self.file.metadata.row_group(group)
        if info.total_byte_size <= MAX_GROUP_BYTES:
            return int(info.total_byte_size)
        # A corrupt `info.column(...)` crashes pyarrow 25, reading a corrupt row does not: so one is read first.
        next(self.batches(group, columns), None)
        paths = [self.file.metadata.schema.column(leaf).path for leaf in range(self.file.metadata.num_columns)]
        wanted = tuple(f"{column}." for column in columns)
        leaves = [leaf for leaf, name in enumerate(paths) if f"{name}.".startswith(wanted)]
        return sum(info.column(leaf).total_uncompressed_size for leaf in leaves)

    def errors_of(self, group: int) -> contextlib.AbstractContextManager[None]:
        """Adds the file and the row group to pyarrow's errors."""
        return one_line(f"{self.path}: row group {group}: cannot be read")


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turns any error of pyarrow into a DataError of one line that begins with `what`: the file and its fault."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # corrupt files raise pyarrow's kinds, OSError, UnicodeDecodeError, OverflowError, ...
        text = " ".join(str(error).split())
        raise kind_of(error)(f"{what} ({text[:_MOST_TEXT] or type(error).__name__})") from None
