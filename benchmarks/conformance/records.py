"""The records of the tests: a number and bytes that follow from it, so that a reader can tell if they are right."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterator

COUNT = 1_003
SHARDS = 30  # a multiple of 1, 2, 3, 5, since some peers divide files among ranks
PER_SHARD = 34  # and what is left for the last one, as writers do that begin a new file when one is full
SIZE = 768  # bytes
_NUMBER = 8  # bytes of the number


def record(number: int) -> bytes:
    """Returns record `number`: SIZE bytes that do not compress."""
    return number.to_bytes(_NUMBER, "big") + hashlib.shake_128(str(number).encode()).digest(SIZE - _NUMBER)


def number_of(data: bytes) -> int:
    """Returns the number that the first bytes say."""
    return int.from_bytes(data[:_NUMBER], "big")


def is_right(data: bytes) -> bool:
    """Returns whether every byte is as it was written."""
    return data == record(number_of(data))


def check(data: bytes) -> bytes:
    """Returns the record: what a user's own decoding function may do in each peer.

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
    """Flips a bit in the middle of a record, wherever its bytes are in the files of a folder.

    Returns:
      The file's name; empty where no file has the bytes, as in a compressed one.
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
