"""The images that the card shows: some of each class, from the shards that were just written; reading is bounded."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from beam_jobs.shards import reader
from beam_jobs.storage.paths import StoragePath
from pipeline.errors import DataError
from pipeline.manifest import Manifest, ShardInfo
from pipeline.records import tf_example

CLASSES = 20
PER_CLASS = 5
_SHARDS = 16  # read, over the whole split: the shards of a source sorted by class have few classes each
_RECORDS = 4096  # read of all of them
_BYTES = 64 << 20  # 64 MiB, read of all of them; of each at least one record


@dataclasses.dataclass(frozen=True)
class Samples:
    """Examples by class.

    Attributes:
      split: theirs.
      by_label: {label: (image, key) of the first examples found}, in the order of the labels.
    """

    split: str
    by_label: dict[int, list[tuple[bytes, str]]]


def take(folder: StoragePath, made: Manifest) -> Samples:
    """Returns samples of the training split, or of the largest if there is none: the same for the same data set.

    Raises:
      DataError: a shard cannot be read, or a record is corrupt.
    """
    split = "train" if "train" in made.splits else max(made.splits, key=lambda name: made.splits[name].num_examples)
    shards = _spread([shard for shard in made.splits[split].shards if shard.num_examples])
    wanted = {label: min(n, PER_CLASS) for label, n in enumerate(made.splits[split].label_histogram) if n}
    found: dict[int, list[tuple[bytes, str]]] = {label: [] for label in wanted}
    missing = sum(wanted.values())
    for shard in shards:
        for record in _first_records(folder / shard.file, _RECORDS // len(shards), _BYTES // len(shards)):
            label, sample = _parse(record, shard.file)
            if len(found.get(label, ())) < wanted.get(label, 0):
                found[label].append(sample)
                missing -= 1
            if not missing:
                return Samples(split, _choose(found))
    return Samples(split, _choose(found))


def _spread(shards: list[ShardInfo]) -> list[ShardInfo]:
    return [shards[i] for i in np.unique(np.linspace(0, len(shards) - 1, min(len(shards), _SHARDS)).astype(int))]


def _choose(found: dict[int, list[tuple[bytes, str]]]) -> dict[int, list[tuple[bytes, str]]]:
    """Returns at most `CLASSES` of the classes that have samples, from the first to the last of them."""
    labels = [label for label, samples in found.items() if samples]
    chosen = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), CLASSES)).astype(int))
    return {labels[i]: found[labels[i]] for i in chosen}


def _first_records(path: StoragePath, count: int, num_bytes: int) -> Iterator[bytes]:
    """Yields a shard's first records: at most `count`, in at most `num_bytes`, but at least one."""
    for number, record in enumerate(itertools.islice(reader.records(path), count)):
        num_bytes -= len(record)
        if num_bytes < 0 and number:
            return
        yield record


def _parse(record: bytes, file: str) -> tuple[int, tuple[bytes, str]]:
    try:
        found = tf_example.decode(record, ("image", "label", "key"))
        return int(found["label"][0]), (found["image"][0], found["key"][0].decode(errors="backslashreplace"))
    except (ValueError, KeyError, IndexError, AttributeError):
        raise DataError(f"{file}: a record is not an example with image, label and key") from None
