"""The `tf.train.Example` in a record, without TensorFlow: as protobuf, as NumPy arrays, and as rows of the same layout.

The message classes are in a separate descriptor pool, because TensorFlow registers classes with the same names in the
default pool. Fields: tensorflow/core/example/{example,feature}.proto.

Records that differ only in the bytes of their image, label and key share a `Layout`: a template, and the positions of
the three. They are written and read as one matrix with a row per record.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from numpy.typing import NDArray

from pipeline.commands.text import count_of, shape_of
from pipeline.errors import DataError
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature
from pipeline.manifest.splits import Segment
from pipeline.records import annotation
from pipeline.records.stream import records_of

Value: TypeAlias = bytes | int | float | NDArray[np.int64] | NDArray[np.float32] | Sequence[bytes]
Values: TypeAlias = list[bytes] | NDArray[np.int64] | NDArray[np.float32]

_PACKAGE = "tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto
# The kinds of a feature, ordered by field number from 1: (field, message, type of the values).
_KINDS = (
    ("bytes_list", "BytesList", _Field.TYPE_BYTES),
    ("float_list", "FloatList", _Field.TYPE_FLOAT),
    ("int64_list", "Int64List", _Field.TYPE_INT64),
)
_INTEGERS = (int, np.integer)
_BYTES = ("string", "uint8")  # dtypes of features that are stored as bytes
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_ONE_BYTE = 0x7F  # largest label whose varint takes one byte
MAX_LABEL_SIZE = 9  # bytes of the varint of the largest int64


def encode(features: Mapping[str, Value]) -> bytes:
    """Serializes an Example deterministically, with features ordered by name.

    Args:
      features: {name: value or values}: bytes, integers (int64) or floats (float32); arrays are stored row-major.

    Raises:
      TypeError: a value has another type, such as an array of another dtype.
      ValueError: an integer is not in -2^63..2^63 - 1.
    """
    example = _example_class()()
    entries = example.features.feature
    for name, value in features.items():
        _put(entries[name], name, value)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def replaced(record: bytes, name: str, value: Value) -> bytes:
    """Returns a serialized Example with a new value of a feature, and everything else unchanged.

    Raises:
      ValueError: `record` is not a serialized Example.
      TypeError: as for `encode`.
    """
    example = _parsed(record)
    entry = example.features.feature[name]
    entry.Clear()
    _put(entry, name, value)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def _put(entry: Any, name: str, value: Value) -> None:
    if isinstance(value, bytes):
        entry.bytes_list.value.append(value)
    elif isinstance(value, _INTEGERS):
        entry.int64_list.value.append(int(value))
    elif isinstance(value, np.ndarray | np.floating | float):
        array = np.asarray(value, np.float32 if isinstance(value, float) else None)
        if array.dtype not in (np.int64, np.float32):
            raise TypeError(f"feature {name!r}: an array of {array.dtype}; must be int64 or float32")
        values = entry.int64_list if array.dtype == np.int64 else entry.float_list
        values.value.extend(array.ravel().tolist())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        entry.bytes_list.value.extend(value)
    else:
        raise TypeError(f"feature {name!r}: {type(value).__name__}; must be bytes, an integer or an array")


def decode(record: bytes, names: Iterable[str] | None = None) -> dict[str, Values]:
    """Parses an Example: {name: values}, a list of bytes, or an array (n,) of int64 or float32.

    A feature without values is an empty list. The names are in no particular order.

    Args:
      record: serialized Example.
      names: features to return, if the Example has them; None for all.

    Raises:
      ValueError: `record` is not a serialized Example.
    """
    entries, found = _parsed(record).features.feature, dict[str, Values]()
    for name in entries if names is None else [name for name in names if name in entries]:
        entry = entries[name]
        kind = entry.WhichOneof("kind")
        if kind == "bytes_list":
            found[name] = entry.bytes_list.value[:]
        elif kind == "int64_list":
            found[name] = np.array(entry.int64_list.value[:], np.int64)
        elif kind == "float_list":
            found[name] = np.array(entry.float_list.value[:], np.float32)
        else:
            found[name] = []
    return found


def _parsed(record: bytes) -> Any:
    try:
        return _example_class().FromString(record)
    except message.DecodeError:
        raise ValueError(f"these {len(record)} bytes are not a serialized tf.train.Example") from None


def as_ours(values: Mapping[str, Values], features: Mapping[str, Feature]) -> dict[str, Values]:
    """Returns the features of a record by their names in the manifest, with stored labels translated.

    `values` is the result of `decode` of the whole record.
    """
    stored_as = {name: feature.stored_as for name, feature in features.items() if feature.stored_as is not None}
    if not stored_as:
        return dict(values)
    kept = {name for name, feature in features.items() if feature.stored_as is None}
    # A record may have a feature with one of our names besides the mapped one; it is not ours.
    taken = {*stored_as, *stored_as.values()} - kept
    found = {name: value for name, value in values.items() if name not in taken}
    found |= {name: values[theirs] for name, theirs in stored_as.items() if theirs in values}
    if "label" in features:
        found["label"] = _labels(found.get("label", []), features["label"])
    return found


def _labels(stored: Values, feature: Feature) -> Values:
    """Returns the label for stored values; values of another kind unchanged."""
    if not len(stored):
        return np.full(feature.shape or 1, feature.no_label, feature.dtype)  # type: ignore[arg-type]
    if (
        isinstance(stored, list) != bool(feature.texts)
        or not feature.is_class
        or (not isinstance(stored, list) and stored.dtype != np.int64)
    ):
        return stored
    return np.array([feature.label_of(value if isinstance(value, bytes) else int(value)) for value in stored])


def keys_of(file: StoragePath, segment: Segment, key: str = "key") -> Iterator[bytes]:
    """Yields the keys of a segment's records, the feature `key`, reading its shard `file` from the beginning.

    Raises:
      DataError: the shard cannot be read, a record is cut short or corrupt or has no key, or records are missing.
    """
    count = 0
    for offset, record in records_of(file, segment.shard.compression):
        if segment.start <= count < segment.stop:
            yield key_of(record, key, file, count, offset)
        count += 1
    if count != segment.shard.num_examples:
        raise DataError(f"{count} records, but the manifest says {segment.shard.num_examples}", path=file)


def key_of(record: bytes, name: str, file: StoragePath, number: int, offset: int) -> bytes:
    """Returns the key of a record, its feature `name`; the other arguments are for errors.

    Raises:
      DataError: the record is not an Example, or has no key.
    """
    try:
        values = decode(record, [name]).get(name, [])
    except ValueError as error:
        raise DataError(str(error), path=file, record=number, offset=offset) from None
    if not isinstance(values, list) or len(values) != 1:
        raise DataError("not an Example with one key", path=file, record=number, offset=offset)
    return values[0]


@functools.cache
def _example_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="stepfeed/example.proto", package=_PACKAGE, syntax="proto3")
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, kind, value_type) in enumerate(_KINDS, 1):
        values = file.message_type.add(name=kind)
        values.field.add(name="value", number=1, label=_Field.LABEL_REPEATED, type=value_type)
        if value_type != _Field.TYPE_BYTES:
            values.field[0].options.packed = True
        _add_message_field(feature, field, number, kind).oneof_index = 0
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    _add_message_field(entry, "value", 2, "Feature")
    _add_message_field(features, "feature", 1, "Features.FeatureEntry").label = _Field.LABEL_REPEATED
    _add_message_field(file.message_type.add(name="Example"), "features", 1, "Features")
    return file


def _add_message_field(owner: Any, name: str, number: int, kind: str) -> Any:
    type_name = f".{_PACKAGE}.{kind}"
    return owner.field.add(
        name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_MESSAGE, type_name=type_name
    )


class BadExampleError(ValueError):
    """The bytes do not match the manifest; the message explains why."""

    def at(self, path: object, record: int, offset: int | None = None, decompressed: bool = False) -> DataError:
        """Returns the error for the user; for the arguments see `DataError`."""
        return DataError(
            str(self),
            path=path,
            record=record,
            offset=offset,
            decompressed=decompressed,
            advice="convert the data again",
        )


def example(
    record: bytes, features: Mapping[str, Feature], decode_image: bool = True, upright: bool = False
) -> dict[str, Any]:
    """Parses a serialized Example into {feature: value}.

    Args:
      record: serialized Example.
      features: features of the manifest, by name.
      decode_image: whether to decode images; otherwise they stay bytes, and masks, boxes and points are left out.
      upright: whether to apply the orientation in images' EXIF data (`Manifest.turns_images`).

    Raises:
      BadExampleError: the record is not an Example, or does not have these features.
    """
    plain = {name: feature for name, feature in features.items() if not feature.convention}
    try:
        stored = decode(record, {own for name, feature in features.items() for own in feature.stored_names(name)})
        found = as_ours(stored, plain)
    except ValueError as error:
        raise BadExampleError(str(error)) from None
    values = {name: _value(name, feature, found.get(name, [])) for name, feature in plain.items()}
    if features["label"].is_class:
        values["label"] = int(values["label"])
    if decode_image:
        values["image"] = image(values["image"], features["image"], upright)
        for name in features.keys() - plain.keys():
            try:
                values[name] = annotation.of_record(stored, name, features[name], values["image"].shape[:2])
            except ValueError as error:
                raise BadExampleError(str(error)) from None
    return values


def problem_of(feature: Feature, values: Values) -> str | None:
    """Returns why a record's values do not fit a feature, to follow its name; None if they do."""
    kind, count, unit = _expected(feature.dtype, feature.shape)
    found = None if isinstance(values, list) else values.dtype
    if found != kind and (found is not None or values):  # a feature without values has no kind
        return f"holds {'bytes' if found is None else found}, the manifest says {feature.dtype}"
    if count is not None and len(values) != count:
        return f"has {count_of(len(values), 'value')}, the manifest says {count}"
    if count is None and unit and len(values) % unit:
        return f"has {count_of(len(values), 'value')}, not a multiple of {unit}"
    return None


