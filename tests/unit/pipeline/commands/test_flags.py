import dataclasses
import math

import pytest

from pipeline.commands.flags import check, check_most, flag, flags_of, make
from pipeline.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Group:
    """Flags with bounds of every kind."""

    name: str = flag(text="required")
    share: float = flag(0.5, "a share", least=0, below=1)
    rate: float | None = flag(None, "a rate", above=0, most=10)
    count: int = flag(1, "a number", least=1)
    mode: str | None = flag(None, "a mode", known=("max", "min"))
    parts: list[str] = flag(text="parts", repeated=True)


@dataclasses.dataclass(frozen=True)
class Groups:
    """Two groups."""

    first: Group
    second: "Other"


@dataclasses.dataclass(frozen=True)
class Other:
    """One more flag."""

    deep: bool = flag(False, "more")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"share": 1.0}, "--share=1.0: must be 0 or more and below 1"),
        ({"share": -0.1}, "--share=-0.1: must be 0 or more and below 1"),
        ({"share": math.nan}, "--share=nan: must be 0 or more and below 1"),
        ({"rate": 0.0}, "--rate=0.0: must be a number above 0"),
        ({"rate": math.inf}, "--rate=inf: must be a number above 0"),
        ({"rate": math.nan}, "--rate=nan: must be a number above 0"),
        ({"count": 0}, "--count=0: must be 1 or more"),
        ({"mode": "mx"}, "--mode: unknown 'mx'; did you mean 'max'? known: max, min"),
    ],
)
def test_a_value_beyond_its_bounds_is_refused_with_them(values, said):
    with pytest.raises(UsageError) as caught:
        check(Group("a", **values))
    assert str(caught.value) == said


def test_the_bounds_themselves_and_none_are_taken():
    for values in ({}, {"share": 0.0}, {"share": 0.999}, {"rate": 1e-9}, {"count": 1}, {"mode": "min"}):
        check(Group("a", **values))
        check_most(Group("a", **values))
    check(Group("a", rate=11.0))  # the largest is another question


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rate": 10.5}, "--rate=10.5: must be 10 or less"),
        ({"count": 101}, "--count=101: must be 100 or less"),  # whole numbers that say no bound
    ],
)
def test_the_largest_is_compared_where_that_is_asked_for(values, said):
    with pytest.raises(UsageError) as caught:
        check_most(Group("a", **values), 100)
    assert str(caught.value) == said


def test_flags_of_groups_are_made_from_one_set_of_values():
    assert list(flags_of(Groups)) == ["name", "share", "rate", "count", "mode", "parts", "deep"]
    kinds = {name: (one.kind, one.is_optional) for name, one in flags_of(Groups).items()}
    assert (kinds["rate"], kinds["parts"], kinds["deep"]) == ((float, True), (str, False), (bool, False))
    made = make(Groups, {"name": "a", "deep": True, "unknown": 3})
    assert made == Groups(Group("a"), Other(True))
    assert made.first.parts == []
