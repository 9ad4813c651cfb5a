"""The records of the tests: a number and bytes derived from it, so that a reader can verify them."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterator

COUNT = 1_003
SHARDS = 30  # a multiple of 1, 2, 3 and 5, since some peers divide files among ranks
PER_SHARD = 34  # the last shard gets the rest, as with writers that begin a new file when one is full
SIZE = 768  # bytes
_NUMBER = 8  # bytes of the number


def record(number: int) -> bytes:
    """Returns record `number`: SIZE bytes that do not compress."""
    return number.to_bytes(_NUMBER, "big") + hashlib.shake_128(str(number).encode()).digest(SIZE - _NUMBER)


def number_of(data: bytes) -> int:
    """Returns the number in the first bytes."""
    return int.from_bytes(data[:_NUMBER], "big")


def is_right(data: bytes) -> bool:
    """Returns whether all bytes are as written."""
    return data == record(number_of(data))


def check(data: bytes) -> bytes:
    """Checks and returns a record, as a user's decoding function could do in any peer.

    Raises:
      ValueError: a byte is wrong.
    """
    if not is_right(data):
        raise ValueError(f"record {number_of(data)} is damaged")
    return data


def shards() -> Iterator[range]:
    """Yields the numbers of each shard's records, in order."""
    for start in range(0, COUNT, PER_SHARD):
        yield range(start, min(start + PER_SHARD, COUNT))


def flip_bit(folder: pathlib.Path, number: int) -> str:
    """Flips a bit in the middle of a record in one of a folder's files.

    Returns:
      The file's name; empty if no file has the bytes, for example because it is compressed.
    """
    wanted = record(number)[_NUMBER:]
    for path in sorted(found for found in folder.rglob("*") if found.is_file()):
        data = bytearray(path.read_bytes())
        place = data.find(wanted)
        if place >= 0:
            data[place + len(wanted) // 2] ^= 1
            path.write_bytes(data)
            return path.name
    return ""