@functools.cache
def _expected(dtype: str, shape: tuple[int | None, ...]) -> tuple[np.dtype[Any] | None, int | None, int]:
    """Returns the dtype of a feature's values, None for bytes; their number, None if it varies; and its divisor."""
    sizes = (1,) if dtype == "uint8" else shape  # an image is one value
    unit = math.prod(size for size in sizes if size is not None)
    return None if dtype in _BYTES else np.dtype(dtype), None if None in sizes else unit, unit


def _value(name: str, feature: Feature, found: Values) -> Any:
    """Returns a feature's array, its value if the shape is (), or the bytes of an image."""
    if problem := problem_of(feature, found):
        raise BadExampleError(f"feature {name!r} {problem}")
    shape = () if feature.encoding else feature.shape
    if None in shape and len(shape) > 1:
        raise BadExampleError(f"feature {name!r} has the shape {shape}, and only vectors may vary in length")
    kind, _, _ = _expected(feature.dtype, feature.shape)
    array: NDArray[Any] = np.empty(len(found), object if kind is None else kind)
    array[:] = found
    return array.reshape([len(found) if size is None else size for size in shape])[()]


def raw_problem(feature: Feature, data: bytes) -> str | None:
    """Returns why the bytes of an image are not raw pixels of the manifest's shape; None if they are."""
    size = math.prod(size or 0 for size in feature.shape)
    if len(data) == size:
        return None
    return f"its image has {count_of(len(data), 'byte')}, not the {size} of {shape_of(feature.shape)}"


