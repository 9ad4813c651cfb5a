"""Data sets in Arrow files: IPC files and streams, Feather, and the folders of Hugging Face's `save_to_disk`.

The unit of reading is the record batch. Batches are read at their offsets, and not mapped into memory, as a mapped file
that is truncated kills the process.
Format: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from beam_jobs.sources import grouped, listing, streams
from beam_jobs.sources.arrow_types import HUGGING_FACE
from beam_jobs.sources.base import SOURCES, Source, SourceOptions
from beam_jobs.sources.blocks import arrow_errors
from beam_jobs.sources.grouped import MAX_GROUP_BYTES, Format, GroupedFile, OpenFile
from pipeline.commands.text import count_of
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import SourceFile
from pipeline.records import splits

_SUFFIXES = (".arrow", ".feather", ".ipc")
_KINDS = f"--source of arrow is a file ({', '.join(_SUFFIXES)}), a folder of such or of save_to_disk, or a glob"
_INDEXES = 256  # files whose offsets a process keeps
_MAGIC, _FEATHER_1 = b"ARROW1", b"FEA1"
_START = 8  # bytes before the first message of a file: the magic, padded
_PREFIX = struct.Struct("<Ii")  # prefix of a message: magic, length of its metadata
_MARK = 0xFFFFFFFF
_MAX_METADATA = 64 << 20  # 64 MiB
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_INFO, _STATE, _DICT = "dataset_info.json", "state.json", "dataset_dict.json"  # files that save_to_disk writes


@dataclasses.dataclass(frozen=True)
class _Index:
    """The layout of an Arrow file, from its own metadata.

    Attributes:
      schema: columns of the file.
      is_stream: whether it has no footer.
      has_dictionaries: whether columns are encoded by dictionaries.
      batches: (offset, length, rows) of each record batch.
    """

    schema: pa.Schema
    is_stream: bool
    has_dictionaries: bool
    batches: tuple[tuple[int, int, int], ...]


@dataclasses.dataclass(frozen=True)
class ArrowFile(GroupedFile):
    """An Arrow file, whose messages are found once per process.

    Attributes:
      features: features that Hugging Face's `dataset_info.json` beside it declares, as JSON; "" if there is none.
    """

    features: str = ""

    def _open(self, stack: contextlib.ExitStack) -> OpenFile:
        with streams.errors_of(self.path), arrow_errors(self.path, "cannot be read as Arrow"):
            index = _index(self.path, self.stamp)
            stream = stack.enter_context(self.path.open_native())
        return _OpenArrow(self.path, dict(self.partitions), self.fills, stream, index, self.features)


@dataclasses.dataclass(frozen=True)
class _OpenArrow(OpenFile):
    stream: pa.NativeFile
    index: _Index
    features: str

    @property
    def own_schema(self) -> pa.Schema:
        if not self.features:
            return self.index.schema
        info = f'{{"info": {{"features": {self.features}}}}}'
        return self.index.schema.with_metadata({**(self.index.schema.metadata or {}), HUGGING_FACE: info.encode()})

    @property
    def groups(self) -> range:
        return range(len(self.index.batches))

    def count(self, group: int) -> int:
        return self.index.batches[group][2]

    def read(self, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the record batch with the columns that hold the given paths. Memory: for a stream, all columns."""
        wanted = list(dict.fromkeys(self._column(name) for name in names))
        schema = self.index.schema
        if self.index.is_stream:
            offset, length, _ = self.index.batches[group]
            message = pa.ipc.read_message(self.stream.read_at(length, offset))
            batch = pa.ipc.read_record_batch(message, schema)
        else:
            fields = sorted(schema.names.index(name) for name in wanted)
            options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            batch = pa.ipc.open_file(self.stream, options=options).get_batch(group)
        batch = batch.select(wanted)
        batch.validate(full=True)  # offsets of corrupt files would be followed anywhere
        yield batch

    def _column(self, name: str) -> str:
        return next(column for column in self.index.schema.names if column == name or name.startswith(f"{column}."))

    def rows_of_groups(self, names: Sequence[str]) -> tuple[int, ...]:
        del names
        for group, (_, length, rows) in enumerate(self.index.batches):
            if length > MAX_GROUP_BYTES:
                raise DataError(
                    f"record batch {group}: has {count_of(length, 'byte')} in {count_of(rows, 'row')}, above "
                    f"{MAX_GROUP_BYTES:,}",
                    path=self.path,
                    advice="write it in smaller batches: pyarrow.feather.write_feather(table, path, chunksize=1000)",
                )
        return tuple(rows for _, _, rows in self.index.batches)


