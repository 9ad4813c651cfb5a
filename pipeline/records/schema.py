"""The image, label and key features of any program's Examples, inferred from the first records.

`beam_jobs.convert` reads such records, and `pipeline.index` describes them in place, with the same flags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.commands import values
from pipeline.commands.text import count_of, shape_of
from pipeline.errors import UsageError, to_run, unknown
from pipeline.manifest import Feature
from pipeline.records import tf_example

OWN_FEATURES = ("image", "label", "key")  # features of every example
# Advice for data that is not one labelled image per row; errors about a missing image or label end with it.
OTHER_DATA = (
    "boxes, masks and captions of COCO: see docs/boxes.md; text and tables are not converted: write them as TFRecords "
    "if they are none yet, run "
    f"{to_run('pipeline.index')} on the folder, and read it by input_fn(parse=...) or a trainer.Task (docs/reading.md)"
)
# {(offset, first bytes there): format} of encoded images; for BMP the two letters, then the zeros after the size.
_IMAGE_STARTS = {
    (0, b"\x89PNG\r\n\x1a\n"): "PNG",
    (0, b"\xff\xd8\xff"): "JPEG",
    (0, b"GIF8"): "GIF",
    (8, b"WEBP"): "WebP",
    **dict.fromkeys(((0, b"II*\0"), (0, b"MM\0*"), (0, b"II+\0"), (0, b"MM\0+")), "TIFF"),
    **dict.fromkeys(((4, b"jP  \r\n"), (0, b"\xff\x4f\xff\x51")), "JPEG 2000"),
    **dict.fromkeys(((4, b"ftypavif"), (4, b"ftypavis")), "AVIF"),
    **dict.fromkeys(((4, b"ftyphei"), (4, b"ftyphev"), (4, b"ftypmif1")), "HEIC"),
}
IMAGE_START = 16  # bytes that `image_format` needs

FIRST_RECORDS = 100  # records that features are inferred from
USUAL = {"image": ("image", "image/encoded", "image_raw"), "label": ("label", "image/class/label")}
_SIZES = (
    ("height", "width", "depth"),
    ("height", "width", "channels"),
    ("image/height", "image/width", "image/channels"),
)
DTYPES = {"bytes": "string", "int64": "int64", "float": "float32"}  # {kind of values: dtype of a feature}
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_CLASS = Feature("int64")
CLASS_KINDS = ("int64", "bytes")  # kinds of labels that are classes: numbers or names


class RecordFlag(NamedTuple):
    """A flag about other programs' records, shared by several commands.

    Attributes:
      text: help text.
      parse: function that returns the value, given the flag's name and its text.
    """

    text: str
    parse: Callable[[str, str], Any]


FEATURE_MAP = RecordFlag("the names of the features in foreign records: image:image_raw,label:label", values.pairs)
IMAGE_SHAPE = RecordFlag("HxWxC of raw pixels in foreign records", functools.partial(values.sizes, count=3))
KEEP_COLUMNS = RecordFlag("other features to keep: a,b,...", values.names)


class Row(NamedTuple):
    """The values in a record, as stored.

    Attributes:
      image: content of an image file, or raw pixels of the schema's shape.
      label: label, int, float or bytes; an array if the schema's labels are vectors; None if the record has no label.
      key: key, bytes or int; None if the schema has no key.
      extra: values of the other features, by name: a single value or an array.
      placed: values of the mask, box and point features, by their names in the record.
    """

    image: bytes
    label: Any
    key: bytes | int | None
    extra: dict[str, Any]
    placed: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Schema:
    """The names of the features in the records.

    Attributes:
      image: name of the image feature, which holds bytes.
      label: name of the label feature; "" if records have none.
      key: name of the key feature, which holds bytes or one int64; "" if records have none.
      image_shape: (height, width, channels) of raw pixels; None if images are encoded.
      sizes: features with height, width and channels of raw pixels, by name; empty if records have none.
      extra: other features to keep, by name.
      labels: dtype and shape of stored labels, and the labels that they stand for; dtype string while the classes of
        texts are unknown.
      placed: masks, boxes and points, by their names in the manifest.
    """

    image: str
    label: str
    key: str = ""
    image_shape: tuple[int, int, int] | None = None
    sizes: tuple[str, ...] = ()
    extra: dict[str, Feature] = dataclasses.field(default_factory=dict)
    labels: Feature = _CLASS
    placed: dict[str, Feature] = dataclasses.field(default_factory=dict)

    @property
    def has_text_labels(self) -> bool:
        """Whether records hold class names."""
        return self.labels.stored_dtype == "string"

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of all features to read."""
        own = (self.image, self.label, self.key, *self.sizes, *self.extra, *self.placed_names)
        return [name for name in dict.fromkeys(own) if name]

    @functools.cached_property
    def placed_names(self) -> tuple[str, ...]:
        """Names in the records of the features that hold masks, boxes and points."""
        return tuple(own for name, feature in self.placed.items() for own in feature.stored_names(name))

    def row(self, record: bytes) -> Row:
        """Returns the values of a serialized Example.

        Raises:
          ValueError: it is not an Example with these features; the message explains why.
        """
        features = tf_example.decode(record, self.names)
        return Row(
            self._image(features),
            self._label(features.get(self.label, [])),
            _one(features, self.key, "bytes or int64") if self.key else None,
            {name: _kept(features, name, feature) for name, feature in self.extra.items()},
            {name: features[name] for name in self.placed_names if name in features},
        )

    def _image(self, features: Mapping[str, Any]) -> bytes:
        image: bytes = _one(features, self.image, "bytes")
        if self.image_shape is None:
            return image
        said, usual = tuple(int(_one(features, name, "int64")) for name in self.sizes), shape_of(self.image_shape)
        if said and said != self.image_shape:
            raise ValueError(f"{', '.join(self.sizes)} say {shape_of(said)}, those of the first record {usual}")
        if len(image) != math.prod(self.image_shape):
            size = math.prod(self.image_shape)
            raise ValueError(f"its image has {count_of(len(image), 'byte')}; {usual} pixels are {size:,}")
        return image

    def _label(self, values: Any) -> Any:
        """Returns a stored label; None if the record has none."""
        wanted, shape = _KINDS[self.labels.stored_dtype], self.labels.shape
        if isinstance(values, list) and not values:
            return None
        if not shape:
            return _one({self.label: values}, self.label, wanted)
        if kind(values) != wanted or len(values) != shape[0]:
            raise ValueError(_other(self.label, values, f"{shape[0]} of {wanted}"))
        return values


