"""Checks the values of a manifest: each by itself, against each other, and against its format version."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from pipeline.manifest import naming
from pipeline.manifest.manifest import (
    ANNOTATIONS_VERSION,
    APPENDED_VERSION,
    BOX_LABELS,
    BOXES,
    CONVENTIONS,
    DCTS,
    EDITED_VERSION,
    IMAGE_FEATURES,
    IN_PLACE_VERSION,
    LABELS_VERSION,
    MASK,
    MEMBERS_VERSION,
    NUMBERS,
    ORIENTATIONS,
    PACKINGS_VERSION,
    Feature,
    Manifest,
    ShardInfo,
    SplitInfo,
    rounded_up,
)

_PACKINGS = ", ".join(name for name in naming.PACKINGS if name)
_DTYPES = ("uint8", "int64", "float32", "string")
_COLUMN_DTYPES = ("int8", "int16", "int32", "int64", "float32", "float64")
_ENCODINGS = ("raw", "png", "jpeg", "any")  # encodings of images
_WHITE = 255  # the largest value of a pixel
_SIZE = re.compile(r"[1-9][0-9]*x[1-9][0-9]*")
_CRC = re.compile("[0-9a-f]{8}")


def problems(manifest: Manifest) -> Iterator[str]:
    """Yields the problems of a manifest; nothing if it is valid."""
    yield from _of_features(manifest)
    if manifest.has_images:
        yield from _of_image(manifest.features["image"], manifest)
    else:
        for name in ("class_names", "image_mean", "image_std"):
            if getattr(manifest, name):
                yield f"{name} is {getattr(manifest, name)}, but there is no feature 'image'"
    if manifest.compression not in naming.PACKINGS:
        yield f"compression is {manifest.compression!r}; known: {_PACKINGS}, or an empty text for none"
    if not manifest.splits:
        yield "lists no split"
    for name, split in manifest.splits.items():
        yield from _of_split(name, split, manifest)
    yield from _of_columns(manifest)
    yield from _of_version(manifest)
    if (rule := manifest.pixel_rule) is not None:
        for name, value, known in (("orientation", rule.orientation, ORIENTATIONS), ("dct", rule.dct, DCTS)):
            if value not in known:
                yield f"pixel_rule has the {name} {value!r}; known: {', '.join(known)}"
    for name, count in Counter(naming.flat(shard.file) for shard in manifest.shards).items():
        if count > 1:
            yield f"lists {name} twice"


def _of_features(manifest: Manifest) -> Iterator[str]:
    for name, dtype in IMAGE_FEATURES.items() if manifest.has_images else ():
        feature = manifest.features.get(name)
        if feature is None and name == "key" and manifest.is_in_place:
            continue
        if feature is not None and name == "label":
            yield from _of_label(feature, manifest)
            continue
        if feature is None or feature.dtype != dtype:
            yield f"feature {name!r} of dtype {dtype} is needed; there is {feature}"
    for name, feature in manifest.features.items():
        if feature.dtype not in _DTYPES:
            yield f"feature {name!r} has dtype {feature.dtype!r}; known: {', '.join(_DTYPES)}"
        if any(n is not None and n < 0 for n in feature.shape):
            yield f"feature {name!r} has the shape {feature.shape}; must be 0 or more, or null"
        if feature.offset and name != "label":
            yield f"feature {name!r} has the offset {feature.offset}; only a label may have one"
        yield from _of_annotation(name, feature, manifest)
    version = manifest.format_version
    if manifest.is_in_place and version < IN_PLACE_VERSION:
        yield f"features have other names in the records, which version {version} does not know"


def _of_annotation(name: str, feature: Feature, manifest: Manifest) -> Iterator[str]:
    if not feature.convention:
        if feature.parts or feature.fill:
            yield f"feature {name!r} has parts or a fill, which only masks, boxes and points have"
        return
    if feature.convention not in CONVENTIONS.get(name, ()):
        yield f"feature {name!r} has the convention {feature.convention!r}, which it cannot have"
        return
    is_mask = name == MASK
    numbers = len(CONVENTIONS[name][feature.convention])
    dtypes = {MASK: ("uint8",), BOX_LABELS: ("int64",)}.get(name, NUMBERS)
    if is_mask != (feature.encoding in ("png", "raw")) or feature.dtype not in dtypes:
        yield f"feature {name!r} is {feature}, encoded as {feature.encoding!r}; no {name} can be"
    behind = (numbers,) if numbers else ()
    if (len(feature.shape) != 3 or feature.shape[2] != 1) if is_mask else feature.shape[1:] != behind:
        yield f"feature {name!r} has the shape {feature.shape}; no {name} can have it"
    if name == BOX_LABELS and BOXES not in manifest.features:
        yield f"feature {name!r} has the classes of boxes, but there is no feature {BOXES!r}"
    if len(feature.parts) not in (0, numbers) or not 0 <= feature.fill <= _WHITE:
        yield f"feature {name!r} has {len(feature.parts)} parts and the fill {feature.fill}"
    if manifest.format_version < ANNOTATIONS_VERSION:
        yield f"feature {name!r} lies on the image, which version {manifest.format_version} does not know"


def _of_label(label: Feature, manifest: Manifest) -> Iterator[str]:
    names, version = manifest.class_names, manifest.format_version
    if label.dtype not in ("int64", "float32") or len(label.shape) > 1 or None in label.shape:
        yield f"feature 'label' is {label}; must be int64 or float32, one value or a vector of one length"
    if (label.texts or not label.is_class) and version < LABELS_VERSION:
        yield f"feature 'label' is {label}, with {len(label.texts)} texts, which version {version} does not know"
    if label.texts and (label.texts != names or not label.is_class):
        yield f"feature 'label' has the texts {list(label.texts)}, but class_names are {list(names)}"
    if not label.is_class and len(names) not in (0, *label.shape):
        yield f"feature 'label' is {label}, but there are {len(names)} class_names"


def _of_version(manifest: Manifest) -> Iterator[str]:
    edit = manifest.edit
    if bool(manifest.parent) != (manifest.version > 1) or manifest.version < 1:
        yield f"version is {manifest.version}, with the parent {manifest.parent!r}; all but version 1 have one"
    if manifest.parent and manifest.format_version < (EDITED_VERSION if edit else APPENDED_VERSION):
        what = "an edit" if edit else "a parent"
        yield f"has {what}, which format_version {manifest.format_version} does not know"
    if edit is None:
        return
    if min(edit.labels, edit.deleted) < 0 or not edit.labels + edit.deleted or bool(edit.deleted) != bool(edit.removed):
        yield f"edit sets {edit.labels} labels and deletes {edit.deleted} records of {len(edit.removed)} shards"
    if not manifest.parent or not all(map(naming.is_file_name, edit.removed)) or manifest.has_deleted(manifest):
        yield f"edit has removed {list(edit.removed)}, which are not shards of the parent {manifest.parent!r} alone"


def _of_columns(manifest: Manifest) -> Iterator[str]:
    for name, column in manifest.columns.items():
        if not name.isidentifier():
            yield f"{name!r} cannot name a column"
        if column.dtype not in _COLUMN_DTYPES:
            yield f"column {name!r} has dtype {column.dtype!r}; known: {', '.join(_COLUMN_DTYPES)}"
        for split, crc in column.files.items():
            if split not in manifest.splits:
                yield f"column {name!r} has values for {split!r}, which is not a split"
            if not _CRC.fullmatch(crc):
                yield f"column {name!r}, split {split!r}: the CRC32C is {crc!r}, not 8 hexadecimal digits"


def _of_image(image: Feature, manifest: Manifest) -> Iterator[str]:
    if image.encoding not in _ENCODINGS:
        yield f"images are encoded as {image.encoding!r}; known: {', '.join(_ENCODINGS)}"
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
        if std == 0 and not mean.is_integer():  # all pixels would have the same value
            yield f"image_std is 0 where image_mean is {mean}, which is not a value of a pixel"


def _of_split(name: str, split: SplitInfo, manifest: Manifest) -> Iterator[str]:
    if not naming.is_split_name(name):
        yield f"{name!r} cannot name a split"
    if not split.shards:
        yield f"split {name!r} lists no shard"
    for shard in split.shards:
        yield from _of_shard(shard, name)
        yield from _of_layout(shard, manifest)
    count, images = split.num_examples, split.num_examples if manifest.has_images else 0
    histogram, sizes = split.label_histogram, split.image_sizes
    if min(histogram, default=0) < 0 or not _counts_labels(split, manifest):
        yield f"split {name!r}: the label histogram {list(histogram)} is not that of its {count} examples"
    if split.num_rejects < 0:
        yield f"split {name!r}: num_rejects is {split.num_rejects}, not 0 or more"
    if not all(_SIZE.fullmatch(size) and n >= 0 for size, n in sizes.items()):
        yield f"split {name!r}: image_sizes must be {{'<height>x<width>': images}}; it is {sizes}"
    if manifest.has_images:
        yield from _of_images(name, split, manifest)
    if sizes and sum(sizes.values()) != images:
        yield f"split {name!r}: image_sizes counts {sum(sizes.values())} images of its {count} examples"


def _counts_labels(split: SplitInfo, manifest: Manifest) -> bool:
    """Returns whether the label histogram agrees with the split's number of examples."""
    histogram, count = split.label_histogram, split.num_examples
    if not manifest.has_images:
        return not any(histogram)
    if not manifest.features["label"].is_class:  # an example may have several classes, or none
        return split.is_labelled is not None and max(histogram, default=0) <= count * split.is_labelled
    may_lack = manifest.is_in_place or not manifest.needs_labels
    return sum(histogram) == count or (may_lack and not any(histogram))