@functools.lru_cache(maxsize=_INDEXES)
def _index(path: StoragePath, stamp: tuple[int, int]) -> _Index:
    """Finds the messages of a file by their metadata, without reading their bodies."""
    del stamp  # part of the cache's key
    with path.open_native() as stream:
        size, start = stream.size(), stream.read_at(_START, 0)
        if start.startswith(_FEATHER_1):
            advice = "write it again: pyarrow.feather.write_feather(pyarrow.feather.read_table(path), other)"
            raise DataError("is Feather version 1", path=path, advice=advice)
        is_stream = not start.startswith(_MAGIC)
        if not is_stream and stream.read_at(len(_MAGIC), size - len(_MAGIC)) != _MAGIC:
            raise streams.damaged(path, "is cut short: it does not end as an Arrow file does")
        schema, has_dictionaries, batches = None, False, []
        for kind, offset, length, rows in _messages(path, stream, 0 if is_stream else _START, size):
            if schema is None:
                if kind != _SCHEMA:
                    break
                schema = pa.ipc.read_schema(pa.py_buffer(stream.read_at(length, offset)))
                list(schema.names)  # raises an error here if a name is not text
            elif kind == _BATCH:
                batches.append((offset, length, rows))
            has_dictionaries |= kind == _DICTIONARY
    if schema is None:
        raise DataError("is not an Arrow file: it does not begin with a schema", path=path, advice=_KINDS)
    if is_stream and has_dictionaries:
        advice = "write it as a file: pyarrow.feather.write_feather(pyarrow.ipc.open_stream(path).read_all(), other)"
        raise DataError(
            "is a stream with dictionaries, whose batches cannot be read one by one", path=path, advice=advice
        )
    return _Index(schema, is_stream, has_dictionaries, tuple(batches))


