"""Infers from the first records of a foreign file which features are its image, label and key."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from beam_jobs.sources.base import OTHER_DATA, OWN_FEATURES, SourceOptions, image_format
from beam_jobs.sources.records.columns import DTYPES, Columns, kind
from pipeline.commands.text import count_of
from pipeline.errors import UsageError, unknown
from pipeline.manifest import Feature

FIRST_RECORDS = 100  # looked at, to tell whether a feature has one value in every record
_USUAL = {"image": ("image", "image/encoded", "image_raw"), "label": ("label", "image/class/label")}
_SIZES = (
    ("height", "width", "depth"),
    ("height", "width", "channels"),
    ("image/height", "image/width", "image/channels"),
)


def infer(records: Sequence[Mapping[str, Any]], file: str, options: SourceOptions) -> Columns:
    """Returns the columns of the records of `file`, by the flags and its first decoded records (at least one).

    Raises:
      UsageError: a flag does not fit the first record, or is missing.
    """
    # Not simply the first: a damaged row is bad data wherever it lies, and no reason to refuse the flags.
    candidates = {theirs for _, theirs in options.feature_map}.union(*_USUAL.values())
    usual = _of_usual_form(records, lambda record: _form(record, candidates))
    names = _names(usual[0], file, options.feature_map)
    first = _of_usual_form(usual, lambda record: _image_form(record[names["image"]]))[0]
    listed = _listed(first)
    for ours, wanted in (("image", ("bytes",)), ("label", ("int64", "bytes")), ("key", ("bytes", "int64"))):
        if ours in names and (kind(first[names[ours]]) not in wanted or len(first[names[ours]]) != 1):
            raise UsageError(
                f"--feature_map={ours}:{names[ours]}: {file}: must be one value of {' or '.join(wanted)}; the first "
                f"record has {listed}"
            )
    shape, sizes = _image_shape(first, names["image"], file, options.image_shape)
    extra = {name: _feature(records, name, file) for name in options.keep_columns}
    is_text = kind(first[names["label"]]) == "bytes"
    return Columns(names["image"], names["label"], names.get("key", ""), shape, sizes, extra, is_text)


def _of_usual_form(
    records: Sequence[Mapping[str, Any]], form: Callable[[Mapping[str, Any]], object]
) -> list[Mapping[str, Any]]:
    """Returns the records of the most frequent form, in their order; of equally frequent ones, the first."""
    forms = [form(record) for record in records]
    usual = Counter(forms).most_common(1)[0][0]
    return [record for record, own in zip(records, forms, strict=True) if own == usual]


def _form(record: Mapping[str, Any], names: Set[str]) -> object:
    """Returns which of some features a record has, and of which kind."""
    return frozenset((name, kind(record[name]), len(record[name]) == 1) for name in names & record.keys())


def _image_form(values: Any) -> object:
    """Returns the format of an encoded image, or the number of its raw pixels."""
    image = values[0] if isinstance(values, list) and values else b""
    return image_format(image) or len(image)


def _names(first: Mapping[str, Any], file: str, feature_map: Sequence[tuple[str, str]]) -> dict[str, str]:
    names = dict(feature_map)
    for ours, theirs in names.items():
        if ours not in OWN_FEATURES:
            raise unknown("--feature_map", ours, OWN_FEATURES)
        if theirs not in first:
            raise UsageError(f"--feature_map={ours}:{theirs}: {file}: the first record has {_listed(first)}")
    for ours, usual in _USUAL.items():
        if ours not in names:
            found = [name for name in usual if name in first]
            if not found:
                wanted = ("bytes",) if ours == "image" else ("int64", "bytes")
                fits = {name for name, values in first.items() if kind(values) in wanted and len(values) == 1}
                could_be = sorted(fits.difference(names.values()), key=lambda name: (ours not in name.lower(), name))
                if not could_be:
                    raise UsageError(
                        f"{file}: no feature could be the {ours}: the first record has {_listed(first)}; {OTHER_DATA}"
                    )
                raise UsageError(
                    f"--feature_map must name the {ours}, as in {ours}:{could_be[0]}: {file}: the first record has "
                    f"{_listed(first)}; if none is the {ours}, {OTHER_DATA}"
                )
            names[ours] = found[0]
    return names


def _listed(first: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} ({len(first[name])} {kind(first[name])})" for name in sorted(first))


def _image_shape(
    first: Mapping[str, Any], name: str, file: str, given: tuple[int, int, int] | None
) -> tuple[tuple[int, int, int] | None, tuple[str, ...]]:
    image: bytes = first[name][0]
    encoding = image_format(image)
    if encoding and given and math.prod(given) != len(image):
        raise UsageError(f"--image_shape: {file}: feature {name!r} holds {encoding} files, which say their size")
    if encoding and not given:
        return None, ()
    sizes = next((names for names in _SIZES if all(_is_size(first.get(size)) for size in names)), ())
    if given is None and not sizes:
        raise UsageError(
            f"--image_shape=HxWxC is missing: {file}: feature {name!r} holds "
            f"{count_of(len(image), 'byte')} beginning with "
            f"0x{image[:4].hex()}: no PNG or JPEG file, so they must be raw pixels"
        )
    shape = given or tuple(int(first[size][0]) for size in sizes)
    if math.prod(shape) != len(image):
        text = "x".join(map(str, shape))
        origin = f"--image_shape={text}" if given else f"{', '.join(sizes)} say {text}"
        raise UsageError(
            f"{origin}: {file}: must have {count_of(math.prod(shape), 'byte')}; the first image has {len(image):,}"
        )
    return (shape[0], shape[1], shape[2]), () if given else sizes


def _is_size(values: Any) -> bool:
    return values is not None and kind(values) == "int64" and len(values) == 1 and values[0] > 0


def _feature(records: Sequence[Mapping[str, Any]], name: str, file: str) -> Feature:
    """Returns a kept feature: a scalar if each of the first records has one value, else a vector of any length."""
    if name in OWN_FEATURES:
        raise UsageError(f"--keep_columns={name}: every converted record has a feature of this name")
    found = [record[name] for record in records if name in record and len(record[name])]
    if not found:
        raise UsageError(f"--keep_columns={name}: {file}: the first record has {_listed(records[0])}")
    dtype = DTYPES[kind(found[0])]
    if all(len(values) == 1 for values in found) and len(found) == len(records):
        return Feature(dtype)
    if dtype == "string":
        raise UsageError(f"--keep_columns={name}: {file}: only one value of bytes per record can be kept")
    return Feature(dtype, (None,))
