"""Checks of raised errors: their fields, not their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.errors import PipelineError


def said(*facts: object) -> Callable[[PipelineError], bool]:
    """Returns the `check` of `pytest.raises` for a one-line error that contains these names and numbers."""

    def check(error: PipelineError) -> bool:
        assert "\n" not in str(error)
        assert all(str(fact) in str(error) for fact in facts), error
        return True

    return check


def at(path: object, *facts: object, **fields: Any) -> Callable[[PipelineError], bool]:
    """Returns the `check` of `pytest.raises` for a one-line error about a file.

    Args:
      path: path of the file, or the end of it.
      facts: words and numbers in the reason.
      fields: other fields of `PipelineError`, such as record=3.
    """

    def check(error: PipelineError) -> bool:
        assert "\n" not in str(error)
        assert (error.path or "").endswith(str(path)), error
        assert {name: getattr(error, name) for name in fields} == fields, error
        assert all(str(fact) in error.reason for fact in facts), error
        return True

    return check
