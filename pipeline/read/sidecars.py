"""The sidecars of shards, read once and kept: the offset of each record and its CRC, as listed by the manifest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.files.paths import StoragePath, folder
from pipeline.files.reading import OpenFile
from pipeline.manifest import ShardInfo, naming
from pipeline.records import members
from pipeline.records.members import MemberTable

if TYPE_CHECKING:
    from pipeline.read.shards import Shards

OFFSETS, CRCS = np.dtype("<u8"), np.dtype("<u4")
Opener = Callable[[str, int, str], AbstractContextManager[OpenFile]]  # opens a file by name, size and CRC32C
_KEPT = 8 << 20  # most numbers to keep in memory: 64 MiB of offsets
_RECOVER = "copy the data set again, or convert it again; or index it again with --overwrite, if it was indexed"


def parse_offsets(data: bytes | memoryview, num_bytes: int, num_examples: int, crc: str) -> NDArray[np.int64]:
    """Returns the byte offset of each record and the shard's size: int64 (records + 1,).

    Args:
      data: content of the file, but no more than it should contain.
      num_bytes: size of the file.
      num_examples: number of examples of the shard.
      crc: CRC32C of `data` in the manifest, 8 hexadecimal digits.

    Raises:
      ValueError: this is a different file; the message says how it differs.
    """
    found = _parse(data, num_bytes, OFFSETS, num_examples + 1, crc, f"offsets of {num_examples} records")
    return found.astype(np.int64)


def parse_crcs(data: bytes | memoryview, num_bytes: int, num_examples: int, crc: str) -> NDArray[np.uint32]:
    """Returns the masked CRC32C of each record, uint32 (records,); arguments and errors as in `parse_offsets`."""
    return _parse(data, num_bytes, CRCS, num_examples, crc, f"CRCs of {num_examples} records")


def _parse(
    data: bytes | memoryview, num_bytes: int, dtype: np.dtype[Any], count: int, crc: str, what: str
) -> NDArray[Any]:
    found = f"{crc32c.crc32c(data):08x}"
    if num_bytes != dtype.itemsize * count:
        raise ValueError(f"has {num_bytes} bytes, but the {what} take {dtype.itemsize * count}")
    if found != crc:
        raise ValueError(f"its CRC32C is {found}, but the manifest says {crc}")
    return np.frombuffer(data, dtype)


class Sidecars:
    """The sidecars of an input's shards, read on demand, up to `kept` numbers of them. Several threads may use it."""

    def __init__(self, shards: Shards, kept: int = _KEPT) -> None:
        self._shards, self._most = shards, kept
        self._kept: dict[tuple[Any, int], NDArray[Any]] = {}
        self._lock = threading.Lock()

    def offsets(self, segment: int) -> NDArray[np.int64]:
        """Returns the byte offset of each record of a segment's shard, and the file's size: int64 (records + 1,).

        Raises:
          DataError: the file of offsets is missing or corrupt.
        """
        return self._get(shard_offsets, segment)

    def members(self, segment: int) -> MemberTable:
        """Returns the member table of a segment's compressed shard.

        Raises:
          DataError: the file of the table is missing or corrupt.
        """
        return MemberTable.of(self._get(_shard_members, segment), self._shards.segments[segment].shard.stride)

    def check_crcs(
        self,
        segment: int,
        numbers: Sequence[int] | NDArray[np.int64],
        crcs: Sequence[int] | NDArray[np.uint32],
        offsets: Sequence[int] | NDArray[np.int64],
    ) -> None:
        """Checks intact records against the manifest's list of CRCs, if there is one.

        Args:
          segment: segment from which the records were read.
          numbers: record numbers in its shard, (n,).
          crcs: masked CRC32C of each record, (n,).
          offsets: byte offset of each record, (n,).

        Raises:
          DataError: the shard is from another conversion, or the file of CRCs is missing or corrupt.
        """
        if self._shards.segments[segment].shard.crcs_crc32c is None or not len(numbers):
            return
        listed = self._get(shard_crcs, segment)[numbers]
        wrong = np.flatnonzero(listed != crcs)
        if len(wrong):
            i = int(wrong[0])
            raise DataError(
                f"the record is whole, but its CRC is {crcs[i]:08x}, not {listed[i]:08x} as the manifest has "
                "it: this shard is of another conversion, or was written again",
                path=self._shards.file(segment),
                record=int(numbers[i]),
                offset=int(offsets[i]),
                advice=_RECOVER,
            )

    def _get(self, load: Callable[[str, ShardInfo, Opener], NDArray[Any]], segment: int) -> NDArray[Any]:
        with self._lock:
            kept = self._kept.get((load, segment))
        if kept is not None:
            return kept
        found = load(self._shards.data_dir, self._shards.segments[segment].shard, self._shards.opened_file)
        with self._lock:
            while self._kept and len(found) + sum(map(len, self._kept.values())) > self._most:
                self._kept.pop(next(iter(self._kept)))
            self._kept[load, segment] = found
        return found


