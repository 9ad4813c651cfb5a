"""Values of flags that are given from Python, as the command line would give them."""

from __future__ import annotations

import os
import types
import typing
from typing import Any

import numpy as np

from pipeline.errors import UsageError

_CALLED = {str: "a text", int: "a whole number", float: "a number", bool: "True or False", types.NoneType: "None"}


def as_flag(name: str, given: Any, kind: Any) -> Any:
    """Returns a value in the type of its flag, as a checkpoint stores it: a path as text, a number as one of Python's.

    Args:
      name: of the flag.
      given: the value.
      kind: the type of the flag, such as `int | None`.

    Raises:
      UsageError: it is of another type.
    """
    kinds = typing.get_args(kind) or (kind,)
    value = os.fspath(given) if isinstance(given, os.PathLike) else given
    value = value.item() if isinstance(value, np.generic) else value
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) is float and int in kinds and value.is_integer():
        return int(value)
    if type(value) not in kinds:  # not of a subclass either: YAML does not write them
        known = " or ".join(_CALLED[one] for one in kinds)
        raise UsageError(f"{name}={given!r}: must be {known}; got {type(given).__name__}")
    return value
