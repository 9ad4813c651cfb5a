"""Dataclasses from JSON objects; every field must have its type and, unless declared otherwise, be present."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

OPTIONAL = "optional"  # metadata of fields that files of earlier releases lack
_types_of = functools.cache(typing.get_type_hints)


def from_json(kind: Any, value: Any, path: str = "", is_exact: bool = True) -> Any:
    """Converts a JSON value to a dataclass, or to another type that fields may have.

    Args:
      kind: dataclass, tuple[T, ...], tuple[T, U], list[T], dict[str, T], T | None, Literal[...], int, float, str, bool
        or Any.
      value: JSON value. An object must have all fields of the dataclass except `OPTIONAL` ones, and no others.
      path: place of the value in the file, for messages.
      is_exact: whether objects must have exactly this release's fields; otherwise they may lack fields with a default
        and have unknown ones, and numbers must be finite.

    Raises:
      ValueError: a value has the wrong type; the message names the first one, its place and its type.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _object(kind, value, path, is_exact)
    kinds = _kinds_of(origin, parts, value)
    if kinds is not None:
        is_plain = all(type(item) is one for item, one in zip(value, kinds, strict=True))
        items = (from_json(kinds[i], item, f"{path}[{i}]", is_exact) for i, item in enumerate(value))
        return origin(value if is_plain else items)
    if origin is dict and isinstance(value, dict):
        return {name: from_json(parts[1], item, f"{path}[{name!r}]", is_exact) for name, item in value.items()}
    if origin is types.UnionType:
        return None if value is None else from_json(parts[0], value, path, is_exact)
    if kind is float and type(value) is int:
        return float(value)
    if not is_exact and type(value) is float and not math.isfinite(value):
        raise ValueError(f"{path or 'the value'} is {value!r}, not a finite number")
    if not (kind is Any or type(value) is kind or (origin is typing.Literal and value in parts)):
        name = kind.__name__ if isinstance(kind, type) else kind
        raise ValueError(f"{path or 'the value'} is {value!r}, not of type {name}")
    return value


def _kinds_of(origin: Any, parts: tuple[Any, ...], value: Any) -> Sequence[Any] | None:
    """Returns the kind of each item if a value is a list that fits a tuple or list type; otherwise None."""
    if origin not in (tuple, list) or not isinstance(value, list):
        return None
    kinds = parts[:1] * len(value) if origin is list or parts[-1] is Ellipsis else parts
    return kinds if len(kinds) == len(value) else None


def as_json(value: Any) -> Any:
    """Converts a dataclass, or a field's value, for `from_json`, without `OPTIONAL` fields that have their default."""
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


def finite(value: Any) -> Any:
    """Returns a value for JSON, with None for numbers that JSON lacks: NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


def _default_of(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _object(kind: Any, value: dict[str, Any], path: str, is_exact: bool) -> Any:
    types = _types_of(kind)
    needed = {field.name for field in dataclasses.fields(kind) if _is_needed(field, is_exact)}
    unknown = value.keys() - types.keys()
    for name in sorted((needed - value.keys()) | (unknown if is_exact else set())):
        raise ValueError(f"{path or 'it'} {'lacks' if name in types else 'has the unknown field'} {name!r}")
    at = f"{path}." if path else ""
    parts = {name: part for name, part in value.items() if name not in unknown}
    return kind(**{name: from_json(types[name], part, f"{at}{name}", is_exact) for name, part in parts.items()})


def _is_needed(field: dataclasses.Field[Any], is_exact: bool) -> bool:
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return OPTIONAL not in field.metadata and (is_exact or not has_default)
