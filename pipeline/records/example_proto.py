"""Any `tf.train.Example`, by the protobuf package and without TensorFlow: the general path beside `layout`.

The message classes are made here, in a descriptor pool of their own, so that they and those which TensorFlow registers
in the default pool can live in one process. Fields: tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from numpy.typing import NDArray

Value: TypeAlias = bytes | int | float | NDArray[np.int64] | NDArray[np.float32] | Sequence[bytes]
Values: TypeAlias = list[bytes] | NDArray[np.int64] | NDArray[np.float32]

_PACKAGE = "tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto
# Kinds of a feature in the order of their field numbers, 1 and up: (field, message, type of the values).
_KINDS = (
    ("bytes_list", "BytesList", _Field.TYPE_BYTES),
    ("float_list", "FloatList", _Field.TYPE_FLOAT),
    ("int64_list", "Int64List", _Field.TYPE_INT64),
)
_INTEGERS = (int, np.integer)


def encode(features: Mapping[str, Value]) -> bytes:
    """Returns an Example's deterministic serialization: features in the order of their names.

    Args:
      features: {name: value or values}: bytes, integers (int64) or floats (float32); arrays are laid out row by row.

    Raises:
      TypeError: a value is none of these (an array of another dtype).
      ValueError: an integer is not in -2^63..2^63 - 1.
    """
    example = _example_class()()
    entries = example.features.feature
    for name, value in features.items():
        entry = entries[name]
        if isinstance(value, bytes):
            entry.bytes_list.value.append(value)
        elif isinstance(value, _INTEGERS):
            entry.int64_list.value.append(int(value))
        else:
            _extend(entry, name, value)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def decode(record: bytes, names: Iterable[str] | None = None) -> dict[str, Values]:
    """Returns {name: values} of an Example: a list of bytes, or an array (n,) of int64 or float32.

    A feature without a value is an empty list. The names come in no particular order.

    Args:
      record: a serialized Example.
      names: the features wanted, all by default; what the Example has not is left out.

    Raises:
      ValueError: `record` is no serialized Example.
    """
    try:
        entries = _example_class().FromString(record).features.feature
    except message.DecodeError:
        raise ValueError(f"these {len(record)} bytes are no serialized tf.train.Example") from None
    found: dict[str, Values] = {}
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


def _extend(entry: Any, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray | np.floating | float):
        array = np.asarray(value, np.float32 if isinstance(value, float) else None)
        if array.dtype == np.int64:
            entry.int64_list.value.extend(array.ravel().tolist())
            return
        if array.dtype == np.float32:
            entry.float_list.value.extend(array.ravel().tolist())
            return
        raise TypeError(f"feature {name!r}: an array of {array.dtype}; must be int64 or float32")
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"feature {name!r}: {type(value).__name__}; must be bytes, an integer or an array")
    entry.bytes_list.value.extend(value)


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
