"""Checks that the groups of flags share."""

from __future__ import annotations

import math
from typing import Any

from pipeline.errors import UsageError, unknown


def check_name(flag: str, value: str, known: Any) -> None:
    """Raises UsageError, with the nearest known name, where the value is none of them."""
    if value not in known:
        raise unknown(f"--{flag}", value, known)


def check_least(flags: object, least: float, *names: str) -> None:
    """Raises UsageError where one of the named fields is below `least`; None is not."""
    for name in names:
        value = getattr(flags, name)
        if value is not None and not value >= least:
            raise UsageError(f"--{name}={value}: must be {least} or more")


def check_positive(flags: object, *names: str) -> None:
    """Raises UsageError where one of the named fields is not a number above 0; None is allowed."""
    for name in names:
        value = getattr(flags, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"--{name}={value}: must be a number above 0")


def check_share(flags: object, *names: str) -> None:
    """Raises UsageError where one of the named fields is not in [0, 1)."""
    for name in names:
        value = getattr(flags, name)
        if not 0 <= value < 1:
            raise UsageError(f"--{name}={value}: must be 0 or more and less than 1")


def check_local(flags: object, *names: str, what: str = "folder") -> None:
    """Raises UsageError where one of the named fields is a URL, as only data sets may be; None is allowed."""
    for name in names:
        value = getattr(flags, name)
        if value is not None and "://" in value:
            raise UsageError(
                f"--{name}={value}: must be a {what} on this machine, or mounted; mount the store and give the path "
                "there"
            )
