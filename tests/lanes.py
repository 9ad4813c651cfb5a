"""The two lanes of the tests: what `make test` runs, and what repeats it with other values, for `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_slow(values: Iterable[Any], fast: Collection[Any], *, together: bool = False) -> list[Any]:
    """Returns the values of a parametrized test, all but a few of them marked as slow.

    Args:
      values: of one argument, or tuples of several.
      fast: which of them stay in the fast lane.
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
