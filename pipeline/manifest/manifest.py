"""The manifest of a data set as values, with a seal: a digest of its content, by which an edit is noticed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from pipeline.errors import UsageError, unknown
from pipeline.manifest import naming

SEAL = "content_sha256"
OPTIONAL = "optional"  # in a field's metadata: older manifests lack it
FORMAT_VERSION = 2
MEMBERS_VERSION = 3  # compressed shards may have tables of their members, which version 2 does not have
IMAGE_FEATURES = {"image": "uint8", "label": "int64", "key": "string"}  # and their dtypes; all or none of them


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest's JSON object with its seal."""
    return content | {SEAL: _digest(content)}


def seal_problem(content: dict[str, Any]) -> str | None:
    """Returns the problem if a manifest's JSON object was changed after it was sealed; None if not, or without a seal.

    Older manifests have none.
    """
    found = _digest(content)
    if content.get(SEAL, found) == found:
        return None
    return (
        f"was edited: the SHA-256 of its content is {found[:12]}..., but its {SEAL} is {str(content[SEAL])[:12]}...; "
        f"restore it, or convert or index the data again; to keep the edit, remove {SEAL}"
    )


def _digest(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rounded_up(side: int) -> int:
    """Returns the side of an image in pixels, rounded up to a multiple of 64."""
    return -(-side // 64) * 64


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of an example.

    Attributes:
      dtype: `uint8` (image), `int64`, `float32` or `string`.
      shape: of one example: (height, width, channels) for images, () for scalars; None for a size that varies.
      encoding: of an image's bytes: `raw` (row-major uint8), `png`, `jpeg`, or `any` (png or jpeg); None for other
        features.
      class_names: one per value, if the feature is a second label; else empty.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str | None = None
    class_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """One TFRecord file.

    Attributes:
      file: base name.
      num_examples: records in it.
      num_bytes: the file's size.
      crc32c: of the whole file, 8 hexadecimal digits (plain CRC32C, not masked).
      stride: bytes from one record to the next before compression, container included, if all have the same length;
        else None. None for a compressed shard without a table of its members.
      offsets_crc32c: of the file `naming.offsets_name(file)`. It has the byte offset of each record and the file's
        size, uint64, little-endian; None if there is a stride. For a compressed shard it has the table of the members
        (`pipeline.records.members`); None if there is none, so that the shard can only be read forward.
      label_entropy: of its labels, in bits, which says how well they are mixed; None if it has no record.
      crcs_crc32c: of the file `naming.crcs_name(file)`, which has the masked CRC32C of each record as its frame stores
        it, uint32, little-endian. By it a window read from another data set's shard is noticed. None in older
        manifests: then only reading the whole shard shows that.
    """

    file: str
    num_examples: int
    num_bytes: int
    crc32c: str
    stride: int | None
    offsets_crc32c: str | None = None
    label_entropy: float | None = None
    crcs_crc32c: str | None = dataclasses.field(default=None, metadata={OPTIONAL: True})

    @property
    def files(self) -> dict[str, str]:
        """The shard and its sidecars: {name in the data set's folder: CRC32C}."""
        return self.files_in(lambda name: False)

    def files_in(self, exists: Callable[[str], bool]) -> dict[str, str]:
        """Returns `files` with the names that they have in a folder; in older data sets sidecars lie beside the shards.

        Args:
          exists: returns whether the folder has a file of this name.
        """
        names = zip(naming.sidecar_names(self.file), naming.beside_names(self.file), strict=True)
        crcs = (self.offsets_crc32c, self.crcs_crc32c)
        sidecars = {
            (beside if exists(beside) and not exists(name) else name): crc
            for (name, beside), crc in zip(names, crcs, strict=True)
            if crc is not None
        }
        return {self.file: self.crc32c} | sidecars

    def is_seekable(self, compression: str) -> bool:
        """Returns whether a record can be read without those before it; `compression` is the manifest's."""
        return not compression or self.offsets_crc32c is not None or self.num_examples == 0


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """One split.

    Attributes:
      shards: in order.
      label_histogram: count of each label, 0 and up.
      image_sizes: {"<height>x<width>": images}; if these would be more than 100, the sides are `rounded_up`.
      num_rejects: number of the source's invalid rows, which are in no shard; `rejects.jsonl` lists them.
    """

    shards: tuple[ShardInfo, ...]
    label_histogram: tuple[int, ...]
    image_sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    num_rejects: int = 0

    @property
    def num_examples(self) -> int:
        """Records in the split."""
        return sum(shard.num_examples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.num_bytes for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file (or folder of files) that the data set was made from: its name, size in bytes, SHA-256 in hexadecimal.

    The SHA-256 is of the decompressed content; for a Parquet file in an object store or HDFS, of the footer alone.
    """

    file: str
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Column:
    """One value per record, beside the shards: see `pipeline.manifest.columns`.

    Attributes:
      dtype: of the numbers in its files: `int8` to `int64`, `float32` or `float64`.
      files: {split: CRC32C of the file with its values}, 8 hexadecimal digits.
      values: the strings that the numbers stand for, sorted; empty for a column of numbers.
    """

    dtype: str
    files: dict[str, str]
    values: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A data set.

    Attributes:
      dataset: its name (`mnist`).
      class_names: one per label.
      features: by name: `image`, `label`, `key` and others of the source; none if `pipeline.index` made the manifest.
      splits: by name.
      image_mean: of the training images' pixels, 0..255, per channel.
      image_std: standard deviation of these, per channel.
      source: the files it was made from.
      options: of the conversion that shaped the bytes (seed, number of shards).
      compression: of the shards: `GZIP`, or empty.
      format_version: of this file.
      columns: by name; they may be added to a data set that exists, so the data's digest is without them.
    """

    dataset: str
    class_names: tuple[str, ...]
    features: dict[str, Feature]
    splits: dict[str, SplitInfo]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    source: tuple[SourceFile, ...]
    options: dict[str, Any]
    compression: str = ""
    format_version: int = FORMAT_VERSION
    columns: dict[str, Column] = dataclasses.field(default_factory=dict, metadata={OPTIONAL: True})

    @property
    def has_images(self) -> bool:
        """Whether the records are images with labels and keys. Other records only the user can parse."""
        return any(name in self.features for name in IMAGE_FEATURES)

    def require_images(self) -> None:
        """Raises UsageError if the records are not images, because `pipeline.index` made the manifest."""
        if not self.has_images:
            raise UsageError(
                f"{self.dataset}: its manifest is from pipeline.index and describes no images; feed its records with "
                "pipeline.input_fn(..., parse=FUNCTION); for images, convert them: python -m beam_jobs.convert"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image.

        Raises:
          UsageError: the images differ in size, or there are none.
        """
        self.require_images()
        height, width, channels = self.features["image"].shape
        if height is None or width is None or channels is None:
            raise UsageError(f"{self.dataset}: its images differ in size; convert it with --resize=HxW")
        return height, width, channels

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards of all splits, in order."""
        return tuple(shard for split in self.splits.values() for shard in split.shards)

    @property
    def image_sizes(self) -> list[tuple[str, int]]:
        """(`<height>x<width>`, images) over all splits, the most common size first."""
        sizes: Counter[str] = Counter()
        for split in self.splits.values():
            sizes.update(split.image_sizes)
        return sorted(sizes.items(), key=lambda item: (-item[1], [int(side) for side in item[0].split("x")]))

    @property
    def digest(self) -> str:
        """Identity of the data: SHA-256, hexadecimal, of the file's bytes without `crcs_crc32c`, columns and the seal.

        Without these, older manifests of the same data have the same identity.
        """
        content = self._content(with_crcs=False)
        content.pop("columns", None)
        return hashlib.sha256(_text(content)).hexdigest()

    def split(self, name: str) -> SplitInfo:
        """Returns a split.

        Raises:
          UsageError: there is none of that name; the error suggests the nearest.
        """
        if name not in self.splits:
            raise unknown("split", name, self.splits)
        return self.splits[name]

    def to_bytes(self) -> bytes:
        """Returns the file's bytes, which are the same for equal manifests."""
        return _text(sealed(self._content(with_crcs=True)))

    def _content(self, with_crcs: bool) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        for split in content["splits"].values():
            for shard in split["shards"]:
                if not with_crcs or shard["crcs_crc32c"] is None:
                    del shard["crcs_crc32c"]
        if not self.columns:
            del content["columns"]
        return content


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