def image_format(start: bytes) -> str:
    """Returns the format of an image file from its first bytes, at least `IMAGE_START`; "" if it is not an image."""
    if start.startswith(b"BM") and start[6:10] == bytes(4):
        return "BMP"
    return next((name for (at, magic), name in _IMAGE_STARTS.items() if start[at:].startswith(magic)), "")


def kind(values: Any) -> str:
    """Returns the kind of values returned by `tf_example.decode`: `bytes`, `int64`, `float` or `nothing`."""
    if isinstance(values, list):
        return "bytes" if values else "nothing"
    return "int64" if values.dtype == np.int64 else "float"


def first_examples(records: Iterable[bytes], count: int = FIRST_RECORDS) -> tuple[list[dict[str, Any]], int]:
    """Returns the first records that are Examples with features, decoded, and the number of records read."""
    decoded, seen = [], 0
    for record in itertools.islice(records, count):
        seen += 1
        with contextlib.suppress(ValueError):
            decoded.append(tf_example.decode(record))
    return [features for features in decoded if features], seen  # an empty record also parses


def infer(
    records: Sequence[Mapping[str, Any]],
    file: str,
    feature_map: Sequence[tuple[str, str]],
    image_shape: tuple[int, int, int] | None = None,
    keep_columns: Sequence[str] = (),
    label_kinds: Sequence[str] = CLASS_KINDS,
) -> Schema:
    """Infers the schema of a file's records from the first ones and the flags.

    Args:
      records: first Examples, decoded; at least one.
      file: path of the file, for messages.
      feature_map, image_shape, keep_columns: values of the flags.
      label_kinds: kinds of values that may be labels; if not only classes, a label may have several values. Empty to
        ignore labels.

    Raises:
      UsageError: a flag does not fit the first record, or is missing.
    """
    # Not simply the first record: a damaged one is an invalid row like any other, and no reason to reject flags.
    candidates = {theirs for _, theirs in feature_map}.union(*USUAL.values())
    usual = _most_alike(
        records,
        lambda record: frozenset((n, kind(record[n]), len(record[n]) == 1) for n in candidates & record.keys()),
    )
    names = _names(usual[0], file, feature_map, OWN_FEATURES[: 1 + bool(label_kinds)])
    first = _most_alike(usual, lambda record: _image_form(record[names["image"]]))[0]
    listed = _listed(first)
    one_label = ("label", tuple(label_kinds)) if set(label_kinds) <= {*CLASS_KINDS} else ("key", CLASS_KINDS)
    for ours, wanted in (("image", ("bytes",)), one_label, ("key", ("bytes", "int64"))):
        if ours in names and (kind(first[names[ours]]) not in wanted or len(first[names[ours]]) != 1):
            raise UsageError(
                f"--feature_map={ours}:{names[ours]}: {file}: must be one value of {' or '.join(wanted)}; the first "
                f"record has {listed}"
            )
    shape, sizes = _image_shape(first, names["image"], file, image_shape)
    extra = {name: kept_feature(records, name, file) for name in keep_columns}
    label = names.get("label", "")
    labels = _CLASS
    if label and (count := len(first[label])):
        labels = Feature(DTYPES[kind(first[label])], () if count == 1 else (count,))
    return Schema(names["image"], label, names.get("key", ""), shape, sizes, extra, labels)