def shard_offsets(data_dir: str | StoragePath, shard: ShardInfo, opener: Opener | None = None) -> NDArray[np.int64]:
    """Returns the byte offset of each record of an uncompressed shard, and its size: int64 (records + 1,).

    `opener` opens files of the folder, possibly copies of them; None to open the files themselves.

    Raises:
      DataError: the file of offsets is missing or corrupt.
    """
    if shard.num_examples == 0:
        return np.zeros(1, np.int64)
    if shard.stride is not None:
        return np.arange(shard.num_examples + 1, dtype=np.int64) * shard.stride
    size = OFFSETS.itemsize * (shard.num_examples + 1)
    return _read(data_dir, naming.offsets_name, size, parse_offsets, shard, shard.offsets_crc32c or "", opener)


def shard_members(data_dir: str | StoragePath, shard: ShardInfo) -> MemberTable:
    """Returns the member table of a compressed shard; raises errors like `Sidecars.members`."""
    return MemberTable.of(_shard_members(data_dir, shard), shard.stride)


def _shard_members(data_dir: str | StoragePath, shard: ShardInfo, opener: Opener | None = None) -> NDArray[np.int64]:
    def parse(data: memoryview, num_bytes: int, num_examples: int, crc: str) -> NDArray[np.int64]:
        return members.parse(data, num_examples, shard.num_bytes, shard.stride, crc)

    size = members.size_bound(shard.num_examples)
    return _read(data_dir, naming.offsets_name, size, parse, shard, shard.offsets_crc32c or "", opener)


def shard_crcs(data_dir: str | StoragePath, shard: ShardInfo, opener: Opener | None = None) -> NDArray[np.uint32]:
    """Returns the masked CRC32C of each record of a shard that has a list of them: uint32 (records,).

    For the arguments see `shard_offsets`.

    Raises:
      DataError: the file of CRCs is missing or corrupt.
    """
    size = CRCS.itemsize * shard.num_examples
    return _read(data_dir, naming.crcs_name, size, parse_crcs, shard, shard.crcs_crc32c or "", opener)


def _read(
    data_dir: str | StoragePath,
    name_of: Callable[[str], str],
    num_bytes: int,
    parse: Callable[[memoryview, int, int, str], NDArray[Any]],
    shard: ShardInfo,
    crc: str,
    opener: Opener | None,
) -> NDArray[Any]:
    name = name_of(shard.file)
    file = folder(data_dir) / name
    try:
        size = file.identity().num_bytes
    except DataError as error:
        raise error.advised(f"it belongs to the shard {shard.file}: {_RECOVER}") from None
    with opener(name, size, crc) if opener and size <= num_bytes else file.open_file() as opened:
        data = opened.read_at(0, min(size, num_bytes))
    try:
        return parse(data, size, shard.num_examples, crc)
    except ValueError as error:
        raise DataError(str(error), path=file, advice=_RECOVER) from None
