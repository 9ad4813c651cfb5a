"""The two lanes of the tests: `make test`, and for `make test-slow` repetitions with other values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

_IN_MAKE_TEST = 0.3  # of the examples of a property
_share = 1.0


def configure(markexpr: str) -> None:
    """Learns from `pytest -m` which lane runs, before tests are collected."""
    global _share  # noqa: PLW0603
    _share = _IN_MAKE_TEST if "not slow" in markexpr else 1.0


def examples(count: int) -> int:
    """Returns the number of examples of a costly property: all in `make test-slow`, which runs all properties."""
    return round(_share * count)


def some_slow(values: Iterable[Any], fast: Collection[Any], *, together: bool = False) -> list[Any]:
    """Returns the values of a parametrised test, all but a few of them marked as slow.

    Args:
      values: values of one argument, or tuples for several.
      fast: values that stay in the fast lane.
      together: whether a tuple is the value of one argument.
    """
    values = list(values)
    assert all(value in values for value in fast), (fast, values)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) and not together else (value,)),
            marks=() if value in fast else pytest.mark.slow,
        )
        for value in values
    ]
