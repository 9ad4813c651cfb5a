"""Files of `tf.train.Example` records by any program: an index of the records, and reading by record number.

TFRecord files, compressed or not, are walked once, which builds an index; ArrayRecord files have their own. If all
records have the same length, the index is that length, and any record can be read directly. Otherwise it is the offset
of each piece of 1,000 records or 16 MiB, whichever is less. Compressed files are always read from their beginning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from beam_jobs import flag_values
from beam_jobs.sources import base, streams
from beam_jobs.sources.base import LABEL, Block, BlockBuilder, Files, Source, Texts
from beam_jobs.sources.streams import KnownFile
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, line_of, unknown
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature, ShardInfo, SourceFile
from pipeline.read import sidecars
from pipeline.records import framing, labels, tf_example
from pipeline.records.schema import OWN_FEATURES, Schema, kind
from pipeline.records.stream import RecordStream
from pipeline.records.tf_example import Layout

_ADVICE = "the file is corrupt, get it again"
_GAP = 64 << 10  # 64 KiB: reading across such a gap is cheaper than another call
_SPAN = 8 << 20  # 8 MiB read at once, or one record
_REMOTE_GAP = 256 << 10  # 256 KiB: a fraction of what a store sends in the latency of a request
_WHOLE = 10  # if more than a tenth of a remote file is needed, read it from the first range to the last
_REQUESTS = 8  # in flight; as many spans are in memory
ARRAY_RECORD = "array_record"
_PIECE_RECORDS = 1000
_PIECE_BYTES = 16 << 20  # 16 MiB


@dataclasses.dataclass(frozen=True)
class RecordFile(KnownFile):
    """A file, as it was when it was indexed.

    Attributes:
      num_records: number of records.
      packing: "" (TFRecord), "gzip" or "zlib" (TFRecord, compressed), or `ARRAY_RECORD`.
      stride: bytes from one record to the next; None if records differ in length.
      offsets: folder of a converted data set and the file's entry in its manifest, if a sidecar has the byte offset of
        each record; else None.
      marks: (record, byte offset) of the start of each piece and of the end of the file; empty with a stride or
        offsets.
    """

    num_records: int
    packing: str = ""
    stride: int | None = None
    offsets: tuple[StoragePath, ShardInfo] | None = None
    marks: tuple[tuple[int, int], ...] = ()

    @property
    def has_random_access(self) -> bool:
        """Whether every record is equally cheap to read."""
        return self.packing == ARRAY_RECORD or self.stride is not None or self.offsets is not None

    @property
    def pieces(self) -> list[int]:
        """Number of records in each unit of random access; sums to `num_records`."""
        firsts = [record for record, _ in self.marks] or [0, self.num_records]
        return [stop - start for start, stop in itertools.pairwise(firsts) if stop > start]


def index(
    path: StoragePath, visit: Callable[[bytes], None] | None = None, tap: Callable[[bytes], None] | None = None
) -> RecordFile:
    """Walks a TFRecord file, compressed or not, and returns its index.

    Args:
      path: the file.
      visit: function called with each record.
      tap: function called with the file's bytes as they are read; decompressed bytes for gzip.

    Raises:
      DataError: the file cannot be read, is not a TFRecord file, is cut short or corrupt; the message names the record
        and offset.
    """
    packing = packing_of(path)
    stamp = streams.stamp(path)
    lengths: set[int] = set()
    marks, count, end = [(0, 0)], 0, 0
    for start, end, record in stream_records(path, packing, tap):
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
    """Returns the records numbered `rows`, int64 (n,), ascending; checks both CRCs of each record.

    Raises:
      DataError: the file has changed, cannot be read, or is corrupt there; the message names the record and its offset.
    """
    with streams.errors_of(file.path), file.path.open_native() as stream:
        file.check_unchanged()  # after opening it, to notice a file that has replaced it
        if file.packing == ARRAY_RECORD:
            with _array_record(file.path) as reader:
                found: list[bytes] = reader.read(rows.tolist())
            return found
        if file.packing:  # read from its beginning up to the last of these records
            wanted, walked = set(rows.tolist()), stream_records(file.path, file.packing)
            upto = zip(range(int(rows[-1]) + 1), walked, strict=False)
            records = {number: record for number, (_, _, record) in upto if number in wanted}
            return [records[row] for row in rows.tolist()]
        if not file.has_random_access:
            return _read_pieces(file, stream, rows)
        return _read_directly(file, stream, rows)


def _read_directly(file: RecordFile, stream: pyarrow.NativeFile, rows: NDArray[np.int64]) -> list[bytes]:
    if file.stride is not None:
        starts, stops = (rows * file.stride).tolist(), ((rows + 1) * file.stride).tolist()
    else:
        offsets = _load_offsets(file)
        starts, stops = offsets[rows].tolist(), offsets[rows + 1].tolist()
    found = []
    framed = read_ranges(stream, starts, stops, file.path.is_remote)
    for data, row, start in zip(framed, rows.tolist(), starts, strict=True):
        if fault := framing.check(data):
            raise DataError(fault.text, path=file.path, record=row, offset=start, advice=_ADVICE)
        found.append(data[framing.HEADER : -framing.FOOTER])
    return found


@functools.lru_cache(maxsize=64)
def _load_offsets(file: RecordFile) -> NDArray[np.int64]:
    assert file.offsets is not None
    offsets, num_bytes = sidecars.shard_offsets(*file.offsets), file.stamp[0]
    if offsets[0] != 0 or offsets[-1] != num_bytes or (np.diff(offsets) < 0).any():
        problem = f"the offsets in its sidecar do not ascend from 0 to {num_bytes}"
        raise DataError(problem, path=file.path, advice="convert the data again")
    return offsets


def _read_pieces(file: RecordFile, stream: pyarrow.NativeFile, rows: NDArray[np.int64]) -> list[bytes]:
    found: list[bytes] = []
    for piece, _, own in base.by_part(file.pieces, rows):  # one piece is in memory at a time
        (number, start), (_, stop) = file.marks[piece], file.marks[piece + 1]
        whole = io.BytesIO(stream.read_at(stop - start, start))
        walked = framing.records(whole.read, file.path, advice=_ADVICE, number=number, offset=start)
        records = [record for _, _, record in walked]
        found += [records[row] for row in own.tolist()]
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
        raise DataError(
            f"an ArrayRecord file that cannot be read ({line_of(error)})", path=path, advice="get it again"
        ) from None


def packing_of(path: StoragePath) -> str:
    """Returns the compression of a TFRecord file, from its first bytes: "" for none, "gzip" or "zlib".

    Raises:
      DataError: the file cannot be read, or begins like none of these.
    """
    with streams.errors_of(path), streams.open_plain(path) as stream:
        start = stream.read(framing.HEADER)
    packing = framing.packing_of(start)
    if packing is None:
        raise DataError(f"begins with 0x{start.hex()}: neither a TFRecord's header nor GZIP or ZLIB", path=path)
    return packing.lower()


def stream_records(
    path: StoragePath, packing: str, tap: Callable[[bytes], object] | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Yields (byte offset, byte offset of the end, record) for every record, after checking it.

    Args:
      path: the file.
      packing: result of `packing_of`; with compression, offsets count decompressed bytes.
      tap: function called with the file's bytes as they are read; decompressed bytes for gzip.

    Raises:
      DataError: the file cannot be read, is cut short or corrupt; the message names the record and its offset.
    """
    with streams.errors_of(path), path.open("rb") as raw:
        stream = RecordStream(_tapped(raw.read, tap) if tap and packing != "gzip" else raw.read, packing.upper())
        read = _tapped(stream.read, tap) if tap and packing == "gzip" else stream.read
        yield from framing.records(read, path, is_compressed=bool(packing), advice=_ADVICE)


