"""Walks a compressed shard member by member, past corrupt ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.records.framing import Frame, Read, walk
from pipeline.records.members import MemberTable, inflate


def frames(
    read: Read, table: MemberTable, size_of: Callable[[int, int], int | None], on_corrupt: Callable[[str, str], None]
) -> Iterator[Frame]:
    """Yields a frame for every record of the shard; one of a corrupt member has neither a record nor a fault.

    Args:
      read: returns the next bytes of the file, as it is stored.
      table: where its members lie.
      size_of: as `walk` takes it.
      on_corrupt: gets (where, what is wrong) of each corrupt member.
    """
    rest = b""
    for member, offset in enumerate(table.offsets[:-1].tolist()):
        size = int(table.offsets[member + 1]) - offset
        while len(rest) < size and (more := read(size - len(rest))):
            rest += more
        data, rest = rest[:size], rest[size:]
        first, stop = table.firsts[member : member + 2].tolist()
        begins = table.begins_of(first, stop).tolist()
        whole = bytearray(begins[-1] - begins[0])
        try:
            inflate(data, memoryview(whole))
        except ValueError as error:
            on_corrupt(f", GZIP member at byte offset {offset}, records {first} to {stop - 1}", str(error))
            whole = bytearray()
        number = first
        for frame in walk(_once(bytes(whole)), size_of, first, begins[0]):
            number = frame.number + 1
            # Nothing may be lost but what lies behind it in this member.
            yield frame if frame.end > frame.offset else frame._replace(end=begins[number - first])
        for lost in range(number, stop):
            yield Frame(lost, begins[lost - first], begins[lost - first + 1], None, None)


def _once(data: bytes) -> Read:
    pieces = [data]
    return lambda _: pieces.pop() if pieces else b""
