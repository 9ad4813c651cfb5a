"""Dataclasses from JSON objects, in which every field must be present and have its type."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any

OPTIONAL = "optional"  # metadata of fields that files of earlier releases lack
types_of = functools.cache(typing.get_type_hints)


def from_json(kind: Any, value: Any, path: str = "") -> Any:
    """Converts a JSON value to a dataclass, or to another type that fields may have.

    Args:
      kind: type: a dataclass, tuple[T, ...], dict[str, T], T | None, int, float, str, bool or Any.
      value: JSON value. An object must have all fields of the dataclass except `OPTIONAL` ones, and no others.
      path: place of the value in the file, for messages.

    Raises:
      ValueError: a value has the wrong type; the message names the first one, its place and its type.
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


def as_json(value: Any) -> Any:
    """Converts a dataclass to dicts for `from_json`, leaving out `OPTIONAL` fields that have their default.

    Args:
      value: dataclass, or a value that a field may have.
    """
    if dataclasses.is_dataclass(value):
        found = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {
            field.name: as_json(part)
            for field, part in found.items()
            if OPTIONAL not in field.metadata or part != _default_of(field)
        }
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    return tuple(map(as_json, value)) if isinstance(value, tuple) else value


def _default_of(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _object(kind: Any, value: dict[str, Any], path: str) -> Any:
    fields = types_of(kind)
    optional = {field.name for field in dataclasses.fields(kind) if OPTIONAL in field.metadata}
    for name in sorted((fields.keys() ^ value.keys()) - (optional - value.keys())):
        raise ValueError(f"{path or 'it'} {'lacks' if name in fields else 'has the unknown field'} {name!r}")
    at = f"{path}." if path else ""
    return kind(**{name: from_json(fields[name], part, f"{at}{name}") for name, part in value.items()})
