"""Compressed shards made of GZIP members that end at record boundaries, and the table for reading single members.

Concatenated members are one GZIP file for any reader. The table is the shard's sidecar `naming.offsets_name`. All its
numbers are uint64, little-endian:

    version                   the bytes `members` and 1
    m                         the number of members
    m + 1 byte offsets        where each member begins in the shard, and the shard's size
    m + 1 record numbers      the first record of each member, and the number of records
    n + 1 byte offsets        where each record begins in the decompressed shard, and its size; absent if the
                              manifest has a stride, from which they follow
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

try:
    from isal import isal_zlib
except ImportError:  # not available for this kind of processor
    isal_zlib = None  # type: ignore[assignment]

MEMBER_BYTES = 1 << 20  # 1 MiB of records per member, or one record: reading a single record decompresses that much
_LEVEL = 6  # zlib's own default
_WINDOW_BITS = zlib.MAX_WBITS | 16  # with a GZIP header, where zlib puts no time or name
_STEP = 256 << 10  # 256 KiB of compressed bytes, which decompress into memory that the allocator has ready
_NAME, _VERSION = b"members", 1
_HEAD = 2  # leading numbers: version, m


@dataclasses.dataclass(frozen=True)
class MemberTable:
    """The places of a shard's members and records.

    Attributes:
      offsets: byte offset of each member, and the shard's size; int64 (m + 1,).
      firsts: number of each member's first record, and the number of records; int64 (m + 1,).
      begins: byte offset of each record in the decompressed shard, and its size; int64 (n + 1,). None if they follow
        from `stride`.
      stride: bytes from one record to the next in the decompressed shard; None if records differ in length.
    """

    offsets: NDArray[np.int64]
    firsts: NDArray[np.int64]
    begins: NDArray[np.int64] | None
    stride: int | None

    @classmethod
    def of(cls, numbers: NDArray[np.int64], stride: int | None) -> MemberTable:
        """Returns the table for numbers checked by `parse`."""
        count = int(numbers[1]) + 1
        firsts, begins = _HEAD + count, _HEAD + 2 * count
        return cls(numbers[_HEAD:firsts], numbers[firsts:begins], numbers[begins:] if stride is None else None, stride)

    def begins_of(self, first: int, stop: int) -> NDArray[np.int64]:
        """Returns the byte offsets of records first..stop-1 in the decompressed shard, and the end of the last."""
        if self.begins is not None:
            return self.begins[first : stop + 1]
        return np.arange(first, stop + 1, dtype=np.int64) * (self.stride or 0)

    def begin(self, record: int) -> int:
        """Returns the byte offset of a record in the decompressed shard; for `num_examples`, the shard's size."""
        return record * (self.stride or 0) if self.begins is None else int(self.begins[record])

    def member_of(self, record: int) -> int:
        """Returns the number of the member that contains a record."""
        return int(np.searchsorted(self.firsts, record, side="right")) - 1


def first_records(begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the first record of each member to write, and the number of records.

    Each member gets as many records as fit into `MEMBER_BYTES`, and at least one.

    Args:
      begins: byte offset of each record in the decompressed shard, and its size; (n + 1,).
    """
    firsts, count = [0], len(begins) - 1
    while firsts[-1] < count:
        fits = int(np.searchsorted(begins, begins[firsts[-1]] + MEMBER_BYTES, side="right")) - 1
        firsts.append(max(firsts[-1] + 1, fits))
    return np.array(firsts, np.int64)


def deflate(frames: bytes) -> bytes:
    """Compresses framed records into a member: equal records give equal bytes with the same version of zlib."""
    return zlib.compress(frames, _LEVEL, _WINDOW_BITS)


def inflate(member: bytes | memoryview, into: memoryview) -> None:
    """Fills `into` with the decompressed bytes of a member.

    Raises:
      ValueError: the member cannot be decompressed, or has another number of bytes; the message explains why.
    """
    if isal_zlib is not None:  # takes half as long as zlib
        try:
            return _inflate(isal_zlib, member, into)
        except ValueError:
            pass  # zlib will report the problem
    _inflate(zlib, member, into)


def _inflate(library: Any, member: bytes | memoryview, into: memoryview) -> None:
    """Implements `inflate` with zlib or a library with its interface.

    It works in steps: decompressing all at once would take new pages, which cost up to a third of the time. With
    smaller steps threads would wait for the interpreter's lock more often.
    """
    stream, done = library.decompressobj(_WINDOW_BITS), 0
    for begin in range(0, len(member), _STEP):
        try:
            found = stream.decompress(member[begin : begin + _STEP], len(into) - done + 1)
        except library.error as error:
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
    """Returns the content of the table's file; the arguments are attributes of `MemberTable`."""
    version = int.from_bytes(_NAME + bytes([_VERSION]), "little")
    parts = [[version, len(offsets) - 1], offsets, firsts, [] if begins is None else begins]
    return np.concatenate([np.asarray(part, "<u8") for part in parts]).tobytes()


def parse(
    data: bytes | memoryview, num_examples: int, num_bytes: int, stride: int | None, crc: str
) -> NDArray[np.int64]:
    """Returns the checked numbers of a shard's table, for `MemberTable.of`.

    Args:
      data: content of the table's file.
      num_examples, num_bytes, stride: number of examples, number of bytes and stride of the shard, as in the manifest.
      crc: CRC32C of `data` in the manifest, 8 hexadecimal digits.

    Raises:
      ValueError: this is a different file; the message says how it differs.
    """
    found = f"{crc32c.crc32c(data):08x}"
    if found != crc:
        raise ValueError(f"its CRC32C is {found}, but the manifest says {crc}")
    name, version = bytes(data[: len(_NAME)]), bytes(data[len(_NAME) : len(_NAME) + 1])
    if name != _NAME or len(data) < np.dtype("<u8").itemsize * _HEAD or len(data) % np.dtype("<u8").itemsize:
        raise ValueError("is not a table of GZIP members")
    if version[0] != _VERSION:
        raise ValueError(f"is of version {version[0]}, and this release reads {_VERSION}; upgrade it")
    numbers = np.frombuffer(data, "<u8").astype(np.int64)
    count, records = int(numbers[1]), num_examples + 1 if stride is None else 0
    if not 0 < count <= num_examples or len(numbers) != _HEAD + 2 * (count + 1) + records:
        raise ValueError(f"has {len(numbers)} numbers, which is not a table of {num_examples} records")
    table = MemberTable.of(numbers, stride)
    for what, part, last in (("members", table.offsets, num_bytes), ("first records", table.firsts, num_examples)):
        if part[0] != 0 or part[-1] != last or (np.diff(part) <= 0).any():
            raise ValueError(f"its {what} do not ascend from 0 to {last}")
    if table.begins is not None and (table.begins[0] != 0 or (np.diff(table.begins) <= 0).any()):
        raise ValueError("its records do not ascend from 0")
    return numbers


def size_bound(num_examples: int) -> int:
    """Returns the largest size in bytes of a table for a shard of `num_examples` records."""
    return np.dtype("<u8").itemsize * (_HEAD + 3 * (num_examples + 1))
