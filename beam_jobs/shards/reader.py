"""Reads the records of a finished shard in order and checks each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from beam_jobs.storage.errors import one_line
from beam_jobs.storage.paths import StoragePath
from pipeline.records import framing, tf_example
from pipeline.records.stream import RecordStream


@contextlib.contextmanager
def opened(path: StoragePath, compression: str) -> Iterator[RecordStream]:
    """Opens a shard. Raises OSError if it cannot be read."""
    with path.open("rb", 0) as file:
        yield RecordStream(file.read, compression)


def records(path: StoragePath) -> Iterator[bytes]:
    """Yields the records of a shard.

    Raises:
      DataError: it cannot be read, or a record is cut or corrupt: with its number and byte offset.
    """
    compression = compression_of(path)
    with one_line(path, "read"), opened(path, compression) as stream:
        for _, _, record in framing.records(stream.read, path, is_compressed=bool(compression)):
            yield record


def compression_of(path: StoragePath) -> str:
    """Returns the compression of a shard that a conversion wrote, by its name."""
    return "GZIP" if path.suffix == ".gz" else ""


def key_of(record: bytes) -> bytes:
    """Returns the key of an example."""
    return bytes(tf_example.decode(record)["key"][0])


def located_keys(
    path: StoragePath, numbers: set[int], compression: str, stride: int | None = None
) -> dict[int, tuple[str, str]]:
    """Returns {number: (where the record lies, its key), both as text} of some records of a shard.

    Records that cannot be read are left out. `stride` helps to pass damaged ones.
    """

    def size_of(number: int, offset: int) -> int | None:
        return stride if offset == number * (stride or 0) else None

    found = {}
    with contextlib.suppress(OSError), opened(path, compression) as stream:
        for frame in framing.walk(stream.read, size_of):
            if frame.number in numbers and frame.record is not None:
                where = framing.location("", frame.number, frame.offset, bool(compression))
                found[frame.number] = where, repr(key_of(frame.record).decode(errors="backslashreplace"))
            if len(found) == len(numbers):
                break
    return found
