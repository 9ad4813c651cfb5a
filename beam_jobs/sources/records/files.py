"""Files of records, read by record number: TFRecord files, compressed or not, and ArrayRecord files.

A file is walked once, to index it. If all records of a TFRecord file have the same length, the index is that length,
and any record can be read directly. Otherwise it is the offset of each piece of 1,000 records or 16 MiB, whichever is
less. Compressed files are read from their beginning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from beam_jobs.sources import base, streams
from beam_jobs.sources.records import ranges as record_ranges
from beam_jobs.sources.records import stream as record_stream
from beam_jobs.sources.streams import KnownFile
from beam_jobs.storage.paths import StoragePath
from pipeline.errors import DataError
from pipeline.read import sidecars
from pipeline.records import framing

ARRAY_RECORD = "array_record"
_PIECE_RECORDS = 1000
_PIECE_BYTES = 16 << 20  # 16 MiB


@dataclasses.dataclass(frozen=True)
class RecordFile(KnownFile):
    """One file, as it was when it was indexed.

    Attributes:
      num_records: number of records.
      packing: "" (TFRecord), "gzip" or "zlib" (TFRecord, compressed), or `ARRAY_RECORD`.
      stride: bytes from one record to the next, if all have the same length.
      offsets: (path, CRC32C in hexadecimal) of a file with the byte offset of each record and the size of this file,
        uint64, little-endian; None if there is none.
      marks: (record, its byte offset) of the first record of each piece, and of the file's end, if there is neither
        stride nor offsets.
    """

    num_records: int
    packing: str = ""
    stride: int | None = None
    offsets: tuple[StoragePath, str] | None = None
    marks: tuple[tuple[int, int], ...] = ()

    @property
    def has_random_access(self) -> bool:
        """Whether any record is as cheap to read as any other."""
        return self.packing == ARRAY_RECORD or self.stride is not None or self.offsets is not None

    @property
    def pieces(self) -> list[int]:
        """The number of records in each unit of random access; they sum to `num_records`."""
        firsts = [record for record, _ in self.marks] or [0, self.num_records]
        return [stop - start for start, stop in itertools.pairwise(firsts) if stop > start]


def index(
    path: StoragePath, visit: Callable[[bytes], None] | None = None, tap: Callable[[bytes], None] | None = None
) -> RecordFile:
    """Walks a TFRecord file, compressed or not, and returns its index.

    Args:
      path: the file.
      visit: gets each record.
      tap: gets all bytes, as `stream.records` says.

    Raises:
      DataError: the file cannot be read, is not a TFRecord file, is cut short or corrupt; names the record and offset.
    """
    packing = record_stream.packing_of(path)
    stamp = streams.stamp(path)
    lengths: set[int] = set()
    marks, count, end = [(0, 0)], 0, 0
    for start, end, record in record_stream.records(path, packing, tap):
        if count - marks[-1][0] >= _PIECE_RECORDS or (end - marks[-1][1] > _PIECE_BYTES and count > marks[-1][0]):
            marks.append((count, start))
        if len(lengths) < 2:
            lengths.add(end - start)
        if visit is not None:
            visit(record)
        count += 1
    stride = lengths.pop() if len(lengths) == 1 and not packing else None
    kept = () if packing or stride is not None else (*marks, (count, end))
    return RecordFile(path, stamp, count, packing, stride, marks=kept)


def index_array_record(path: StoragePath) -> RecordFile:
    """Opens an ArrayRecord file, which has its own index.

    Raises:
      DataError: the file cannot be read or is not an ArrayRecord file.
    """
    stamp = streams.stamp(path)
    with _array_record(path) as reader:
        return RecordFile(path, stamp, reader.num_records(), ARRAY_RECORD)


def read(file: RecordFile, rows: NDArray[np.int64]) -> list[bytes]:
    """Returns the records of `rows`, int64 (n,), which ascend; both CRCs of each record are checked.

    Raises:
      DataError: the file has changed, cannot be read, or is corrupt there; names the record and its offset.
    """
    with streams.errors_of(file.path), file.path.open_native() as stream:
        file.check_unchanged()  # after opening it, so that a file that has replaced it is noticed
        if file.packing:
            return _read_array_record(file, rows) if file.packing == ARRAY_RECORD else _read_streamed(file, rows)
        if not file.has_random_access:
            return _read_pieces(file, stream, rows)
        starts, stops = _ranges(file, rows)
        framed = record_ranges.read(stream, starts, stops, file.path.is_remote)
        return [_record(file, data, row, start) for data, row, start in zip(framed, rows.tolist(), starts, strict=True)]


def _record(file: RecordFile, framed: bytes, row: int, start: int) -> bytes:
    fault = framing.check(framed)
    if fault:
        raise DataError(f"{framing.location(file.path, row, start)}: {fault.text}{record_stream.ADVICE}")
    return framed[framing.HEADER : -framing.FOOTER]


def _ranges(file: RecordFile, rows: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Returns the byte offsets of records, and of their ends."""
    if file.stride is not None:
        return (rows * file.stride).tolist(), ((rows + 1) * file.stride).tolist()
    offsets = _load_offsets(file)
    return offsets[rows].tolist(), offsets[rows + 1].tolist()


@functools.lru_cache(maxsize=64)
def _load_offsets(file: RecordFile) -> NDArray[np.int64]:
    assert file.offsets is not None
    (path, crc), num_bytes = file.offsets, file.stamp[0]
    data = path.read_bytes()
    try:
        offsets = sidecars.parse_offsets(data, len(data), file.num_records, crc)
    except ValueError as error:
        raise DataError(f"{path}: {error}; convert the data again") from None
    if offsets[0] != 0 or offsets[-1] != num_bytes or (np.diff(offsets) < 0).any():
        raise DataError(f"{path}: its offsets do not ascend from 0 to {num_bytes}; convert the data again")
    return offsets


def _read_pieces(file: RecordFile, stream: pyarrow.NativeFile, rows: NDArray[np.int64]) -> list[bytes]:
    """Returns records out of the pieces that hold them, with one piece in memory at a time."""
    found: list[bytes] = []
    for piece, _, own in base.by_part(file.pieces, rows):
        (number, start), (_, stop) = file.marks[piece], file.marks[piece + 1]
        read, advice = _at_once(stream.read_at(stop - start, start)), record_stream.ADVICE
        walked = framing.records(read, file.path, advice=advice, number=number, offset=start)
        records = [record for _, _, record in walked]
        found += [records[row] for row in own.tolist()]
    return found


def _at_once(data: bytes) -> framing.Read:
    rest = io.BytesIO(data)
    return lambda _: rest.read()


def _read_streamed(file: RecordFile, rows: NDArray[np.int64]) -> list[bytes]:
    """Returns records of a compressed file, which is read up to the last of them."""
    wanted, records = set(rows.tolist()), record_stream.records(file.path, file.packing)
    numbers = range(int(rows[-1]) + 1)
    found = {number: record for number, (_, _, record) in zip(numbers, records, strict=False) if number in wanted}
    return [found[row] for row in rows.tolist()]


def _read_array_record(file: RecordFile, rows: NDArray[np.int64]) -> list[bytes]:
    with _array_record(file.path) as reader:
        found: list[bytes] = reader.read(rows.tolist())
    return found


@contextlib.contextmanager
def _array_record(path: StoragePath) -> Iterator[Any]:
    from array_record.python import array_record_module  # noqa: PLC0415 (optional: it comes with TFDS)

    try:
        reader = array_record_module.ArrayRecordReader(str(path))
        try:
            yield reader
        finally:
            reader.close()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: an ArrayRecord file that cannot be read ({reason}); get it again") from None