def _most_alike(
    records: Sequence[Mapping[str, Any]], form: Callable[[Mapping[str, Any]], object]
) -> list[Mapping[str, Any]]:
    """Returns the records with the most frequent form, in order; ties go to the form that occurs first."""
    forms = [form(record) for record in records]
    usual = Counter(forms).most_common(1)[0][0]
    return [record for record, own in zip(records, forms, strict=True) if own == usual]


def _image_form(values: Any) -> object:
    """Returns the format of an encoded image, or the number of its raw pixels."""
    image = values[0] if isinstance(values, list) and values else b""
    return image_format(image) or len(image)


def _names(
    first: Mapping[str, Any], file: str, feature_map: Sequence[tuple[str, str]], needed: Sequence[str]
) -> dict[str, str]:
    names = dict(feature_map)
    for ours, theirs in names.items():
        if ours not in OWN_FEATURES:
            raise unknown("--feature_map", ours, OWN_FEATURES)
        if theirs not in first:
            lacks = f"{file}: the first record has no {theirs}; it has {_listed(first)}"
            raise UsageError(f"--feature_map={ours}:{theirs}: {lacks}")
    for ours in needed:
        if ours not in names:
            found = [name for name in USUAL[ours] if name in first]
            if not found:
                wanted = ("bytes",) if ours == "image" else ("int64", "bytes")
                fits = {name for name, values in first.items() if kind(values) in wanted and len(values) == 1}
                could_be = sorted(fits.difference(names.values()), key=lambda name: (ours not in name.lower(), name))
                if not could_be:
                    raise UsageError(
                        f"no feature could be the {ours}: the first record has {_listed(first)}",
                        path=file,
                        advice=OTHER_DATA,
                    )
                raise UsageError(
                    f"--feature_map must name the {ours}, as in {ours}:{could_be[0]}: {file}: the first record has "
                    f"{_listed(first)}; if none is the {ours}, {OTHER_DATA}"
                )
            names[ours] = found[0]
    return names


