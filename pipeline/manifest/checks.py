"""What makes a manifest valid: ranges, and numbers that agree with each other."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from pipeline.errors import DataError
from pipeline.manifest import naming
from pipeline.manifest.manifest import (
    IMAGE_FEATURES,
    MEMBERS_VERSION,
    Feature,
    Manifest,
    ShardInfo,
    SplitInfo,
    rounded_up,
)

DTYPES = ("uint8", "int64", "float32", "string")
ENCODINGS = ("raw", "png", "jpeg", "any")  # of images
_WHITE = 255  # the largest value of a pixel
_SIZE = re.compile(r"[1-9][0-9]*x[1-9][0-9]*")
_CRC = re.compile("[0-9a-f]{8}")


def check(manifest: Manifest, file: str) -> None:
    """Checks a manifest that was read.

    Args:
      manifest: its fields have the right types.
      file: its path, for the message.

    Raises:
      DataError: names the first invalid value.
    """
    for problem in _problems(manifest):
        raise DataError(f"{file}: {problem}")


def _problems(manifest: Manifest) -> Iterator[str]:
    yield from _of_features(manifest)
    if manifest.has_images:
        yield from _of_image(manifest.features["image"], manifest)
    else:
        for name in ("class_names", "image_mean", "image_std"):
            if getattr(manifest, name):
                yield f"{name} is {getattr(manifest, name)}, but there is no feature 'image'"
    if manifest.compression not in naming.COMPRESSIONS:
        known = ", ".join(name for name in naming.COMPRESSIONS if name)
        yield f"compression is {manifest.compression!r}; known: {known}, or an empty text for none"
    if not manifest.splits:
        yield "lists no split"
    for name, split in manifest.splits.items():
        yield from _of_split(name, split, manifest)
    for name, count in Counter(shard.file for shard in manifest.shards).items():
        if count > 1:
            yield f"lists {name} twice"


def _of_features(manifest: Manifest) -> Iterator[str]:
    for name, dtype in IMAGE_FEATURES.items() if manifest.has_images else ():
        feature = manifest.features.get(name)
        if feature is None or feature.dtype != dtype:
            yield f"feature {name!r} of dtype {dtype} is needed; there is {feature}"
    for name, feature in manifest.features.items():
        if feature.dtype not in DTYPES:
            yield f"feature {name!r} has dtype {feature.dtype!r}; known: {', '.join(DTYPES)}"
        if any(n is not None and n < 0 for n in feature.shape):
            yield f"feature {name!r} has the shape {feature.shape}; must be 0 or more, or null"


def _of_image(image: Feature, manifest: Manifest) -> Iterator[str]:
    if image.encoding not in ENCODINGS:
        yield f"images are encoded as {image.encoding!r}; known: {', '.join(ENCODINGS)}"
    if len(image.shape) != 3 or 0 in image.shape:
        yield f"feature 'image' must have a shape of three sizes; it is {image.shape}"
    if image.encoding == "raw" and None in image.shape:
        yield f"raw images must have one shape; it is {image.shape}"
    channels = len(manifest.image_mean) if image.shape[2] is None else image.shape[2]
    for name, values in (("image_mean", manifest.image_mean), ("image_std", manifest.image_std)):
        if not values or len(values) != channels or not all(map(math.isfinite, values)):
            yield f"{name} must be {channels} finite numbers, one per channel; it is {values}"
    for mean, std in zip(manifest.image_mean, manifest.image_std, strict=True):
        if not 0 <= mean <= _WHITE or not 0 <= std <= _WHITE / 2:
            yield f"pixels of 0 to {_WHITE} have no mean of {mean} with the standard deviation {std}"
        if std == 0 and not mean.is_integer():  # all pixels would have this one value
            yield f"image_std is 0 where image_mean is {mean}, which is no value of a pixel"


def _of_split(name: str, split: SplitInfo, manifest: Manifest) -> Iterator[str]:
    if not naming.is_split_name(name):
        yield f"{name!r} cannot name a split"
    if not split.shards:
        yield f"split {name!r} lists no shard"
    for shard in split.shards:
        yield from _of_shard(shard, name)
        yield from _of_compressed(shard, manifest.format_version) if manifest.compression else _of_plain(shard)
    count, labelled = split.num_examples, split.num_examples if manifest.has_images else 0
    histogram, sizes = split.label_histogram, split.image_sizes
    if min(histogram, default=0) < 0 or sum(histogram) != labelled:
        yield f"split {name!r}: the label histogram {list(histogram)} is not that of its {count} examples"
    if split.num_rejects < 0:
        yield f"split {name!r}: num_rejects is {split.num_rejects}, not 0 or more"
    if not all(_SIZE.fullmatch(size) and n >= 0 for size, n in sizes.items()):
        yield f"split {name!r}: image_sizes must be {{'<height>x<width>': images}}; it is {sizes}"
    if manifest.has_images:
        yield from _of_images(name, split, manifest)
    if sizes and sum(sizes.values()) != labelled:
        yield f"split {name!r}: image_sizes counts {sum(sizes.values())} images of its {count} examples"


def _of_images(name: str, split: SplitInfo, manifest: Manifest) -> Iterator[str]:
    labels, classes = len(split.label_histogram), len(manifest.class_names)
    height, width, _ = manifest.features["image"].shape
    if labels > classes:
        yield f"split {name!r}: its label histogram has {labels} labels, but there are {classes} class_names"
    is_one_size = None not in (height, width)
    for size in split.image_sizes:
        sides = zip(map(int, size.split("x")), (height, width), strict=True)
        # Of more than 100 sizes, every side is rounded up, that which all images share too.
        if any(side and found not in (side, side if is_one_size else rounded_up(side)) for found, side in sides):
            yield f"split {name!r}: image_sizes has {size}, but feature 'image' has the shape {(height, width)}"


def _of_shard(shard: ShardInfo, split: str) -> Iterator[str]:
    if not naming.is_base_name(shard.file):
        yield f"split {split!r}: the file name {shard.file!r} is not a plain name; paths are refused"
    for field in ("num_examples", "num_bytes", "stride", "label_entropy"):
        value = getattr(shard, field)
        if value is not None and not 0 <= value < math.inf:
            yield f"{shard.file}: {field} is {value}, not 0 or more"
    for field in ("crc32c", "offsets_crc32c", "crcs_crc32c"):
        value = getattr(shard, field)
        if value is not None and not _CRC.fullmatch(value):
            yield f"{shard.file}: {field} is {value!r}, not 8 hexadecimal digits"


def _of_compressed(shard: ShardInfo, version: int) -> Iterator[str]:
    if version < MEMBERS_VERSION and (shard.stride is not None or shard.offsets_crc32c is not None):
        yield f"{shard.file}: has a stride or offsets, which compressed shards cannot have in version {version}"
    if shard.offsets_crc32c is None and shard.stride is not None:
        yield f"{shard.file}: has a stride, but no table of its members"
    if shard.offsets_crc32c is not None and shard.crcs_crc32c is None:
        yield f"{shard.file}: has a table of its members, but no list of its records' CRCs"


def _of_plain(shard: ShardInfo) -> Iterator[str]:
    if shard.stride is not None and shard.offsets_crc32c is not None:
        yield f"{shard.file}: has a stride and offsets; must have only one of them"
    if shard.stride is not None and shard.stride * shard.num_examples != shard.num_bytes:
        yield f"{shard.file}: {shard.num_examples} records of {shard.stride} bytes are not {shard.num_bytes} bytes"
