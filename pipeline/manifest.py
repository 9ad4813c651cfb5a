"""`manifest.json`: what makes a directory a data set. Written last, so that a killed conversion leaves none."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import re
from typing import Any

from pipeline import naming
from pipeline.errors import DataError, unknown

FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of an example.

    Attributes:
      dtype: `uint8` (image), `int64` (label) or `string` (key).
      shape: of one example: (height, width, channels) for images, () for scalars.
      encoding: how the bytes hold it: `raw` (row-major uint8) for images, None for scalars.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    encoding: str | None = None


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """One TFRecord file.

    Attributes:
      file: base name.
      num_examples: records in it.
      num_bytes: the file's size.
      crc32c: of the whole file, 8 hexadecimal digits (plain CRC32C, not masked).
      stride: bytes from one record to the next, container included, where all are of one length; else None.
    """

    file: str
    num_examples: int
    num_bytes: int
    crc32c: str
    stride: int | None


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """One split: its shards in order and the count of each label, 0 and up."""

    shards: tuple[ShardInfo, ...]
    label_histogram: tuple[int, ...]

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
    """A file that the data set was made from: its base name, size in bytes and SHA-256 in hexadecimal."""

    file: str
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A data set.

    Attributes:
      dataset: its name (`mnist`).
      class_names: one a label.
      features: by name: `image`, `label`, `key`.
      splits: by name.
      image_mean, image_std: per channel, of the training images' pixels in 0..255.
      source: the files it was made from.
      options: what shaped the bytes (seed, number of shards).
      format_version: of this file.
    """

    dataset: str
    class_names: tuple[str, ...]
    features: dict[str, Feature]
    splits: dict[str, SplitInfo]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    source: tuple[SourceFile, ...]
    options: dict[str, Any]
    format_version: int = FORMAT_VERSION

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        height, width, channels = self.features["image"].shape
        return height, width, channels

    @property
    def digest(self) -> str:
        """SHA-256 of `to_bytes()`, hexadecimal: the identity of the data."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def split(self, name: str) -> SplitInfo:
        """Returns a split.

        Raises:
          UsageError: there is none of that name; the nearest is suggested.
        """
        if name not in self.splits:
            raise unknown("split", name, self.splits)
        return self.splits[name]

    def to_bytes(self) -> bytes:
        """Returns the file's bytes: the same for equal manifests."""
        return (json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n").encode()


def load(data_dir: str | os.PathLike[str]) -> Manifest:
    """Reads and checks `data_dir/manifest.json`.

    Raises:
      DataError: there is no manifest, it is of a newer version, cut, or says what cannot be.
    """
    path = pathlib.Path(data_dir) / naming.MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(
            f"{path}: no manifest, so {data_dir} is no data set (or its conversion did not end); "
            "make it with: python -m beam_jobs.convert"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}); convert the data again") from None
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"{path}: format_version is {version!r}, not a version of a manifest")
    if version > FORMAT_VERSION:
        raise DataError(
            f"{path}: format_version {version} is newer than {FORMAT_VERSION}, the newest that this release "
            "reads; upgrade it"
        )
    try:
        manifest = _parse(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not a valid manifest: {type(error).__name__}: {error}; convert again") from None
    _check(manifest, path)
    return manifest


def _parse(content: dict[str, Any]) -> Manifest:
    def shard(c: dict[str, Any]) -> ShardInfo:
        return ShardInfo(**c)

    def split(c: dict[str, Any]) -> SplitInfo:
        return SplitInfo(tuple(shard(s) for s in c["shards"]), tuple(c["label_histogram"]))

    def feature(c: dict[str, Any]) -> Feature:
        return Feature(c["dtype"], tuple(c["shape"]), c["encoding"])

    return Manifest(
        dataset=content["dataset"],
        class_names=tuple(content["class_names"]),
        features={name: feature(c) for name, c in content["features"].items()},
        splits={name: split(c) for name, c in content["splits"].items()},
        image_mean=tuple(float(v) for v in content["image_mean"]),
        image_std=tuple(float(v) for v in content["image_std"]),
        source=tuple(SourceFile(**c) for c in content["source"]),
        options=dict(content["options"]),
        format_version=content["format_version"],
    )


def _check(manifest: Manifest, path: pathlib.Path) -> None:
    image = _feature(manifest, "image", "uint8", path)
    if len(image.shape) != 3 or not all(_is_count(n) and n > 0 for n in image.shape):
        raise DataError(f"{path}: feature 'image' must have a shape of three sizes; it is {image.shape}")
    if image.encoding != "raw":
        raise DataError(f"{path}: images are encoded as {image.encoding!r}; this release reads 'raw' only")
    _feature(manifest, "label", "int64", path)
    _feature(manifest, "key", "string", path)
    for name, values in (("image_mean", manifest.image_mean), ("image_std", manifest.image_std)):
        if len(values) != image.shape[2] or not all(math.isfinite(v) for v in values):
            raise DataError(f"{path}: {name} must be {image.shape[2]} finite numbers, one a channel; it is {values}")
    if not all(isinstance(name, str) for name in manifest.class_names):
        raise DataError(f"{path}: class_names must be strings; they are {manifest.class_names}")
    for name, split in manifest.splits.items():
        _check_split(name, split, path)


def _feature(manifest: Manifest, name: str, dtype: str, path: pathlib.Path) -> Feature:
    feature = manifest.features.get(name)
    if feature is None or feature.dtype != dtype:
        raise DataError(f"{path}: feature {name!r} of dtype {dtype} is needed; there is {feature}")
    return feature


def _check_split(name: str, split: SplitInfo, path: pathlib.Path) -> None:
    if not naming.is_split_name(name):
        raise DataError(f"{path}: {name!r} cannot name a split")
    if not split.shards:
        raise DataError(f"{path}: split {name!r} lists no shard")
    for shard in split.shards:
        _check_shard(shard, name, path)
    if not all(_is_count(n) for n in split.label_histogram) or sum(split.label_histogram) != split.num_examples:
        raise DataError(
            f"{path}: split {name!r}: the label histogram {list(split.label_histogram)} is not of its "
            f"{split.num_examples} examples"
        )


def _check_shard(shard: ShardInfo, split: str, path: pathlib.Path) -> None:
    if not isinstance(shard.file, str) or not naming.is_base_name(shard.file):
        raise DataError(f"{path}: split {split!r}: the file name {shard.file!r} is not a plain name; paths are refused")
    for field in ("num_examples", "num_bytes", *(["stride"] if shard.stride is not None else [])):
        value = getattr(shard, field)
        if not _is_count(value):
            raise DataError(f"{path}: {shard.file}: {field} is {value!r}, not a whole number of 0 or more")
    if not (isinstance(shard.crc32c, str) and re.fullmatch("[0-9a-f]{8}", shard.crc32c)):
        raise DataError(f"{path}: {shard.file}: crc32c is {shard.crc32c!r}, not 8 hexadecimal digits")
    if shard.stride is not None and shard.stride * shard.num_examples != shard.num_bytes:
        raise DataError(
            f"{path}: {shard.file}: {shard.num_examples} records of {shard.stride} bytes are not "
            f"{shard.num_bytes} bytes"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