def _messages(path: StoragePath, stream: pa.NativeFile, at: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (kind, offset, length, rows) of the messages up to the mark that ends them."""
    while True:
        prefix = stream.read_at(_PREFIX.size, at)
        if len(prefix) < _PREFIX.size:
            raise streams.damaged(path, "is cut short: the mark at the end is missing")
        mark, length = _PREFIX.unpack(prefix)
        if mark == _MARK and length == 0:
            return
        if mark != _MARK or not 0 < length <= _MAX_METADATA:
            raise DataError(f"is not an Arrow file: there is no message at byte {at:,}", path=path, advice=_KINDS)
        try:
            kind, rows, body = _header(stream.read_at(length, at + _PREFIX.size))
        except (struct.error, IndexError):
            raise streams.damaged(path, f"its message at byte {at:,} is corrupt") from None
        total = _PREFIX.size + length + body
        if body < 0 or rows < 0:
            raise streams.damaged(path, f"its message at byte {at:,} is corrupt")
        if at + total > size:
            problem = f"is cut short: its message at byte {at:,} has {count_of(total, 'byte')}, the file {size:,}"
            raise streams.damaged(path, problem)
        yield kind, at, total, rows
        at += total


def _header(metadata: bytes) -> tuple[int, int, int]:
    """Returns the kind of a message, the rows of a record batch (else 0), and the length of its body.

    The metadata is a flatbuffer of the table Message {version, header_type, header, bodyLength, ...}, whose header is a
    RecordBatch {length, ...}: https://github.com/apache/arrow/blob/main/format/Message.fbs
    """
    (message,) = struct.unpack_from("<I", metadata, 0)
    kind_at, header_at, body_at = (_field(metadata, message, number) for number in (1, 2, 3))
    kind = metadata[kind_at] if kind_at else 0
    body = struct.unpack_from("<q", metadata, body_at)[0] if body_at else 0
    rows = 0
    if kind == _BATCH and header_at:
        header = header_at + struct.unpack_from("<I", metadata, header_at)[0]
        length_at = _field(metadata, header, 0)
        rows = struct.unpack_from("<q", metadata, length_at)[0] if length_at else 0
    return kind, rows, body


def _field(buffer: bytes, table: int, number: int) -> int:
    """Returns the place of a field of a flatbuffer's table; 0 if it has its default."""
    start = table - struct.unpack_from("<i", buffer, table)[0]
    (size,) = struct.unpack_from("<H", buffer, start)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", buffer, start + entry)[0] if entry < size else 0
    return table + offset if offset else 0


@SOURCES.named("arrow", needs="an Arrow or Feather file, a folder of them or of save_to_disk, or a glob")
def open_source(options: SourceOptions) -> Source:
    """Opens Arrow files, as `grouped.open_source` does."""
    return grouped.open_source(options, Format(_find, _open, _describe))


def _open(path: StoragePath) -> ArrowFile:
    info = _json(path.parent / _INFO).get("features")
    return ArrowFile(path, streams.stamp(path), features=json.dumps(info) if isinstance(info, dict) else "")


def _describe(folder: StoragePath, names: Sequence[str]) -> tuple[SourceFile, ...]:
    return streams.describe([(name, LocalPath(str(folder / name))) for name in names])


def _find(options: SourceOptions) -> tuple[StoragePath, dict[str, list[str]]]:
    is_arrow = functools.partial(listing.is_visible, suffixes=_SUFFIXES)
    folder, names = listing.find(options.source, is_arrow, True, f"{', '.join(_SUFFIXES)}, at any depth", _KINDS)
    is_given = options.split_column not in ("", splits.NO_COLUMN)
    states = {parent: _json(folder / parent / _STATE) for parent in {_parent(name) for name in names}}
    of_state = {parent: _listed(folder, parent, state) for parent, state in states.items() if "_data_files" in state}
    # Caches of `map` and `filter` are next to its files.
    names = [name for name in names if _parent(name) not in of_state or name in of_state[_parent(name)]]
    told = _json(folder / _DICT).get("splits")
    if is_given or not of_state:
        return folder, grouped.by_names(folder, names, options)
    if isinstance(told, list) and set(told) >= of_state.keys():
        return folder, _of_dict(folder, told, of_state, options.splits)
    if [*of_state] == [""]:
        split = splits.of_value(str(states[""].get("_split") or ""), True) or splits.TRAIN
        return folder, {split: names}
    return folder, grouped.by_names(folder, names, options)


def _of_dict(
    folder: StoragePath, told: Sequence[str], files: dict[str, list[str]], wanted: Sequence[str]
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in told:
        split = splits.of_value(str(name), True)
        if not split or split in found:
            problem = f"its split {name!r} " + ("is there twice" if split else "has no name that a split can have")
            advice = "rename it and save again; a name has letters, digits and _ only, and val is validation"
            raise DataError(problem, path=folder / _DICT, advice=advice)
        if name not in files:
            raise streams.damaged(folder, f"has no files of split {name!r}, which {_DICT} lists")
        found[split] = files[name]
    return {split: found[split] for split in splits.among(splits.in_order(found), wanted)}


def _listed(folder: StoragePath, parent: str, state: dict[str, Any]) -> list[str]:
    place = folder / parent if parent else folder
    try:
        names = [str(file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError):
        raise DataError("does not say which files hold the data", path=place / _STATE, advice="save it again") from None
    if state.get("_indices_data_files"):
        problem = "says that an index file chooses the rows, which is not read"
        raise DataError(problem, path=place / _STATE, advice="call flatten_indices() before save_to_disk")
    for name in names:
        if not (place / name).exists():
            raise streams.damaged(place / name, f"is missing; {_STATE} lists it")
    return [f"{parent}/{name}" if parent else name for name in names]


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _json(path: StoragePath) -> dict[str, Any]:
    """Returns the object in a JSON file; empty if there is none."""
    if not path.exists():
        return {}
    with streams.errors_of(path), path.open("rb") as stream:
        try:
            found = json.loads(stream.read())
        except (ValueError, RecursionError):
            raise streams.damaged(path, "is not JSON") from None
    return found if isinstance(found, dict) else {}