def shape_problem(feature: Feature, shape: Sequence[int]) -> str | None:
    """Returns why a decoded image's shape, (height, width, channels), does not match the manifest; None if it does."""
    if any(size not in (None, found) for size, found in zip(feature.shape, shape, strict=True)):
        return f"its image is {shape_of(shape)}, not {shape_of(feature.shape)}"
    return None


def image(data: bytes, feature: Feature, upright: bool = False) -> NDArray[np.uint8]:
    """Decodes an image's stored bytes to pixels: uint8 (height, width, channels), writable.

    They are the same as in training, except for JPEG in data sets without a `PixelRule`: TensorFlow rounds differently.

    Raises:
      BadExampleError: the image cannot be decoded, or its shape differs from the manifest's.
    """
    if feature.encoding == "raw":
        if problem := raw_problem(feature, data):
            raise BadExampleError(problem)
        return np.frombuffer(data, np.uint8).reshape([size or 0 for size in feature.shape]).copy()
    pixels = _decoded(data, feature.shape[2] or 3, upright)
    if problem := shape_problem(feature, pixels.shape):
        raise BadExampleError(problem)
    return pixels


def _decoded(data: bytes, channels: int, upright: bool) -> NDArray[np.uint8]:
    import PIL  # noqa: PLC0415, raw images do not need it
    import PIL.Image  # noqa: PLC0415

    from pipeline import images  # noqa: PLC0415, like Pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with PIL.Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as file:
                pixels = np.array(images.eight_bits(file).convert(_MODES.get(channels, "RGB")), np.uint8)
    except PIL.UnidentifiedImageError:
        raise BadExampleError(f"its image is not a PNG or JPEG; it begins with 0x{data[:4].hex()}") from None
    except Exception as error:  # Pillow's readers raise a dozen error types, even SyntaxError
        raise BadExampleError(f"its image cannot be decoded: {error or type(error).__name__}") from None
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return np.array(images.turned(pixels, images.orientation_of(data))) if upright else pixels


