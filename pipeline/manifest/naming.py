"""The one formatter of shard names: `<split>-SSSSS-of-NNNNN.tfrecord`."""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
REJECTS = "rejects.jsonl"
CARD = "card.html"
TFDS_FILES = ("dataset_info.json", "features.json", "label.labels.txt")  # what TensorFlow Datasets reads
COMPRESSIONS = {"": "", "GZIP": ".gz"}  # of a shard's file: TensorFlow's name and what it adds to the file's
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SHARD = re.compile(r"(?P<split>[A-Za-z][A-Za-z0-9_]*)-(?P<index>\d{5,})-of-(?P<count>\d{5,})\.tfrecord(\.gz)?")


def shard_name(split: str, index: int, count: int, compression: str = "") -> str:
    """Returns the base name of shard `index` of `count`: `train-00003-of-00010.tfrecord`, with `.gz` if compressed.

    Raises:
      ValueError: the split has characters other than letters, digits and `_`, or the index is not in 0..count-1.
    """
    if not is_split_name(split):
        raise ValueError(f"split {split!r}: a name has only letters, digits and _, and begins with a letter")
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {split!r}: the index must be in 0..{count - 1}")
    return f"{split}-{index:05d}-of-{count:05d}.tfrecord{COMPRESSIONS[compression]}"


def sidecar_names(shard: str) -> tuple[str, str]:
    """Returns the base names of all files that may lie beside a shard."""
    return offsets_name(shard), crcs_name(shard)


def offsets_name(shard: str) -> str:
    """Returns the base name of the file beside a shard that has the byte offset of each record."""
    return f"{shard}.offsets"


def crcs_name(shard: str) -> str:
    """Returns the base name of the file beside a shard that has the CRC of each record."""
    return f"{shard}.crcs"


def parse_shard_name(name: str) -> tuple[str, int, int] | None:
    """Returns (split, index, count) of a shard's base name, or None where `name` is not one."""
    match = _SHARD.fullmatch(name)
    if not match:
        return None
    split, index, count = match["split"], int(match["index"]), int(match["count"])
    return (split, index, count) if index < count and name.startswith(shard_name(split, index, count)) else None


def is_split_name(name: str) -> bool:
    """Returns whether `name` can name a split."""
    return _SPLIT.fullmatch(name) is not None


def is_base_name(name: str) -> bool:
    """Returns whether `name` is a plain file name that cannot leave its folder."""
    return bool(name) and name not in (".", "..") and not any(c in name for c in "/\\\0:")