def _of_images(name: str, split: SplitInfo, manifest: Manifest) -> Iterator[str]:
    labels, classes = len(split.label_histogram), len(manifest.class_names)
    height, width, _ = manifest.features["image"].shape
    if labels > classes:
        yield f"split {name!r}: its label histogram has {labels} labels, but there are {classes} class_names"
    is_one_size = None not in (height, width)
    for size in split.image_sizes:
        sides = zip(map(int, size.split("x")), (height, width), strict=True)
        # If there are more than 100 sizes, every side is rounded up, even one that all images share.
        if any(side and found not in (side, side if is_one_size else rounded_up(side)) for found, side in sides):
            yield f"split {name!r}: image_sizes has {size}, but feature 'image' has the shape {(height, width)}"


def _of_shard(shard: ShardInfo, split: str) -> Iterator[str]:
    if not naming.is_file_name(shard.file):
        yield f"split {split!r}: the file name {shard.file!r} is no name in the data set's folder"
    for field in ("num_examples", "num_bytes", "stride", "label_entropy"):
        value = getattr(shard, field)
        if value is not None and not 0 <= value < math.inf:
            yield f"{shard.file}: {field} is {value}, not 0 or more"
    for field in ("crc32c", "offsets_crc32c", "crcs_crc32c"):
        value = getattr(shard, field)
        if value is not None and not _CRC.fullmatch(value):
            yield f"{shard.file}: {field} is {value!r}, not 8 hexadecimal digits"