@dataclasses.dataclass(frozen=True)
class Layout:
    """The positions of the three features in records whose length and label size are the same.

    Attributes:
      template: bytes of a record with zeros in place of the features; uint8 (length,).
      image, key, label: slice of each feature's bytes.
    """

    template: NDArray[np.uint8]
    image: slice
    key: slice
    label: slice

    @classmethod
    @functools.lru_cache(maxsize=64)
    def build(cls, image_size: int, key_size: int, label_size: int = 1) -> Layout:
        """Returns the layout for these sizes of image, key and label varint (at most `MAX_LABEL_SIZE`) in bytes."""
        # The smallest and the largest number of that size differ in each byte: 0x80, 0x80, 0x01 and 0xFF, 0xFF, 0x7F.
        least, most = 1 << 7 * (label_size - 1), (1 << 7 * label_size) - 1
        record = _record(bytes(image_size), least, bytes(key_size))
        label = _differing(record, _record(bytes(image_size), most, bytes(key_size)))
        template = record.copy()
        template[label] = 0
        return cls(
            template,
            _differing(record, _record(b"\1" * image_size, least, bytes(key_size))),
            _differing(record, _record(bytes(image_size), least, b"\1" * key_size)),
            label,
        )

    @classmethod
    @functools.lru_cache(maxsize=64)
    def fit(cls, record_size: int, image_size: int, label_size: int = 1) -> Layout | None:
        """Returns the layout of records of `record_size` bytes with images of `image_size` bytes; None if none fits."""
        key_size = record_size - len(cls.build(image_size, 0, label_size).template)
        for size in range(key_size, max(-1, key_size - 12), -1):  # the length fields of longer keys are longer
            layout = cls.build(image_size, size, label_size)
            if len(layout.template) == record_size:
                return layout
        return None

    def mismatch(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Returns whether each row, uint8 (n, length), does not have this layout: bool (n,)."""
        goes_on = rows[:, self.label] > MAX_ONE_BYTE
        is_varint = goes_on[:, :-1].all(axis=1) & ~goes_on[:, -1]
        return ~is_varint | (rows[:, self.between] != self.template[self.between]).any(axis=1)

    def labels(self, rows: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Returns the labels of rows with this layout, uint8 (n, length): int64 (n,)."""
        found = np.zeros(len(rows), np.int64)
        for place, column in enumerate(range(self.label.start, self.label.stop)):
            found |= (rows[:, column] & MAX_ONE_BYTE).astype(np.int64) << 7 * place
        return found

    @functools.cached_property
    def between(self) -> NDArray[np.int64]:
        """Positions of the bytes outside of features, int64 (m,)."""
        is_between = np.ones(len(self.template), bool)
        for feature in (self.image, self.key, self.label):
            is_between[feature] = False
        return np.flatnonzero(is_between).astype(np.int64)


def _record(image: bytes, label: int, key: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(encode({"image": image, "label": label, "key": key}), np.uint8)


def _differing(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> slice:
    found = np.flatnonzero(one != other).tolist()
    return slice(found[0], found[-1] + 1) if found else slice(0, 0)
