"""Walks over the records of a shard, past bad ones where something tells where the next begins."""

from __future__ import annotations

import dataclasses
import struct
from array import array
from collections.abc import Iterator, Sequence

import crc32c

from beam_jobs.validation.stream import CompressionError, ShardStream
from pipeline.records import framing

_CONTAINER = framing.HEADER + framing.FOOTER


@dataclasses.dataclass(frozen=True)
class Step:
    """One record, or what is in its place.

    Attributes:
      number: of the record in its file.
      offset: bytes from the file's begin; of the decompressed stream where it is compressed.
      record: its bytes; None where they are not those that were written.
      problem: what is wrong with its container; None where nothing is.
    """

    number: int
    offset: int
    record: bytes | None
    problem: str | None = None


class _LostError(Exception):
    """Nothing tells where the next record begins."""


class Walk:
    """The records of a stream.

    Attributes:
      offsets: where each record so far begins; of those whose end was found, too.
      is_complete: whether the walk came to the end of the file, at the end of a record.
    """

    def __init__(self, stream: ShardStream, count: int, stride: int | None, known: Sequence[int] | None) -> None:
        """Makes a walk.

        Args:
          stream: at its begin.
          count: records that the manifest says.
          stride: bytes from one record to the next, or None.
          known: the offset of each record and of the end, or None.
        """
        self._stream = stream
        self._count = count
        self._stride = stride
        self._known = known
        self.offsets = array("Q")
        self.is_complete = False

    def steps(self) -> Iterator[Step]:
        """Yields the records in turn; the last has a problem where the rest cannot be found.

        Raises:
          OSError: the file cannot be read.
        """
        while True:
            number, offset = len(self.offsets), self._stream.position
            try:
                header = self._stream.read(framing.HEADER)
                if not header:
                    self.is_complete = True
                    return
                step = self._step(number, offset, header)
            except (_LostError, CompressionError) as error:
                yield Step(number, offset, None, str(error))
                return
            self.offsets.append(offset)
            yield step

    def _step(self, number: int, offset: int, header: bytes) -> Step:
        if len(header) < framing.HEADER:
            raise _LostError(f"the file ends inside a header ({len(header)} of {framing.HEADER} bytes)")
        length, length_crc = struct.unpack("<QI", header)
        expected, problem = self._expected(number, offset), None
        if crc32c.crc32c(header[:8]) != framing.unmask(length_crc):
            problem = "the CRC of its length is wrong"
            if expected is None:
                rest = self._count - number - 1
                raise _LostError(f"{problem}" + (f"; the {rest} records after it cannot be found" if rest > 0 else ""))
            length = expected - _CONTAINER
        elif self._stride is not None and expected not in (None, length + _CONTAINER):
            problem = f"it takes {length + _CONTAINER} bytes, but the manifest's stride is {self._stride}"
        if length > framing.MAX_RECORD:
            raise _LostError(f"the record has {length} bytes, above {framing.MAX_RECORD}, the most that is read")
        data = self._stream.read(length + framing.FOOTER)
        if len(data) < length + framing.FOOTER:
            missing = length + framing.FOOTER - len(data)
            raise _LostError(f"the file ends inside the record, {missing} bytes before its end")
        record = data[:length]
        if crc32c.crc32c(record) != framing.unmask(int.from_bytes(data[length:], "little")):
            return Step(number, offset, None, "its CRC is wrong" if problem is None else f"{problem}; so is its own")
        return Step(number, offset, record, problem)

    def _expected(self, number: int, offset: int) -> int | None:
        """Returns the bytes that a record should take, container included; None where nothing tells."""
        if number >= self._count:
            return None
        if self._stride is not None:
            return self._stride if offset == number * self._stride and self._stride >= _CONTAINER else None
        if self._known is None or self._known[number] != offset:
            return None
        size = self._known[number + 1] - offset
        return size if size >= _CONTAINER else None
