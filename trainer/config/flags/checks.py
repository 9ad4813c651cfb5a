"""Checks that the groups of flags share."""

from __future__ import annotations

import math
import os
from typing import Any

from pipeline.errors import UsageError, unknown
from pipeline.manifest.sources import parse_sources, sources_of


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


def check_most(flags: object, most: float, *names: str) -> None:
    """Raises UsageError where one of the named fields is above `most`; None is allowed."""
    for name in names:
        value = getattr(flags, name)
        if value is not None and not value <= most:
            raise UsageError(f"--{name}={value}: must be {most} or less")


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


def check_apart(name: str, path: str | None, data_dir: str | None) -> None:
    """Raises UsageError where a folder that is written to is that of a data set, in it, or around it.

    Links and `..` are resolved. Data at a URL are elsewhere.

    Args:
      name: of the flag.
      path: its value; None: not given.
      data_dir: as in --data_dir: a folder, or several with their weights; None: not given.
    """
    if data_dir is None:
        return
    sources = parse_sources(data_dir)
    folders = [sources] if isinstance(sources, str) else [one.data_dir for one in sources_of(sources, "")]
    for folder in (os.fspath(one) for one in folders):
        if not folder or "://" in folder:
            continue
        data = os.path.realpath(folder)
        if data == os.path.realpath(os.sep):
            raise UsageError(f"--data_dir={data_dir}: is the root of the file system; name the data set's own folder")
        given = None if path is None else os.path.realpath(path)
        if given is not None and os.path.commonpath([given, data]) in (given, data):
            where = "is" if given == data else "lies in" if os.path.commonpath([given, data]) == data else "holds"
            raise UsageError(
                f"--{name}={path}: {where} the data set's folder, --data_dir={data_dir}; name a folder beside it"
            )


def check_local(flags: object, *names: str, what: str = "folder") -> None:
    """Raises UsageError where one of the named fields is empty, or a URL, as only data sets may be; None is allowed."""
    for name in names:
        value = getattr(flags, name)
        if value is not None and not value.strip():
            raise UsageError(f"--{name}: is empty (a shell variable that is not set?); name a {what}")
        if value is not None and "://" in value:
            raise UsageError(
                f"--{name}={value}: must be a {what} on this machine, or mounted; mount the store and give the path "
                "there"
            )
