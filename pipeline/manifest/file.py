"""Reads and checks `manifest.json`, which makes a folder a data set; a conversion writes it last."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipeline.errors import DataError, to_run
from pipeline.files.paths import PathLike, folder
from pipeline.files.reading import unreadable
from pipeline.files.remote import RemotePath
from pipeline.manifest import naming
from pipeline.manifest.manifest import (
    FORMAT_VERSION,
    IMAGE_FEATURES,
    MEMBERS_VERSION,
    OPTIONAL,
    SEAL,
    Feature,
    Manifest,
    ShardInfo,
    SplitInfo,
    rounded_up,
    seal_problem,
)

_WEIGHTED = re.compile(r"=\d*\.?\d+$")  # such as `a=0.7`, which in a mixture is a source and its weight
_fields_of = functools.cache(typing.get_type_hints)
DTYPES = ("uint8", "int64", "float32", "string")
COLUMN_DTYPES = ("int8", "int16", "int32", "int64", "float32", "float64")
ENCODINGS = ("raw", "png", "jpeg", "any")  # of images
_WHITE = 255  # the largest value of a pixel
_SIZE = re.compile(r"[1-9][0-9]*x[1-9][0-9]*")
_CRC = re.compile("[0-9a-f]{8}")


def load(data_dir: PathLike | RemotePath) -> Manifest:
    """Reads and checks `data_dir/manifest.json`.

    Raises:
      DataError: there is no manifest, or it has another version, or is cut, invalid or edited.
    """
    found = folder(data_dir)
    path = found / naming.MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        advice = f"make one with: {to_run('beam_jobs.convert')}; from existing TFRecords: {to_run('pipeline.index')}"
        if _WEIGHTED.search(str(found)):
            advice = "leave out the weight: it is for several sources, with commas between them"
            if "," in str(found):
                advice = "give the folder of one data set: several, with weights, are for training and audits"
        raise DataError(
            f"no manifest, so {found} is not a data set (or its conversion did not finish)", path=path, advice=advice
        ) from None
    except NotADirectoryError:
        raise DataError(
            "is a file, not a data set", path=found, advice=f"name the folder that holds {naming.MANIFEST}"
        ) from None
    except DataError:  # from a store; is one line already
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Manifest:
    """Returns the manifest in a text, checked.

    Args:
      text: content of the file.
      file: its path, for messages.

    Raises:
      DataError: it has another version, or is cut, invalid or edited.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})", path=file, advice="convert the data again") from None
    _check_version(content, file)
    plain = {name: value for name, value in content.items() if name != SEAL}
    try:
        manifest: Manifest = from_json(Manifest, plain)
    except ValueError as error:
        raise DataError(f"not a valid manifest (convert the data again): {error}", path=file) from None
    if problem := next(_problems(manifest), None):
        raise DataError(problem, path=file)
    if problem := seal_problem(content):  # last, because the other problems name the field
        raise DataError(problem, path=file)
    return manifest


def _check_version(content: Any, file: str) -> None:
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"format_version is {version!r}, not a version of a manifest", path=file)
    if version < FORMAT_VERSION:
        raise DataError(
            f"format_version {version} is of an earlier release", path=file, advice="convert the data again"
        )
    if version > MEMBERS_VERSION:
        raise DataError(
            f"format_version {version} is newer than {MEMBERS_VERSION}, the newest that this release reads",
            path=file,
            advice="upgrade it",
        )


def from_json(kind: Any, value: Any, path: str = "") -> Any:
    """Returns a JSON value as a dataclass, or as another type that its fields may have.

    Args:
      kind: a dataclass, tuple[T, ...], dict[str, T], T | None, int, float, str, bool or Any.
      value: the value. An object must have all fields of the dataclass except `OPTIONAL` ones, and no others.
      path: of the value in the file.

    Raises:
      ValueError: a value has another type; the message names the first one, its place and its type.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _object(kind, value, path)
    if origin is tuple and isinstance(value, list):
        is_plain = all(type(item) is parts[0] for item in value)
        items = (from_json(parts[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        return tuple(value if is_plain else items)
    if origin is dict and isinstance(value, dict):
        return {name: from_json(parts[1], item, f"{path}[{name!r}]") for name, item in value.items()}
    if origin is types.UnionType:
        return None if value is None else from_json(parts[0], value, path)
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        name = kind.__name__ if isinstance(kind, type) else kind
        raise ValueError(f"{path or 'the value'} is {value!r}, not of type {name}")
    return value


def _object(kind: Any, value: dict[str, Any], path: str) -> Any:
    fields = _fields_of(kind)
    optional = {field.name for field in dataclasses.fields(kind) if OPTIONAL in field.metadata}
    for name in sorted((fields.keys() ^ value.keys()) - (optional - value.keys())):
        raise ValueError(f"{path or 'it'} {'lacks' if name in fields else 'has the unknown field'} {name!r}")
    at = f"{path}." if path else ""
    return kind(**{name: from_json(fields[name], part, f"{at}{name}") for name, part in value.items()})


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
    yield from _of_columns(manifest)
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


def _of_columns(manifest: Manifest) -> Iterator[str]:
    for name, column in manifest.columns.items():
        if not name.isidentifier():
            yield f"{name!r} cannot name a column"
        if column.dtype not in COLUMN_DTYPES:
            yield f"column {name!r} has dtype {column.dtype!r}; known: {', '.join(COLUMN_DTYPES)}"
        for split, crc in column.files.items():
            if split not in manifest.splits:
                yield f"column {name!r} has values for {split!r}, which is not a split"
            if not _CRC.fullmatch(crc):
                yield f"column {name!r}, split {split!r}: the CRC32C is {crc!r}, not 8 hexadecimal digits"


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
            yield f"image_std is 0 where image_mean is {mean}, which is not a value of a pixel"


def _of_split(name: str, split: SplitInfo, manifest: Manifest) -> Iterator[str]:
    if not naming.is_split_name(name):
        yield f"{name!r} cannot name a split"
    if not split.shards:
        yield f"split {name!r} lists no shard"
    for shard in split.shards:
        yield from _of_shard(shard, name)
        yield from _of_layout(shard, manifest)
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
        # If there are more than 100 sizes, every side is rounded up, also the one that all images share.
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


def _of_layout(shard: ShardInfo, manifest: Manifest) -> Iterator[str]:
    has_stride, has_offsets = shard.stride is not None, shard.offsets_crc32c is not None
    if not manifest.compression:
        if has_stride and has_offsets:
            yield f"{shard.file}: has a stride and offsets; must have only one of them"
        if shard.stride is not None and shard.stride * shard.num_examples != shard.num_bytes:
            yield f"{shard.file}: {shard.num_examples} records of {shard.stride} bytes are not {shard.num_bytes} bytes"
        return
    version = manifest.format_version
    if version < MEMBERS_VERSION and (has_stride or has_offsets):
        yield f"{shard.file}: has a stride or offsets, which compressed shards cannot have in version {version}"
    if has_stride and not has_offsets:
        yield f"{shard.file}: has a stride, but no table of its members"
    if has_offsets and shard.crcs_crc32c is None:
        yield f"{shard.file}: has a table of its members, but no list of its records' CRCs"