def _listed(first: Mapping[str, Any]) -> str:
    sizes = {name: f"{len(values)} {kind(values)}" if len(values) else "empty" for name, values in first.items()}
    return ", ".join(f"{name} ({sizes[name]})" for name in sorted(sizes))


def _image_shape(
    first: Mapping[str, Any], name: str, file: str, given: tuple[int, int, int] | None
) -> tuple[tuple[int, int, int] | None, tuple[str, ...]]:
    image: bytes = first[name][0]
    encoding = image_format(image)
    if encoding and given and math.prod(given) != len(image):
        raise UsageError(f"--image_shape: {file}: feature {name!r} holds {encoding} files, which say their size")
    if encoding and not given:
        return None, ()

    def is_size(values: Any) -> bool:
        return values is not None and kind(values) == "int64" and len(values) == 1 and values[0] > 0

    sizes = next((names for names in _SIZES if all(is_size(first.get(size)) for size in names)), ())
    if given is None and not sizes:
        raise UsageError(
            f"--image_shape=HxWxC is missing: {file}: feature {name!r} holds "
            f"{count_of(len(image), 'byte')} beginning with "
            f"0x{image[:4].hex()}: no PNG or JPEG file, so they must be raw pixels"
        )
    shape = given or tuple(int(first[size][0]) for size in sizes)
    if math.prod(shape) != len(image):
        origin = f"--image_shape={shape_of(shape)}" if given else f"{', '.join(sizes)} say {shape_of(shape)}"
        raise UsageError(
            f"{file}: must have {count_of(math.prod(shape), 'byte')}; the first image has {len(image):,}", path=origin
        )
    return (shape[0], shape[1], shape[2]), () if given else sizes


def kept_feature(records: Sequence[Mapping[str, Any]], name: str, file: str) -> Feature:
    """Returns a feature to keep: a scalar if each of the first records has one value, else a vector of any length."""
    if name in OWN_FEATURES:
        raise UsageError(f"--keep_columns={name}: every converted record has a feature of this name")
    found = [record[name] for record in records if name in record and len(record[name])]
    if not found:
        lacks = f"the first record has no {name}; it has {_listed(records[0])}"
        raise UsageError(f"--keep_columns={name}: {file}: {lacks}")
    dtype = DTYPES[kind(found[0])]
    if all(len(values) == 1 for values in found) and len(found) == len(records):
        return Feature(dtype)
    return Feature(dtype, (None,))


def _one(features: Mapping[str, Any], name: str, wanted: str) -> Any:
    """Returns a feature's only value; raises ValueError if it does not have one of the kind `wanted`."""
    if name not in features:
        others = f"; of those that are read it has {', '.join(sorted(features))}" if features else ""
        raise ValueError(f"there is no feature {name!r}{others}")
    values = features[name]
    if kind(values) not in wanted or len(values) != 1:
        raise ValueError(_other(name, values, f"1 of {wanted}"))
    return values[0]


def _other(name: str, values: Any, wanted: str) -> str:
    return f"feature {name!r} has {count_of(len(values), 'value')} of {kind(values)}, not {wanted}"


def _kept(features: Mapping[str, Any], name: str, feature: Feature) -> Any:
    """Returns the value or values of a kept feature; raises ValueError if they do not match it."""
    wanted = _KINDS[feature.dtype]
    if not feature.shape:
        return _one(features, name, wanted)
    values = features.get(name, [])
    if not len(values):
        values = [] if feature.dtype == "string" else np.zeros(0, feature.dtype)
    elif kind(values) != wanted:
        raise ValueError(_other(name, values, wanted))
    if None in feature.shape:
        return values
    shape = [size for size in feature.shape if size is not None]
    if len(values) != math.prod(shape):
        raise ValueError(f"feature {name!r} has {count_of(len(values), 'value')}, not {shape_of(shape)}")
    return values.reshape(shape)
