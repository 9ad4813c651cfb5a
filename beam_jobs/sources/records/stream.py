"""TFRecord files of other writers, read front to back; GZIP and ZLIB are decompressed on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from beam_jobs.sources import streams
from beam_jobs.storage.paths import StoragePath
from pipeline.errors import DataError
from pipeline.records import framing
from pipeline.records.stream import RecordStream

ADVICE = "; the file is corrupt, get it again"


def packing_of(path: StoragePath) -> str:
    """Returns how a TFRecord file is compressed, by its first bytes: "" for plain, "gzip" or "zlib".

    Raises:
      DataError: it cannot be read, or begins like none of these.
    """
    with streams.errors_of(path), streams.open_plain(path) as stream:
        start = stream.read(framing.HEADER)
    # First of all a whole header with its CRC, as the length of a record may look like gzip's magic.
    if not start or (len(start) == framing.HEADER and framing.claimed_length(start) is not None):
        return ""
    if start.startswith(streams.GZIP_MAGIC):
        return "gzip"
    if start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:  # RFC 1950: deflate, the header's check
        return "zlib"
    raise DataError(f"{path}: begins with 0x{start.hex()}: neither a TFRecord's header nor GZIP or ZLIB")


def records(
    path: StoragePath, packing: str, tap: Callable[[bytes], object] | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Yields (byte offset, byte offset of its end, record) of every record, each checked.

    Args:
      path: the file.
      packing: what `packing_of` returned; offsets count decompressed bytes.
      tap: gets the file's bytes as they are read; decompressed ones if it is gzip.

    Raises:
      DataError: the file cannot be read, is cut short or corrupt; names the record and its offset.
    """
    with streams.errors_of(path), path.open("rb") as raw:
        stream = RecordStream(_tapped(raw.read, tap) if tap and packing != "gzip" else raw.read, packing.upper())
        read = _tapped(stream.read, tap) if tap and packing == "gzip" else stream.read
        yield from framing.records(read, path, is_compressed=bool(packing), advice=ADVICE)


def _tapped(read: framing.Read, tap: Callable[[bytes], object]) -> framing.Read:
    def tapped(size: int) -> bytes:
        data = read(size)
        tap(data)
        return data

    return tapped
