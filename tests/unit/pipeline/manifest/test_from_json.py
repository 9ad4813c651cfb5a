import dataclasses
import re
from typing import Any

import pytest

from pipeline.manifest.file import from_json


@dataclasses.dataclass(frozen=True)
class Wheel:
    size: float
    spokes: tuple[int | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class Cart:
    name: str
    wheels: dict[str, Wheel]
    notes: Any = None


WHEEL = {"size": 2, "spokes": [1, None]}
CART = {"name": "a", "wheels": {"left": WHEEL}, "notes": [{}]}


def test_objects_become_dataclasses():
    assert from_json(Cart, CART) == Cart("a", {"left": Wheel(2.0, (1, None))}, [{}])
    assert type(from_json(float, 2)) is float


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "the value is [], not of type Cart"),
        (CART | {"name": 1}, "name is 1, not of type str"),
        ({"name": "a", "notes": 1}, "it lacks 'wheels'"),
        (CART | {"colour": 1}, "it has the unknown field 'colour'"),
        (CART | {"wheels": {"left": {"size": 1}}}, "wheels['left'] lacks 'spokes'"),
        (CART | {"wheels": {"left": WHEEL | {"size": True}}}, "wheels['left'].size is True, not of type float"),
        (
            CART | {"wheels": {"left": WHEEL | {"spokes": [1, 2.5]}}},
            "wheels['left'].spokes[1] is 2.5, not of type int",
        ),
    ],
)
def test_a_value_of_another_type_is_named_with_its_place(content, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_json(Cart, content)
