"""Reads row groups of Parquet files batch by batch; every failure is one line with the file and the row group."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs.sources import files
from beam_jobs.sources.files import Place, Stamp
from pipeline.errors import DataError

MAX_GROUP_BYTES = 1 << 30  # 1 GiB: a shard reads its row groups whole, and those at its ends are read twice
_BATCH_BYTES = 16 << 20  # 16 MiB
_MAX_BATCH = 512  # rows: a dictionary can make each larger than the footer says
_BUFFER = 1 << 20  # 1 MiB: pages are read one by one, not a whole column of the row group
_FOOTERS_BYTES = 64 << 20  # 64 MiB of serialized footers a process: 10,000 files of some row groups
_MOST_TEXT = 200  # characters of pyarrow's message


class _Footers:
    """The footers of the files that were read last, for all threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[tuple[Place, Stamp], pq.FileMetaData] = collections.OrderedDict()
        self._bytes = 0

    def get(self, path: Place, expected: Stamp) -> pq.FileMetaData | None:
        with self._lock:
            if (path, expected) in self._known:
                self._known.move_to_end((path, expected))
            return self._known.get((path, expected))

    def add(self, path: Place, expected: Stamp, footer: pq.FileMetaData) -> None:
        with self._lock:
            if (path, expected) not in self._known:
                self._known[path, expected] = footer
                self._bytes += footer.serialized_size
            while self._bytes > _FOOTERS_BYTES and len(self._known) > 1:
                self._bytes -= self._known.popitem(last=False)[1].serialized_size


_footers = _Footers()


@contextlib.contextmanager
def opened(path: Place, expected: Stamp) -> Iterator[pq.ParquetFile]:
    """Opens a file, its footer parsed once a process, and checks before and after that it is unchanged.

    Raises:
      DataError: it changed since it had the stamp `expected`, or its footer cannot be read.
    """
    _check_unchanged(path, expected)
    with contextlib.ExitStack() as stack:
        with one_line(f"{path}: is no Parquet file that can be read"):
            stream = stack.enter_context(files.open_native(path))
            file = pq.ParquetFile(
                stream,
                metadata=_footers.get(path, expected),
                pre_buffer=False,  # else the whole row group is read into memory first
                buffer_size=files.buffer_of(path, _BUFFER),
                page_checksum_verification=True,
            )
            _footers.add(path, expected, file.metadata)
        yield file
    _check_unchanged(path, expected)


def batches(path: Place, file: pq.ParquetFile, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields a row group in batches of about 16 MiB.

    Args:
      path: of the file, for errors.
      file: it, opened.
      group: number of the row group.
      columns: dotted paths of the columns to read.

    Raises:
      DataError: a page is corrupt, or rows are missing.
    """
    info = file.metadata.row_group(group)
    rows, size = info.num_rows, max(info.total_byte_size, 1)
    count = max(1, min(_MAX_BATCH, _BATCH_BYTES * rows // size))
    read = 0
    with one_line(f"{path}: row group {group}: cannot be read"):
        for batch in file.iter_batches(count, row_groups=[group], columns=list(columns), use_threads=False):
            read += len(batch)
            yield batch
    if read != rows:
        raise DataError(f"{path}: row group {group}: has {read} rows, but its footer says {rows}; get the file again")


def group_bytes(path: Place, file: pq.ParquetFile, group: int, columns: Sequence[str]) -> int:
    """Returns the bytes of some columns of a row group, decompressed, or of all where those are few enough.

    Raises:
      DataError: the row group cannot be read.
    """
    info = file.metadata.row_group(group)
    if info.total_byte_size <= MAX_GROUP_BYTES:
        return int(info.total_byte_size)
    # A corrupt `info.column(...)` ends the process (pyarrow 25), a corrupt row does not: so one is read first.
    next(batches(path, file, group, columns), None)
    paths = [file.metadata.schema.column(leaf).path for leaf in range(file.metadata.num_columns)]
    wanted = tuple(f"{column}." for column in columns)
    leaves = [leaf for leaf, name in enumerate(paths) if f"{name}.".startswith(wanted)]
    return sum(info.column(leaf).total_uncompressed_size for leaf in leaves)


def _check_unchanged(path: Place, expected: Stamp) -> None:
    if files.stamp(path) != expected:
        raise DataError(f"{path}: changed while it was being converted; run the conversion again")


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turns whatever pyarrow raises into a DataError of one line.

    Args:
      what: the beginning of the line: the file, the place in it and what is wrong there.

    Raises:
      DataError: something was raised inside.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # corrupt files raise pyarrow's kinds, OSError, UnicodeDecodeError, OverflowError, ...
        text = " ".join(str(error).split())
        raise DataError(f"{what} ({text[:_MOST_TEXT] or type(error).__name__})") from None
