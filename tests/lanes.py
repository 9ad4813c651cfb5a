"""The two lanes of the tests: `make test`, and for `make test-slow` repetitions with other values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


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
