"""Dataclasses as JSON, and back."""

import dataclasses
import json
import math
from typing import Literal

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


@dataclasses.dataclass(frozen=True)
class Beat:
    time: float
    state: Literal["on", "off"] = "on"
    size: tuple[int, float] | None = None
    sums: list[int] = dataclasses.field(default_factory=list)
    parts: tuple[Part, ...] = ()


def test_what_another_release_wrote_lacks_fields_with_a_default_and_has_others():
    content = {"time": 1, "mood": 5, "size": [2, 3], "sums": [4], "parts": [{"name": "x", "hat": "red"}]}
    found = from_json(Beat, content, is_exact=False)
    assert found == Beat(1.0, size=(2, 3.0), sums=[4], parts=(Part("x"),))
    assert found.size is not None
    assert [type(number) for number in found.size] == [int, float]
    with pytest.raises(ValueError, match="has the unknown field 'mood'"):
        from_json(Beat, content)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time": math.nan}, "time is nan, not a finite number"),
        ({"state": "open"}, "state is 'open'"),
        ({"size": [1]}, r"size is \[1\]"),
        ({"size": [1.5, 2]}, r"size\[0\] is 1.5, not of type int"),
        ({"parts": [{}]}, r"parts\[0\] lacks 'name'"),
    ],
)
def test_but_not_values_of_another_kind(changes, said):
    with pytest.raises(ValueError, match=said):
        from_json(Beat, {"time": 1.0, **changes}, is_exact=False)
