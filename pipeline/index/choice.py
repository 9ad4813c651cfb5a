"""The files of each split of an index: those that `--split` names, else by the names of the files."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence

from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, name_of, named
from pipeline.files.paths import StoragePath, folder
from pipeline.index.images import ImageFlags
from pipeline.manifest import naming
from pipeline.records import schema, splits
from pipeline.records.splits import FeatureDoubts
from pipeline.records.stream import records_of

_MOST_NAMED = 3  # files in a message
_OURS = (naming.MANIFEST, naming.REJECTS, naming.CARD, *naming.TFDS_FILES)
_OTHERS = (naming.SIDECARS, naming.COLUMNS, "lost+found")  # folders that hold no records
_DEEPEST = 2  # folders of splits are looked into, those in them are not
_DECIDES = "--split=NAME:PATTERN, once or more for each split, says which files are whose"


def of_flags(data_dir: str, flags: Sequence[str]) -> dict[str, list[str]]:
    """Returns each split's files: names in the folder, in the order of its patterns, sorted within each.

    Hidden files, manifests and sidecars are never chosen, and links to folders are not followed.

    Args:
      data_dir: the folder.
      flags: `<name>:<pattern>`, at least one; patterns of one name add up.

    Raises:
      DataError: the folder cannot be listed.
      UsageError: a text is malformed, a pattern matches nothing, or a file is chosen twice.
    """
    parsed = [_parsed(text) for text in flags]
    names = _files(data_dir, max(pattern.count("/") for _, pattern in parsed) + 1)
    chosen: dict[str, list[str]] = {}
    for text, (split, pattern) in zip(flags, parsed, strict=True):
        found = [name for name in names if _matches(name, pattern)]
        if not found:
            some = f", such as {', '.join(names[:_MOST_NAMED])}" if names else ""
            count = count_of(len(names), "file")
            raise UsageError(f"--split={text}: no file in {data_dir} matches {pattern!r}; it has {count}{some}")
        for name in found:
            _check(name, text, chosen)
        chosen.setdefault(split, []).extend(found)
    _check_folders(data_dir, chosen)
    return chosen


def _matches(name: str, pattern: str) -> bool:
    """Returns whether a name matches a pattern part by part: no `*` matches a `/`."""
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatch, parts, patterns))


def of_names(data_dir: str) -> dict[str, list[str]]:
    """Returns each split's files by the words in their names and folders, as conversions find them.

    The files are those in the folder itself, or, if it has none, in the folders in it. Those of a split are sorted.

    Raises:
      DataError: the folder cannot be listed.
      UsageError: no file is one of records by its name, one of a numbered set is missing, or names do not tell one
        split each.
    """
    names, root = _files(data_dir, _DEEPEST), folder(data_dir)
    records = [name for name in names if naming.is_foreign_file(name.rpartition("/")[2])]
    found = [name for name in records if "/" not in name] or records
    folders = {place: splits.in_folder(place) for name in records if (place := name.rpartition("/")[0])}
    if found != records and any(folders.values()):
        place = next(place for place, split in folders.items() if split)
        raise UsageError(f"has records in itself and in {place}/", path=root, advice=_DECIDES)
    if found == records and len(folders) > 1 and not all(folders.values()):
        place = next(place for place, split in folders.items() if not split)
        problem = f"has records in {count_of(len(folders), 'folder')}, and the name of {place}/ tells no split"
        raise UsageError(problem, path=root, advice=_DECIDES)
    if not found:
        some = f"it has {count_of(len(names), 'file')}" + (f", such as {', '.join(names[:_MOST_NAMED])}" * bool(names))
        raise UsageError(f"holds no {naming.FOREIGN_FILES}; {some}", path=root, advice=_DECIDES)
    try:
        splits.check_complete(root, found)
        chosen = splits.by_files(root, found)
    except DataError as error:  # its advice is a conversion's
        raise UsageError(error.reason, path=error.path, advice=_DECIDES) from None
    for split, files in chosen.items():
        for name in files:
            _check(name, f"{split}:{name}", {})
    _check_folders(data_dir, chosen)
    return chosen


def line(chosen: dict[str, list[str]]) -> str:
    """Returns a line that says which files `of_names` chose for which split."""
    parts = [f"{split} {_few(names)}" for split, names in chosen.items()]
    return f"splits by the names of the files: {', '.join(parts)}; --split=NAME:PATTERN chooses others"


def doubts(files: Sequence[StoragePath], compression: str, flags: ImageFlags | None) -> FeatureDoubts:
    """Returns the features that may tell splits, by the first Examples in files whose names tell none.

    Raises:
      DataError: a feature is called `split`.
    """
    own = [theirs for _, theirs in flags.feature_map] if flags else []
    for file in files:
        records, _ = schema.first_examples(record for _, record in records_of(file, compression))
        if records:
            return FeatureDoubts.of(records, str(file), own, f"write a file per split; {_DECIDES}")
    return FeatureDoubts()


def _few(names: Sequence[str]) -> str:
    return f"({names[0]})" if len(names) == 1 else f"({count_of(len(names), 'file')}, {names[0]} to {names[-1]})"


def _files(data_dir: str, depth: int) -> list[str]:
    """Returns the names of files that may hold records, sorted.

    Args:
      data_dir: the folder.
      depth: 1: files in the folder itself; 2: those in the folders in it, too; and so on.
    """
    with named(data_dir, "cannot be listed"):
        names = [*_walked(data_dir, "", depth)]
    beside = {beside_one for name in names for beside_one in naming.beside_names(name)}
    return sorted(name for name in names if name not in beside and name.rpartition("/")[2] not in _OURS)


def _walked(data_dir: str, place: str, depth: int) -> Iterator[str]:
    with os.scandir(os.path.join(data_dir, place)) as entries:
        for entry in entries:
            name = f"{place}/{entry.name}" if place else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_file():
                yield name
            elif depth > 1 and entry.is_dir(follow_symlinks=False) and name not in _OTHERS:
                yield from _walked(data_dir, name, depth - 1)


def _parsed(text: str) -> tuple[str, str]:
    split, colon, pattern = text.partition(":")
    if not colon or not pattern:
        raise UsageError(f"--split={text}: must be a name and a pattern of files, such as train:'train-*.tfrecord'")
    if not naming.is_split_name(split):
        raise UsageError(f"--split={text}: {split!r} must be letters, digits and _, and begin with a letter")
    return split, pattern


def _check(name: str, text: str, chosen: dict[str, list[str]]) -> None:
    if not naming.is_file_name(name):
        raise UsageError(f"--split={text}: {name!r} cannot be listed in a manifest: rename it, without : and \\")
    for split, files in chosen.items():
        if name in files:
            raise UsageError(f"--split={text}: {name} is already a file of {split}; a file belongs to one split, once")


def _check_folders(data_dir: str, chosen: Mapping[str, Sequence[str]]) -> None:
    """Raises UsageError if a file belongs to another data set, or its sidecars would be those of another file."""
    names = [name for files in chosen.values() for name in files]
    for place in dict.fromkeys(name.rpartition("/")[0] for name in names):
        if place and (folder(data_dir) / place / naming.MANIFEST).exists():
            raise UsageError(
                f"{place}/ is a data set of its own, whose labels may mean something else",
                path=folder(data_dir) / place / naming.MANIFEST,
                advice=f"use {place}/ as it is, or remove this manifest if {name_of('pipeline.index')} made it",
            )
    of_flat: dict[str, str] = {}
    for name in names:
        if (other := of_flat.setdefault(naming.flat(name), name)) != name:
            raise UsageError(f"{other} and {name} differ only in / and ~: rename one", path=folder(data_dir))