def _tapped(read: framing.Read, tap: Callable[[bytes], object]) -> framing.Read:
    def tapped(size: int) -> bytes:
        data = read(size)
        tap(data)
        return data

    return tapped


def read_ranges(
    stream: pyarrow.NativeFile, starts: Sequence[int], stops: Sequence[int], remote: bool
) -> Iterator[bytes]:
    """Yields the bytes of each range; reads nearby ranges together, up to 8 MiB.

    Memory: the ranges, and for a remote file eight spans of 8 MiB.

    Args:
      stream: file to read. Remote files are read by several threads, and each call is a request.
      starts, stops: byte offsets of the ranges, ascending.
      remote: whether the file is remote.
    """

    def cut(span: tuple[int, int]) -> list[bytes]:
        first, end = span
        base = starts[first]
        data = stream.read_at(stops[end - 1] - base, base)
        return [data[starts[i] - base : stops[i] - base] for i in range(first, end)]

    if not remote:
        for span in _spans(starts, stops, _GAP):
            yield from cut(span)
        return
    size = stream.size()
    gap = size if (sum(stops) - sum(starts)) * _WHOLE > size else _REMOTE_GAP
    spans = list(_spans(starts, stops, gap))
    with ThreadPoolExecutor(_REQUESTS) as pool:
        for found in pool.map(cut, spans):
            yield from found


