"""What tests ask of the errors that are raised: their fields, not their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.errors import PipelineError


def said(*facts: object) -> Callable[[PipelineError], bool]:
    """Returns the `check` of `pytest.raises` for an error of one line that has these names and numbers."""

    def check(error: PipelineError) -> bool:
        assert "\n" not in str(error)
        assert all(str(fact) in str(error) for fact in facts), error
        return True

    return check


def at(path: object, *facts: object, **fields: Any) -> Callable[[PipelineError], bool]:
    """Returns the `check` of `pytest.raises` for an error about a file, which is one line.

    Args:
      path: of the file, or its end.
      facts: names and numbers that the reason has.
      fields: others of `PipelineError`, such as record=3.
    """

    def check(error: PipelineError) -> bool:
        assert "\n" not in str(error)
        assert (error.path or "").endswith(str(path)), error
        assert {name: getattr(error, name) for name in fields} == fields, error
        assert all(str(fact) in error.reason for fact in facts), error
        return True

    return check
