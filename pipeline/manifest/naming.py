"""Names of files in a data set: shards, `<split>-SSSSS-of-NNNNN.tfrecord`, and their sidecars."""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
REJECTS = "rejects.jsonl"
CARD = "card.html"
CROISSANT = "croissant.json"  # the data set in MLCommons Croissant format
REPLACED = ".replaced-manifest.json"  # in a conversion's folder: the manifest of the data set to replace
# The folder of files that belong to shards. They are not next to the shards, where `train-*` and `*.tfrecord*` would
# open them as records. It is not hidden, because programs that copy or upload leave hidden files out.
SIDECARS = "sidecars"
COLUMNS = "columns"  # the folder of column files
VERSIONS = "versions"  # the folder of the older versions' manifests and cards
LOG = f"{VERSIONS}/log.jsonl"  # who made which version, and when
KNOWN_KEYS = ".known-keys.npy"  # in the folder of an appending conversion: hashes of existing keys
TFDS_FILES = ("dataset_info.json", "features.json", "label.labels.txt")  # files that TensorFlow Datasets reads
CONVERTING = ".converting.tmp-"  # prefix of the folder in which a conversion works until it publishes
IMAGE_ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".jp2", ".avif", ".heic", ".heif", ".ppm"),
)
COMPRESSIONS = {"": "", "GZIP": ".gz"}  # TensorFlow's name: the suffix of a shard's file
FOREIGN_FILES = "file like *.tfrecord* or *-00000-of-00001"  # for errors: files that `is_foreign_file` accepts
PACKINGS = ("", "GZIP", "ZLIB")  # TensorFlow's names of compressions that other writers may use
PACKED = (".gz", ".zz", ".zlib")  # endings of other writers' compressed files
# TensorFlow Extended writes data_tfrecord-00000-of-00001.gz.
_FOREIGN = re.compile(rf"[^._].*(\.tfrec.*|-\d{{5,}}-of-\d{{5,}}({'|'.join(map(re.escape, PACKED))})?)", re.IGNORECASE)
_BESIDE = (".offsets", ".crcs", ".index", ".idx", ".crc", ".json", ".txt")  # added to a record file's name
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*\.\w+\.[0-9a-f]{8}\.npy")
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SHARD = re.compile(
    r"(?P<split>[A-Za-z][A-Za-z0-9_]*)(-v(?P<version>[2-9]|[1-9]\d{1,5}))?"
    r"-(?P<index>\d{5,})-of-(?P<count>\d{5,})\.tfrecord(\.gz)?"
)
_VERSION = re.compile(r"(?P<number>\d{1,6})-(?P<digest>[0-9a-f]{12})\.(json|html|deleted)")


def shard_name(split: str, index: int, count: int, compression: str = "", version: int = 1) -> str:
    """Returns the base name of shard `index` of `count`: `train-00003-of-00010.tfrecord`, with `.gz` if compressed.

    Shards that a later version of a data set adds or rewrites have its number:
    `train-v2-00000-of-00004.tfrecord`.

    Raises:
      ValueError: the split has characters other than letters, digits and `_`, or the index is not in 0..count-1.
    """
    if not is_split_name(split):
        raise ValueError(f"split {split!r}: a name has only letters, digits and _, and begins with a letter")
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {split!r}: the index must be in 0..{count - 1}")
    added = f"-v{version}" if version > 1 else ""
    return f"{split}{added}-{index:05d}-of-{count:05d}.tfrecord{COMPRESSIONS[compression]}"


def sidecar_names(shard: str) -> tuple[str, str]:
    """Returns the names, in the data set's folder, of all sidecars that a shard may have."""
    return offsets_name(shard), crcs_name(shard)


def offsets_name(shard: str) -> str:
    """Returns the name, in the data set's folder, of the sidecar with the byte offset of each record of a shard."""
    return _sidecar_name("offsets", shard)


def crcs_name(shard: str) -> str:
    """Returns the name, in the data set's folder, of the sidecar with the CRC of each record of a shard."""
    return _sidecar_name("crcs", shard)


def _sidecar_name(kind: str, shard: str) -> str:
    # No pattern for shards may match it, not even `**/train/*`, `**/train-*` and `**/*.tfrecord*`.
    return f"{SIDECARS}/{kind}.{flat(shard).replace('.tfrec', '.tf-rec')}"


def flat(name: str) -> str:
    """Returns a base name for a file of a data set, which may be in a subfolder."""
    return name.replace("/", "~")


def shard_of_sidecar(name: str) -> str | None:
    """Returns the shard that a sidecar belongs to; None if the base name is not a sidecar's."""
    kind, _, rest = name.partition(".")
    shard = rest.replace(".tf-rec", ".tfrec")
    return shard if kind in ("offsets", "crcs") and parse_shard_name(shard) else None


def column_name(split: str, name: str, crc: str) -> str:
    """Returns the name, in the data set's folder, of the file with a column's values for a split.

    It has the file's CRC32C, so that new values never overwrite values that a run may be reading.
    """
    return f"{COLUMNS}/{split}.{name}.{crc}.npy"


def is_column_name(name: str) -> bool:
    """Returns whether a base name is a column file's."""
    return _COLUMN.fullmatch(name) is not None


def parse_shard_name(name: str) -> tuple[str, int, int] | None:
    """Returns (split, index, count) from a shard's base name; None if `name` is not one."""
    match = _SHARD.fullmatch(name)
    if not match:
        return None
    split, index, count = match["split"], int(match["index"]), int(match["count"])
    own = index < count and name.startswith(shard_name(split, index, count, version=int(match["version"] or 1)))
    return (split, index, count) if own else None


def version_of_shard(name: str) -> int:
    """Returns the number of the version that added a shard, from its base name; 1 for a conversion."""
    match = _SHARD.fullmatch(name)
    return int(match["version"] or 1) if match else 1


def version_name(number: int, digest: str, ending: str = "json") -> str:
    """Returns the name, in the data set's folder, of an older version's manifest or card.

    Args:
      number: number of the version: 1 for a conversion, 1 more for each append and edit.
      digest: `Manifest.digest`.
      ending: `json` for the manifest, `html` for the card, `deleted` for the remains of a version with deleted records.
    """
    return f"{VERSIONS}/{number}-{digest[:12]}.{ending}"


def parse_version_name(name: str) -> tuple[int, str] | None:
    """Returns the number and the digest's first 12 digits from a base name in `VERSIONS`; None for other names."""
    match = _VERSION.fullmatch(name)
    return (int(match["number"]), match["digest"]) if match else None


def is_foreign_file(name: str) -> bool:
    """Returns whether a base name is one that other writers give to record files."""
    return _FOREIGN.fullmatch(name) is not None and not name.endswith(_BESIDE)


def unpacked(name: str) -> str:
    """Returns the name of a file without the ending for its compression."""
    return next((name.removesuffix(ending) for ending in PACKED if name.lower().endswith(ending)), name)


def is_split_name(name: str) -> bool:
    """Returns whether `name` can name a split."""
    return _SPLIT.fullmatch(name) is not None


def is_file_name(name: str) -> bool:
    """Returns whether `name` can be a file in a data set's folder or below; it cannot lead out of the folder."""
    return all(part not in ("", ".", "..") and not any(c in part for c in "\\\0:") for part in name.split("/"))