def _spans(starts: Sequence[int], stops: Sequence[int], gap: int) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of each group of ranges to read together."""
    first = 0
    while first < len(starts):
        end = first + 1
        while end < len(starts) and starts[end] <= stops[end - 1] + gap and stops[end] - starts[first] <= _SPAN:
            end += 1
        yield first, end
        first = end


def block_of(columns: Schema, records: Sequence[bytes], keys: NDArray[np.bytes_] | None) -> Block:
    """Parses serialized Examples into a block.

    Args:
      columns: features to read.
      records: serialized Examples.
      keys: keys of the Examples if they contain none.
    """
    builder = BlockBuilder(len(records), columns.extra, columns.image_shape, keys, _label_feature(columns))
    for number, record in enumerate(records):
        try:
            row = columns.row(record)
            is_raw = columns.image_shape is not None
            pixels = np.frombuffer(row.image, np.uint8).reshape(columns.image_shape) if is_raw else row.image
            builder.images[number] = pixels
            builder.labels[number] = _label(columns, row.label)
            if row.key is not None:
                builder.keys[number] = _key(columns.key, row.key)
            for name, value in row.extra.items():
                builder.extra[name][number] = value
        except ValueError as error:
            builder.bad[number] = str(error)
    return builder.finished()


def _label_feature(columns: Schema) -> Feature:
    """Returns the feature of the labels in blocks, translated from the form in the records."""
    return base.CLASS if columns.has_text_labels else Feature(columns.labels.dtype, columns.labels.shape)


def _label(columns: Schema, stored: Any) -> Any:
    if stored is None:
        raise ValueError(f"there is no feature {columns.label!r}")
    if not columns.labels.is_class:
        return stored
    label: int = columns.labels.label_of(stored if isinstance(stored, bytes) else int(stored))
    if label < 0 and isinstance(stored, bytes):
        text = stored.decode(errors="backslashreplace")
        raise ValueError(f"feature {columns.label!r} {labels.refusal(text)}")
    return label


def _key(name: str, stored: bytes | int) -> bytes:
    key = stored if isinstance(stored, bytes) else str(stored).encode()
    if not key:
        raise ValueError(f"feature {name!r}, the key, is empty")
    return key


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RecordSource(Source):
    """Indexed record files. Pickles to some 200 bytes per file, plus 8 per piece if records differ in length.

    Attributes:
      columns: features to read.
      records: {split: its files}.
    """

    columns: Schema
    records: dict[str, tuple[RecordFile, ...]]

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        filled = [file for file in self.records[split] if file.num_records]
        if all(file.has_random_access for file in filled):
            return None
        return np.array([rows for file in filled for rows in file.pieces], np.int64)

    def texts(self, column: str, needed: str = "") -> Texts:
        files = tuple(file for split in self.splits for file in self.records[split])
        names = [name for split in self.splits for name in self.parts[split].names]
        if flag_values.path_pattern(column) is not None:
            raise UsageError(f"{column}: records have no paths of images; name one of their features")
        codes, values, others = _texts(files, self.columns.label if column == LABEL else column)
        if not any(values):
            raise unknown(f"{(needed or f'--stratify={column}').partition('=')[0]}: feature", column, others)
        if needed and "" in values:
            missing = np.flatnonzero(codes == values.index("")).astype(np.int64)
            (number, _, row) = next(base.by_part([file.num_records for file in files], missing[:1]))
            problem = f"feature {column!r} has no value, which {needed} needs ({count_of(len(missing), 'such record')})"
            advice = "give these records values, each its own if nothing connects them"
            raise DataError(problem, path=names[number], record=int(row[0]), advice=advice)
        if column == LABEL and self.columns.labels.stored_dtype == "int64":
            labels_of = {value: self.columns.labels.label_of(int(value)) for value in values if value}
            known = dict(enumerate(self.class_names))
            values = tuple(known.get(labels_of[value], value) if value else "" for value in values)
        return Texts(codes, values)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        files, columns = self.parts[split], self.columns
        records = [b""] * len(rows)
        for number, chosen, own in base.by_part(files.counts, rows):
            found = read(self.records[split][number], own)
            for row, record in zip(chosen.tolist(), found, strict=True):
                records[row] = record
        if columns == Schema(*OWN_FEATURES, image_shape=columns.image_shape) and columns.image_shape and records:
            block = _as_matrix(records, columns.image_shape)
            if block is not None:
                return block
        return block_of(columns, records, None if columns.key else files.keys(rows))


@functools.lru_cache(maxsize=4)
def _texts(files: tuple[RecordFile, ...], name: str) -> tuple[NDArray[np.int64], tuple[str, ...], list[str]]:
    """Returns the fields of `Texts` for a feature of all records, and the names of other features with a single value.

    A record must have at most one value, a text or a whole number.
    """
    codes, found, others = dict[str, int](), list[int](), set[str]()
    for file in files:
        file.check_unchanged()
        for number, record in enumerate(_all_records(file)):
            features = dict[str, Any]()
            with contextlib.suppress(ValueError):  # it is an invalid row
                features = tf_example.decode(record, [name] if codes.keys() > {""} else None)
            others |= {other for other, values in features.items() if len(values) == 1}
            values = features.get(name, [])
            if len(values) > 1 or (kind(values) == "float" and len(values)):
                problem = (
                    f"feature {name!r} has {count_of(len(values), 'value')} of {kind(values)}, not one text or integer"
                )
                raise DataError(problem, path=file.path, record=number)
            value = values[0] if len(values) else b""
            text = value.decode(errors="surrogateescape").strip() if isinstance(value, bytes) else str(value)
            found.append(codes.setdefault(text, len(codes)))
    return np.array(found, np.int64), tuple(codes), sorted(others - {name})


def _all_records(file: RecordFile) -> Iterator[bytes]:
    if file.packing != ARRAY_RECORD:
        yield from (record for _, _, record in stream_records(file.path, file.packing))
        return
    for start in range(0, file.num_records, _PIECE_RECORDS):
        yield from read(file, np.arange(start, min(start + _PIECE_RECORDS, file.num_records)))


def source_of(
    dataset: str,
    class_names: tuple[str, ...],
    root: StoragePath,
    columns: Schema,
    records: dict[str, tuple[RecordFile, ...]],
    files: tuple[SourceFile, ...],
    unique_keys: bool = True,
) -> RecordSource:
    """Returns a source for files whose names in keys and errors are relative to the folder `root`."""
    parts = {
        split: Files(tuple(file.path.name_in(root) for file in own), tuple(file.num_records for file in own))
        for split, own in records.items()
    }
    return RecordSource(
        dataset=dataset,
        class_names=class_names,
        files=files,
        splits=base.rows_of(parts, root),
        image_shape=columns.image_shape,
        label=_label_feature(columns),
        features=columns.extra,
        unique_keys=unique_keys,
        parts=parts,
        columns=columns,
        records=records,
    )


def _as_matrix(records: Sequence[bytes], image_shape: tuple[int, int, int]) -> Block | None:
    """Returns the block of records that differ only in the bytes of image, label and key; None if more differs."""
    size = len(records[0])
    if any(len(record) != size for record in records):
        return None
    layout = Layout.fit(size, math.prod(image_shape))
    if layout is None or layout.key.start == layout.key.stop:
        return None
    rows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
    if layout.mismatch(rows).any():
        return None
    keys = np.ascontiguousarray(rows[:, layout.key])
    if not keys[:, -1].all():  # NumPy would take trailing zeros for padding
        return None
    images = np.ascontiguousarray(rows[:, layout.image]).reshape(len(records), *image_shape)
    return Block(images, rows[:, layout.label.start].astype(np.int64), keys.view(f"S{keys.shape[1]}")[:, 0])
