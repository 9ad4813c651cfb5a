"""Which files of an object store or HDFS a --source names: a file, a folder, or a glob of `*`, `[...]` and `**`."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence

from beam_jobs.storage.paths import RemotePath
from pipeline.errors import DataError

_MAGIC = ("*", "[")  # no `?`, which begins the store's options


def find(
    source: str, is_data: Callable[[str], bool], recursive: bool, kinds: str
) -> tuple[RemotePath, list[str], bool]:
    """Returns a folder, the files by their paths from there, sorted, and whether `source` is that folder.

    Args:
      source: a URL.
      is_data: whether a file of a folder is one to read, by its path from there.
      recursive: whether files of folders in a folder belong to it.
      kinds: what a source can be, for errors.

    Raises:
      DataError: there is no such file, none in the folder that `is_data`, or the store cannot be reached.
    """
    place = RemotePath(source)
    if place.is_dir():
        return place, [name for name in place.files(recursive) if is_data(name)], True
    if place.exists():
        return place.parent, [place.name], False
    if not any(sign in str(place) for sign in _MAGIC):
        raise DataError(f"{place}: no such file or folder; {kinds}")
    root = place
    while any(sign in str(root) for sign in _MAGIC):
        root = root.parent
    pattern = str(place)[len(f"{root}/") :].split("/")
    names = [name for name in root.files(len(pattern) > 1) if _matches(name.split("/"), pattern)]
    if not names:
        raise DataError(f"{place}: matches no file")
    return root, names, False


def common_folder(names: Sequence[str]) -> str:
    """Returns the path of the folder that holds all files of some names; "" where they have none in common."""
    return os.path.commonpath([os.path.dirname(name) for name in names])


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Says whether a path matches as of `glob.glob(recursive=True)`: `*` and `**` match no name with a leading `.`."""
    if not pattern:
        return not parts
    head, *rest = pattern
    if head == "**":
        if not rest:
            return not any(part.startswith(".") for part in parts)
        deeper = bool(parts) and not parts[0].startswith(".") and _matches(parts[1:], pattern)
        return deeper or _matches(parts, rest)
    if not parts or (parts[0].startswith(".") and not head.startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], head) and _matches(parts[1:], rest)
