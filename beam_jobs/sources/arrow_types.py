"""Types of Arrow columns: their kinds, and their class names in Hugging Face's metadata."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

HUGGING_FACE = b"huggingface"  # key of a schema's metadata with features and names of classes, as JSON
IMAGE_FIELD = "bytes"  # field of Hugging Face's struct {bytes, path}
_MOST_LISTED, _LONGEST_LISTED = 16, 200  # columns in errors, characters of each
_KINDS: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "int": (pa.types.is_integer,),
    "bool": (pa.types.is_boolean,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "time": (pa.types.is_temporal,),
    "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "fixed": (pa.types.is_fixed_size_binary,),
    "list": (pa.types.is_list, pa.types.is_large_list),
    "vector": (pa.types.is_fixed_size_list,),
}


def kind_of(found: pa.DataType) -> str:
    """Returns the kind of a type, a key of `_KINDS`; "" for others, such as structs."""
    return next((kind for kind, tests in _KINDS.items() if any(test(found) for test in tests)), "")


def plain(found: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values, looking through dictionary encoding."""
    return found.value_type if pa.types.is_dictionary(found) else found


def element_of(found: pa.DataType) -> pa.DataType | None:
    """Returns the type of the elements of lists; None for other types."""
    return found.value_type if kind_of(found) in ("list", "vector") else None


def image_type(found: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values; for a struct with the field `bytes`, that field's type."""
    is_struct = pa.types.is_struct(found) and found.get_field_index(IMAGE_FIELD) >= 0
    return plain(found.field(IMAGE_FIELD).type if is_struct else found)


def shown(found: pa.DataType) -> str:
    """Returns a type for messages."""
    return " ".join(str(found).split())[:100]


def listed(names: Sequence[str]) -> str:
    """Returns the first names of columns for messages."""
    found = [name.replace("\n", " ")[:_LONGEST_LISTED] for name in names[:_MOST_LISTED]]
    return ", ".join([*found, "..."] if len(names) > _MOST_LISTED else found)


def lacks(schema: pa.Schema, text: str, name: str) -> str:
    """Returns the end of an error about a file without the column `text`: columns like `name`, then all columns."""
    near = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"has no column {text!r}; {hint}columns: {listed(schema.names)}"


def class_names(schema: pa.Schema, *path: str) -> tuple[str, ...]:
    """Returns the class names that Hugging Face's metadata declares for a column, or a field of it; empty if none.

    Metadata in any other form is ignored.

    Args:
      schema: columns of a file.
      *path: names of the column and of nested fields. For lists, the names are those of the elements.
    """
    try:
        found: Any = json.loads((schema.metadata or {})[HUGGING_FACE])["info"]["features"]
        for part in path:
            found = _inside(found)[part]
        label = _inside(found)
        names = label["names"] if label["_type"] == "ClassLabel" else ()
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def _inside(feature: Any) -> Any:
    while isinstance(feature, list) or (isinstance(feature, dict) and isinstance(feature.get("feature"), dict)):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return feature
