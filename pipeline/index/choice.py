"""Chooses the files of each split in a folder."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

from pipeline.commands.text import count_of
from pipeline.errors import UsageError, named
from pipeline.manifest import naming

_MOST_NAMED = 3  # files in a message


def choose(data_dir: str, splits: Sequence[str]) -> dict[str, list[str]]:
    """Returns each split's files: base names in the order of its patterns, sorted within one.

    Hidden files, manifests and the files beside records are never chosen.

    Args:
      data_dir: the folder.
      splits: `<name>:<pattern>`, in any number; patterns of one name add up.

    Raises:
      DataError: the folder cannot be listed.
      UsageError: `splits` is empty, a text is malformed, a pattern matches nothing, or a file is chosen twice.
    """
    if not splits:
        raise UsageError("--split is missing: a name and a pattern of files, such as --split=train:'train-*.tfrecord'")
    names = _files(data_dir)
    chosen: dict[str, list[str]] = {}
    for text in splits:
        split, pattern = _parsed(text)
        found = fnmatch.filter(names, pattern)
        if not found:
            some = f", such as {', '.join(names[:_MOST_NAMED])}" if names else ""
            count = count_of(len(names), "file")
            raise UsageError(f"--split={text}: no file in {data_dir} matches {pattern!r}; it has {count}{some}")
        for name in found:
            _check(name, text, chosen)
        chosen.setdefault(split, []).extend(found)
    return chosen


def _files(data_dir: str) -> list[str]:
    with named(data_dir, "cannot be listed"), os.scandir(data_dir) as entries:
        names = [entry.name for entry in entries if entry.is_file()]
    beside = {naming.MANIFEST, naming.REJECTS, naming.CARD, *naming.TFDS_FILES}
    beside |= {beside_one for name in names for beside_one in naming.beside_names(name)}
    return sorted(name for name in names if not name.startswith(".") and name not in beside)


def _parsed(text: str) -> tuple[str, str]:
    split, colon, pattern = text.partition(":")
    if not colon or not pattern:
        raise UsageError(f"--split={text}: must be a name and a pattern of files, such as train:'train-*.tfrecord'")
    if not naming.is_split_name(split):
        raise UsageError(f"--split={text}: {split!r} must be letters, digits and _, and begin with a letter")
    if "/" in pattern:
        raise UsageError(f"--split={text}: {pattern!r} contains a folder; the files must be in DATA_DIR itself")
    return split, pattern


def _check(name: str, text: str, chosen: dict[str, list[str]]) -> None:
    if not naming.is_base_name(name):
        raise UsageError(f"--split={text}: {name!r} cannot be listed in a manifest: rename it, without : and \\")
    for split, files in chosen.items():
        if name in files:
            raise UsageError(f"--split={text}: {name} is already a file of {split}; a file belongs to one split, once")
