"""Finds keys that two records of a data set share, by their hashes, grouped into buckets by the first byte."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from beam_jobs.sources.known_keys import HASH_BYTES, KeyTable, hash_of
from pipeline.errors import DataError, location
from pipeline.files.paths import StoragePath
from pipeline.manifest import Manifest, ShardInfo
from pipeline.manifest.splits import Segment
from pipeline.records import framing, tf_example
from pipeline.records.stream import RecordStream
from pipeline.records.tf_example import keys_of

_HASHED_KEY = np.dtype([("hash", f"V{HASH_BYTES}"), ("record", "<u4")])


@contextlib.contextmanager
def opened(path: StoragePath, compression: str) -> Iterator[RecordStream]:
    """Opens a shard for reading; raises OSError if it cannot be read."""
    with path.open("rb", 0) as file:
        yield RecordStream(file.read, compression)


def located_keys(
    path: StoragePath, numbers: set[int], compression: str, stride: int | None = None, feature: str = "key"
) -> dict[int, tuple[str, str]]:
    """Returns {number: (place of the record, its key), both as text} for some records of a shard.

    Records that cannot be read are left out. With a `stride`, records after a damaged one are still found.

    Args:
      path: the shard.
      numbers: record numbers.
      compression: compression of the shard.
      stride: bytes from one record to the next; None if records differ in length.
      feature: name of the key feature: `Manifest.key_feature`.
    """

    def size_of(number: int, offset: int) -> int | None:
        return stride if offset == number * (stride or 0) else None

    found = {}
    with contextlib.suppress(OSError), opened(path, compression) as stream:
        for frame in framing.walk(stream.read, size_of):
            if frame.number in numbers and frame.record is not None:
                where = location("", frame.number, frame.offset, bool(compression))
                key = tf_example.decode(frame.record, [feature])[feature][0]
                found[frame.number] = where, repr(bytes(key).decode(errors="backslashreplace"))
            if len(found) == len(numbers):
                break
    return found


@dataclasses.dataclass(frozen=True)
class KeyHashes:
    """Hashes of some keys of a shard.

    Attributes:
      file: base name of the shard.
      packed: (hash, record number) of each key, 20 bytes each.
    """

    file: str
    packed: bytes


@dataclasses.dataclass(frozen=True, order=True)
class Repeated:
    """Two records with the same key: (file, record number) of each, the earlier one first."""

    first: tuple[str, int]
    second: tuple[str, int]


def by_bucket(data_dir: StoragePath, info: ShardInfo) -> Iterator[tuple[int, KeyHashes]]:
    """Yields (bucket, hashes) for the keys of a shard.

    Raises:
      DataError: the shard cannot be read.
    """
    shard = dataclasses.replace(info, compression=_compression_of(info.file))
    hashes = [hash_of(key) for key in keys_of(data_dir / info.file, Segment(shard, 0, info.num_examples))]
    return group(info.file, hashes, range(len(hashes)))


def table_of(data_dir: StoragePath, made: Manifest) -> KeyTable:
    """Returns the keys of a data set, read from its shards.

    Raises:
      DataError: a shard cannot be read.
    """
    each = (keys_of(data_dir / info.file, Segment(info, 0, info.num_examples)) for info in made.shards)
    return KeyTable.of(key for keys in each for key in keys)


def _compression_of(file: str) -> str:
    """Returns the compression of a shard that a conversion wrote; its receipt does not record it."""
    return "GZIP" if file.endswith(".gz") else ""


def group(file: str, hashes: Sequence[bytes], records: Sequence[int]) -> Iterator[tuple[int, KeyHashes]]:
    """Yields (bucket, hashes) for keys of a file, given the hash and record number of each."""
    packed = np.empty(len(hashes), _HASHED_KEY)
    packed["hash"] = np.frombuffer(b"".join(hashes), f"V{HASH_BYTES}")
    packed["record"] = records
    buckets = np.frombuffer(b"".join(hashes), np.uint8)[::HASH_BYTES]
    for bucket in np.unique(buckets).tolist():
        yield bucket, KeyHashes(file, packed[buckets == bucket].tobytes())


def repeats(groups: Iterable[KeyHashes]) -> list[Repeated]:
    """Returns, sorted, each record of a bucket whose key occurred before, paired with the previous record that has it.

    The order of `groups` does not matter.
    """
    # By file, as a retried bundle delivers its hashes twice.
    by_file = {of.file: np.frombuffer(of.packed, _HASHED_KEY) for of in groups}
    files = sorted(by_file)
    if not files:
        return []
    packed = np.concatenate([by_file[file] for file in files])
    numbers = np.repeat(np.arange(len(files)), [len(by_file[file]) for file in files])
    hashes = np.ascontiguousarray(packed["hash"]).view("<u8").reshape(-1, 2)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    same = np.flatnonzero((hashes[order[1:]] == hashes[order[:-1]]).all(axis=1))
    pairs = [sorted((files[numbers[i]], int(packed["record"][i])) for i in (order[s], order[s + 1])) for s in same]
    return sorted(Repeated(first, second) for first, second in pairs)


def as_error(data_dir: StoragePath, repeated: Iterable[Repeated]) -> DataError:
    """Returns an error about the first pair, which names the key."""
    pair = min(repeated)  # independent of the order of bundles
    (file, number), (other, second) = pair.first, pair.second
    _, key = located_keys(data_dir / file, {number}, _compression_of(file))[number]
    return DataError(
        f"duplicate key {key}: record {number} of {file} and record {second} of {other}; "
        "every example needs its own: choose another --key_column"
    )
