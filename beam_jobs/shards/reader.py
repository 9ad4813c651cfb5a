"""Reads the records of a finished shard in order and checks each."""

from __future__ import annotations

from collections.abc import Iterator

from beam_jobs.storage.errors import one_line
from beam_jobs.storage.paths import StoragePath
from pipeline.records import example_proto, walk
from pipeline.records.stream import RecordStream


def records(path: StoragePath) -> Iterator[bytes]:
    """Yields the records of a shard.

    Raises:
      DataError: it cannot be read, or a record is cut or corrupt: with its number and byte offset.
    """
    with one_line(path, "read"), path.open("rb", 0) as file:
        compression = "GZIP" if path.suffix == ".gz" else ""
        stream = RecordStream(file.read, compression)
        for _, _, record in walk.records(stream.read, path, is_compressed=bool(compression)):
            yield record


def key_of(record: bytes) -> bytes:
    """Returns the key of an example."""
    return bytes(example_proto.decode(record)["key"][0])
