"""Compressed shards in GZIP members that end where records do: what lies where, so that each can be read alone.

One member behind the other is one GZIP file for every reader. The file beside the shard, `naming.offsets_name`, is the
table of its members. All its numbers are uint64, little-endian:

    version                   the bytes `members` and 1
    m                         the number of members
    m + 1 byte offsets        where each member begins in the shard, and the shard's size
    m + 1 record numbers      the first record of each member, and the number of all
    n + 1 byte offsets        where each record begins in the decompressed shard, and that one's size; absent if the
                              manifest has a stride, from which these follow
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import crc32c
import numpy as np
from numpy.typing import NDArray

MEMBER_BYTES = 1 << 20  # 1 MiB of records in a member, or one record: what is decompressed to read a single one
_LEVEL = 6  # zlib's own default
_WINDOW_BITS = zlib.MAX_WBITS | 16  # with a GZIP header, which zlib writes without a time or a name
_STEP = 256 << 10  # 256 KiB, compressed: what comes of them is memory that the allocator has ready
_NAME, _VERSION = b"members", 1
_HEAD = 2  # numbers: version, m


@dataclasses.dataclass(frozen=True)
class MemberTable:
    """Where the members and the records of a shard lie.

    Attributes:
      offsets: byte offset of each member, and the shard's size; int64 (m + 1,).
      firsts: number of each member's first record, and of all records; int64 (m + 1,).
      begins: byte offset of each record in the decompressed shard, and that one's size, int64 (n + 1,); None: `stride`.
      stride: bytes from one record to the next in the decompressed shard, where all are of one length.
    """

    offsets: NDArray[np.int64]
    firsts: NDArray[np.int64]
    begins: NDArray[np.int64] | None
    stride: int | None

    @classmethod
    def of(cls, numbers: NDArray[np.int64], stride: int | None) -> MemberTable:
        """Returns the table that `parse` returned the numbers of."""
        count = int(numbers[1]) + 1
        firsts, begins = _HEAD + count, _HEAD + 2 * count
        return cls(numbers[_HEAD:firsts], numbers[firsts:begins], numbers[begins:] if stride is None else None, stride)

    def begins_of(self, first: int, stop: int) -> NDArray[np.int64]:
        """Returns where records first..stop-1 begin in the decompressed shard, and the last one ends."""
        if self.begins is not None:
            return self.begins[first : stop + 1]
        return np.arange(first, stop + 1, dtype=np.int64) * (self.stride or 0)

    def begin(self, record: int) -> int:
        """Returns where a record begins in the decompressed shard; of the number of all, the shard's size."""
        return record * (self.stride or 0) if self.begins is None else int(self.begins[record])

    def member_of(self, record: int) -> int:
        """Returns the number of the member that holds a record."""
        return int(np.searchsorted(self.firsts, record, side="right")) - 1


def first_records(begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the first record of each member, and the number of all: as many in each as fit `MEMBER_BYTES`, or one.

    Args:
      begins: byte offset of each record in the decompressed shard, and its size; (n + 1,).
    """
    firsts, count = [0], len(begins) - 1
    while firsts[-1] < count:
        fits = int(np.searchsorted(begins, begins[firsts[-1]] + MEMBER_BYTES, side="right")) - 1
        firsts.append(max(firsts[-1] + 1, fits))
    return np.array(firsts, np.int64)


def deflate(frames: bytes) -> bytes:
    """Returns a member that holds framed records: the same bytes for equal ones, with one and the same zlib."""
    return zlib.compress(frames, _LEVEL, _WINDOW_BITS)


def inflate(member: bytes | memoryview, into: memoryview) -> None:
    """Fills `into` with the bytes that a member holds.

    It is done in steps: the whole at once would be new pages, which cost up to a third of the decompression. With
    smaller steps threads would wait more often for the lock of the interpreter.

    Raises:
      ValueError: it cannot be decompressed, or does not hold as many bytes; the message says why.
    """
    stream, done = zlib.decompressobj(_WINDOW_BITS), 0
    for begin in range(0, len(member), _STEP):
        try:
            found = stream.decompress(member[begin : begin + _STEP], len(into) - done + 1)
        except zlib.error as error:
            raise ValueError(f"cannot be decompressed: {error}") from None
        if done + len(found) > len(into):
            raise ValueError(f"holds more than the {len(into)} bytes it should")
        into[done : done + len(found)] = found
        done += len(found)
        if stream.eof:
            left = len(stream.unused_data) + max(0, len(member) - begin - _STEP)
            if left:
                raise ValueError(f"ends {left} bytes before the next one begins")
    if not stream.eof:
        raise ValueError("cannot be decompressed: it is cut")
    if done < len(into):
        raise ValueError(f"holds {done} bytes, fewer than the {len(into)} it should")


def to_bytes(offsets: Sequence[int], firsts: NDArray[np.int64], begins: NDArray[np.int64] | None) -> bytes:
    """Returns the content of the file beside a shard; its parts are those of `MemberTable`."""
    version = int.from_bytes(_NAME + bytes([_VERSION]), "little")
    parts = [[version, len(offsets) - 1], offsets, firsts, [] if begins is None else begins]
    return np.concatenate([np.asarray(part, "<u8") for part in parts]).tobytes()


def parse(
    data: bytes | memoryview, num_examples: int, num_bytes: int, stride: int | None, crc: str
) -> NDArray[np.int64]:
    """Returns the numbers of a shard's table, checked, for `MemberTable.of`.

    Args:
      data: the content of the file beside the shard.
      num_examples, num_bytes, stride: of the shard, as the manifest has them.
      crc: the CRC32C of `data` that the manifest has, 8 hexadecimal digits.

    Raises:
      ValueError: it is another file; the message says how it differs.
    """
    found = f"{crc32c.crc32c(data):08x}"
    if found != crc:
        raise ValueError(f"its CRC32C is {found}, but the manifest says {crc}")
    name, version = bytes(data[: len(_NAME)]), bytes(data[len(_NAME) : len(_NAME) + 1])
    if name != _NAME or len(data) < np.dtype("<u8").itemsize * _HEAD or len(data) % np.dtype("<u8").itemsize:
        raise ValueError("is no table of GZIP members")
    if version[0] != _VERSION:
        raise ValueError(f"is of version {version[0]}, and this release reads {_VERSION}; upgrade it")
    numbers = np.frombuffer(data, "<u8").astype(np.int64)
    count, records = int(numbers[1]), num_examples + 1 if stride is None else 0
    if not 0 < count <= num_examples or len(numbers) != _HEAD + 2 * (count + 1) + records:
        raise ValueError(f"has {len(numbers)} numbers, which is no table of {num_examples} records")
    table = MemberTable.of(numbers, stride)
    for what, part, last in (("members", table.offsets, num_bytes), ("first records", table.firsts, num_examples)):
        if part[0] != 0 or part[-1] != last or (np.diff(part) <= 0).any():
            raise ValueError(f"its {what} do not ascend from 0 to {last}")
    if table.begins is not None and (table.begins[0] != 0 or (np.diff(table.begins) <= 0).any()):
        raise ValueError("its records do not ascend from 0")
    return numbers


def size_bound(num_examples: int) -> int:
    """Returns the most bytes that the table of a shard of `num_examples` records takes."""
    return np.dtype("<u8").itemsize * (_HEAD + 3 * (num_examples + 1))