def _of_layout(shard: ShardInfo, manifest: Manifest) -> Iterator[str]:
    has_stride, has_offsets = shard.stride is not None, shard.offsets_crc32c is not None
    version, packing = manifest.format_version, shard.compression
    if packing not in naming.PACKINGS:
        yield f"{shard.file}: compression is {packing!r}; known: {_PACKINGS}, or none"
    if manifest.compression not in ("", packing):
        yield f"{shard.file}: compression is {packing}, but that of all shards is {manifest.compression}"
    if (packing == "ZLIB" or packing != manifest.compression) and version < PACKINGS_VERSION:
        yield f"{shard.file}: is compressed with {packing}, which version {version} does not know of a shard"
    if not packing:
        if has_stride and has_offsets:
            yield f"{shard.file}: has a stride and offsets; must have only one of them"
        if shard.stride is not None and shard.stride * shard.num_examples != shard.num_bytes:
            yield f"{shard.file}: {shard.num_examples} records of {shard.stride} bytes are not {shard.num_bytes} bytes"
        return
    if packing == "ZLIB" and has_offsets:
        yield f"{shard.file}: has a table of GZIP members, but is compressed with ZLIB"
    if version < MEMBERS_VERSION and (has_stride or has_offsets):
        yield f"{shard.file}: has a stride or offsets, which compressed shards cannot have in version {version}"
    if has_stride and not has_offsets:
        yield f"{shard.file}: has a stride, but no table of its members"
    if has_offsets and shard.crcs_crc32c is None:
        yield f"{shard.file}: has a table of its members, but no list of its records' CRCs"
