"""Reads the records of a finished shard in order and checks each."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from beam_jobs.storage.paths import AnyPath
from pipeline.errors import DataError
from pipeline.records import example_proto, framing


def records(path: AnyPath) -> Iterator[bytes]:
    """Yields the records of a shard.

    Raises:
      DataError: it cannot be read, or a record is cut or corrupt: with its number and byte offset.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    for _, record in framing.records(data, str(path)):
        yield record


def key_of(record: bytes) -> bytes:
    """Returns the key of an example."""
    return bytes(example_proto.decode(record)["key"][0])
