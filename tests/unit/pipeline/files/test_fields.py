"""Dataclasses as JSON, and back."""

import dataclasses
import json

import pytest

from pipeline.files.fields import OPTIONAL, as_json, from_json


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    sizes: tuple[int, ...] = ()
    offset: int = dataclasses.field(default=0, metadata={OPTIONAL: True})


@dataclasses.dataclass(frozen=True)
class Whole:
    parts: dict[str, Part]
    more: dict[str, Part] = dataclasses.field(default_factory=dict, metadata={OPTIONAL: True})


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (Whole({"a": Part("x", (1, 2))}), {"parts": {"a": {"name": "x", "sizes": [1, 2]}}}),
        (
            Whole({}, {"b": Part("y", offset=-1)}),
            {"parts": {}, "more": {"b": {"name": "y", "sizes": [], "offset": -1}}},
        ),
    ],
)
def test_only_optional_fields_are_left_out_and_only_with_their_default(value, content):
    assert json.loads(json.dumps(as_json(value))) == content
    assert from_json(Whole, content) == value
