"""Receipts: a worker's report on a shard that it wrote, in memory and as a file from which a rerun resumes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import crc32c

from beam_jobs import drafts
from beam_jobs.examples.columns import Packed
from pipeline.files.fields import from_json
from pipeline.files.paths import StoragePath, each
from pipeline.manifest import ShardInfo, naming
from pipeline.read.statistics import PixelSums

_SUFFIX = ".receipt.json"
_CRC_BLOCK = 4 << 20  # 4 MiB


@dataclasses.dataclass(frozen=True)
class Reject:
    """An invalid row of the source.

    Attributes:
      file: file of the source that holds the row.
      row: number of the row in the file.
      reason: reason why it is invalid.
      is_known: whether the row is invalid because the data set to append to has its key.
    """

    file: str
    row: int
    reason: str
    is_known: bool = False


@dataclasses.dataclass(frozen=True)
class Receipt:
    """One finished shard.

    Attributes:
      split, shard: split and number of the shard.
      info: entry of the shard in the manifest.
      label_histogram: {label: count}.
      formats: formats of the images: raw, png, jpeg.
      sizes: ((height, width, channels), number of images), sorted.
      sums: sums over the pixels.
      num_rejects: number of invalid rows, which are skipped.
      num_known: number of invalid rows whose keys the data set to append to has.
      rejects: first invalid rows, somewhat more than --max_rejects.
      turned: number of files rewritten upright.
      placed: counts of masks, boxes and points, by feature (`beam_jobs.examples.placed.counted`).
      columns: values of the records (`beam_jobs.examples.columns.packed`); only in the file, as the process that writes
        the manifest gets `without_columns`.
    """

    split: str
    shard: int
    info: ShardInfo
    label_histogram: tuple[int, ...]
    formats: tuple[str, ...]
    sizes: tuple[tuple[tuple[int, ...], int], ...]
    sums: PixelSums
    num_rejects: int
    rejects: tuple[Reject, ...]
    num_known: int = 0
    turned: int = 0
    placed: dict[str, Any] = dataclasses.field(default_factory=dict)
    columns: dict[str, Packed] = dataclasses.field(default_factory=dict)

    def without_columns(self) -> Receipt:
        """Returns the receipt without the values of each record."""
        return dataclasses.replace(self, columns={})


def sizes_of(receipts: Iterable[Receipt]) -> Counter[tuple[int, int]]:
    """Returns {(height, width): images} of some shards."""
    sizes: Counter[tuple[int, int]] = Counter()
    for receipt in receipts:
        for (height, width, _), count in receipt.sizes:
            sizes[height, width] += count
    return sizes


def name_of(shard_file: str) -> str:
    """Returns the base name of a shard's receipt."""
    return f"{shard_file}{_SUFFIX}"


def is_receipt(name: str) -> bool:
    """Returns whether `name` is the name of a shard's receipt."""
    return name.endswith(_SUFFIX) and naming.parse_shard_name(name.removesuffix(_SUFFIX)) is not None


def files_of_shards(folder: StoragePath) -> list[str]:
    """Returns the names of the shards that have a receipt in a folder, and the possible names of their sidecars."""
    shards = [name.removesuffix(_SUFFIX) for name in folder.names() if is_receipt(name)]
    return [name for shard in shards for name in (shard, *naming.sidecar_names(shard))]


def save(folder: StoragePath, receipt: Receipt) -> None:
    """Writes the receipt of a finished shard.

    Raises:
      DataError: it cannot be written.
    """
    text = json.dumps(dataclasses.asdict(receipt), sort_keys=True)
    # Not synced: if the machine crashes, a lost or cut receipt is ignored and its shard is made again.
    drafts.Draft(folder / name_of(receipt.info.file), [text.encode()]).publish(sync=False)


def load(path: StoragePath) -> Receipt | None:
    """Returns the receipt in a file; None if the file is missing or incomplete."""
    try:
        receipt: Receipt = from_json(Receipt, json.loads(path.read_text(encoding="utf-8")))
        return receipt
    except (OSError, ValueError):
        return None


def paths_in(folder: StoragePath) -> list[StoragePath]:
    """Returns the paths of all receipts below a folder; none if the folder is missing."""
    return [folder / name for name in folder.files(recursive=True) if is_receipt(name.rpartition("/")[2])]


def in_folder(folder: StoragePath) -> list[Receipt]:
    """Returns the complete receipts below a folder."""
    return [receipt for receipt in each(load, paths_in(folder), folder.is_remote) if receipt]


def load_checked(folder: StoragePath, shard_file: str, receipts_folder: StoragePath) -> Receipt | None:
    """Returns a shard's receipt; None if there is none or the shard's files do not match it.

    Args:
      folder: folder of the shard.
      shard_file: base name of the shard.
      receipts_folder: folder of the receipt.
    """
    receipt = load(receipts_folder / name_of(shard_file))
    if receipt is None or receipt.info.file != shard_file:
        return None
    is_intact = all(file_crc32c(folder / name) == crc for name, crc in receipt.info.files.items())
    return receipt if is_intact else None


def file_crc32c(path: StoragePath) -> str | None:
    """Returns the CRC32C of a file, 8 hexadecimal digits; None if it cannot be read."""
    crc = 0
    try:
        with path.open("rb") as file:
            while block := file.read(_CRC_BLOCK):
                crc = crc32c.crc32c(block, crc)
    except OSError:
        return None
    return f"{crc:08x}"
