"""What a manifest must say to be one: types, ranges, and numbers that belong together."""

from __future__ import annotations

import math
import re

from pipeline.errors import DataError
from pipeline.manifest import naming
from pipeline.manifest.manifest import IMAGE_FEATURES, Feature, Manifest, ShardInfo, SplitInfo

DTYPES = ("uint8", "int64", "float32", "string")
ENCODINGS = ("raw", "png", "jpeg", "any")  # of images
_SIZE = re.compile(r"[1-9][0-9]*x[1-9][0-9]*")


def check(manifest: Manifest, file: str) -> None:
    """Checks a manifest that was read.

    Args:
      manifest: its fields hold whatever the file says.
      file: its path, for the message.

    Raises:
      DataError: the first thing that cannot be.
    """
    _check_features(manifest, file)
    if manifest.has_images:
        _check_image(manifest, file)
    else:
        _check_no_images(manifest, file)
    if manifest.compression not in naming.COMPRESSIONS:
        known = ", ".join(name for name in naming.COMPRESSIONS if name)
        raise DataError(f"{file}: compression is {manifest.compression!r}; known: {known}, or an empty text for none")
    if not manifest.splits:
        raise DataError(f"{file}: lists no split")
    for name, split in manifest.splits.items():
        _check_split(name, split, manifest, file)
    _check_files(manifest, file)


def _check_features(manifest: Manifest, file: str) -> None:
    for name, dtype in IMAGE_FEATURES.items() if manifest.has_images else ():
        feature = manifest.features.get(name)
        if feature is None or feature.dtype != dtype:
            raise DataError(f"{file}: feature {name!r} of dtype {dtype} is needed; there is {feature}")
    for name, feature in manifest.features.items():
        if feature.dtype not in DTYPES:
            raise DataError(f"{file}: feature {name!r} has dtype {feature.dtype!r}; known: {', '.join(DTYPES)}")
        if not all(n is None or _is_count(n) for n in feature.shape):
            raise DataError(f"{file}: feature {name!r} has the shape {feature.shape}; must be whole numbers or null")
        _check_names(f"class_names of feature {name!r}", feature.class_names, file)
    _check_names("class_names", manifest.class_names, file)


def _check_names(what: str, names: tuple[str, ...], file: str) -> None:
    if not all(isinstance(name, str) for name in names):
        raise DataError(f"{file}: {what} must be strings; they are {names}")


def _check_image(manifest: Manifest, file: str) -> None:
    image: Feature = manifest.features["image"]
    if image.encoding not in ENCODINGS:
        raise DataError(f"{file}: images are encoded as {image.encoding!r}; known: {', '.join(ENCODINGS)}")
    if len(image.shape) != 3 or 0 in image.shape:
        raise DataError(f"{file}: feature 'image' must have a shape of three sizes; it is {image.shape}")
    if image.encoding == "raw" and None in image.shape:
        raise DataError(f"{file}: raw images must have one shape; it is {image.shape}")
    channels = len(manifest.image_mean) if image.shape[2] is None else image.shape[2]
    for name, values in (("image_mean", manifest.image_mean), ("image_std", manifest.image_std)):
        if not values or len(values) != channels or not all(math.isfinite(v) for v in values):
            raise DataError(f"{file}: {name} must be {channels} finite numbers, one a channel; it is {values}")


def _check_no_images(manifest: Manifest, file: str) -> None:
    for name in ("class_names", "image_mean", "image_std"):
        if getattr(manifest, name):
            raise DataError(f"{file}: {name} is {getattr(manifest, name)}, but there is no feature 'image'")


def _check_split(name: str, split: SplitInfo, manifest: Manifest, file: str) -> None:
    if not naming.is_split_name(name):
        raise DataError(f"{file}: {name!r} cannot name a split")
    if not split.shards:
        raise DataError(f"{file}: split {name!r} lists no shard")
    for shard in split.shards:
        _check_shard(shard, name, manifest.compression, file)
    labelled = split.num_examples if manifest.has_images else 0
    if not all(_is_count(n) for n in split.label_histogram) or sum(split.label_histogram) != labelled:
        raise DataError(
            f"{file}: split {name!r}: the label histogram {list(split.label_histogram)} is not of its "
            f"{split.num_examples} examples"
        )
    if not _is_count(split.num_rejects):
        raise DataError(f"{file}: split {name!r}: num_rejects is {split.num_rejects!r}, not a whole number")
    sizes = split.image_sizes
    if not all(_SIZE.fullmatch(size) and _is_count(n) for size, n in sizes.items()):
        raise DataError(f"{file}: split {name!r}: image_sizes must be {{'<height>x<width>': images}}; it is {sizes}")
    if sizes and sum(sizes.values()) != labelled:
        raise DataError(
            f"{file}: split {name!r}: image_sizes counts {sum(sizes.values())} images of its "
            f"{split.num_examples} examples"
        )


def _check_shard(shard: ShardInfo, split: str, compression: str, file: str) -> None:
    if not isinstance(shard.file, str) or not naming.is_base_name(shard.file):
        raise DataError(f"{file}: split {split!r}: the file name {shard.file!r} is not a plain name; paths are refused")
    for field in ("num_examples", "num_bytes", *(["stride"] if shard.stride is not None else [])):
        value = getattr(shard, field)
        if not _is_count(value):
            raise DataError(f"{file}: {shard.file}: {field} is {value!r}, not a whole number of 0 or more")
    for field in ("crc32c", *(["offsets_crc32c"] if shard.offsets_crc32c is not None else [])):
        value = getattr(shard, field)
        if not (isinstance(value, str) and re.fullmatch("[0-9a-f]{8}", value)):
            raise DataError(f"{file}: {shard.file}: {field} is {value!r}, not 8 hexadecimal digits")
    if shard.stride is not None and shard.offsets_crc32c is not None:
        raise DataError(f"{file}: {shard.file}: has a stride and offsets; it must be one of them")
    if compression and (shard.stride is not None or shard.offsets_crc32c is not None):
        raise DataError(f"{file}: {shard.file}: has a stride or offsets, which compressed shards cannot have")
    if shard.stride is not None and shard.stride * shard.num_examples != shard.num_bytes:
        raise DataError(
            f"{file}: {shard.file}: {shard.num_examples} records of {shard.stride} bytes are not "
            f"{shard.num_bytes} bytes"
        )
    if not _is_entropy(shard.label_entropy):
        raise DataError(f"{file}: {shard.file}: label_entropy is {shard.label_entropy!r}, not bits of 0 or more")


def _check_files(manifest: Manifest, file: str) -> None:
    seen: set[str] = set()
    for shard in (shard for split in manifest.splits.values() for shard in split.shards):
        if shard.file in seen:
            raise DataError(f"{file}: lists {shard.file} twice")
        seen.add(shard.file)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_entropy(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return False
    return value is None or (math.isfinite(value) and value >= 0)
