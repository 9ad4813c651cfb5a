"""The files of each split of an index, chosen by `--split` or else by the files' names."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, name_of, named
from pipeline.files.paths import StoragePath, folder, matches
from pipeline.index.images import ImageFlags
from pipeline.manifest import naming
from pipeline.records import framing, schema, splits
from pipeline.records.splits import SuspectFeatures
from pipeline.records.stream import records_of

MOST_NAMED = 3  # most files named in a message
_OURS = (naming.MANIFEST, naming.REJECTS, naming.CARD, naming.CROISSANT, *naming.TFDS_FILES)
_OTHERS = (naming.SIDECARS, naming.COLUMNS, "lost+found")  # folders that hold no records
_EVENTS = ".tfevents."  # part of the names of TensorBoard's files
_DECIDES = "--split=NAME:PATTERN, once or more for each split, says which files are whose"


def of_flags(data_dir: str, flags: Sequence[str]) -> dict[str, list[str]]:
    """Returns each split's files: names in the folder, in the order of the split's patterns, sorted within each.

    Hidden files, manifests and sidecars are never chosen, and links to folders are not followed.

    Args:
      data_dir: folder of the files.
      flags: `<name>:<pattern>`, at least one; patterns with the same name add up. They match as in a conversion's
        source: `*` within a name, `**` any number of folders.

    Raises:
      DataError: the folder cannot be listed.
      UsageError: a text is malformed, a pattern matches nothing, or a file is chosen twice.
    """
    parsed = [_parsed(text) for text in flags]
    names = _files(data_dir, max(math.inf if "**" in pattern else pattern.count("/") + 1 for _, pattern in parsed))
    chosen: dict[str, list[str]] = {}
    for text, (split, pattern) in zip(flags, parsed, strict=True):
        found = [name for name in names if matches(name.split("/"), pattern.split("/"))]
        if not found:
            some = f", such as {', '.join(names[:MOST_NAMED])}" if names else ""
            count = count_of(len(names), "file")
            raise UsageError(f"--split={text}: no file in {data_dir} matches {pattern!r}; it has {count}{some}")
        for name in found:
            _check_name(name, f"--split={text}: {name!r}")
            if other := next((split for split, files in chosen.items() if name in files), None):
                problem = f"{name} is already a file of {other}; a file belongs to one split, once"
                raise UsageError(f"--split={text}: {problem}")
        chosen.setdefault(split, []).extend(found)
    _check_folders(data_dir, chosen)
    return chosen


def of_names(data_dir: str) -> dict[str, list[str]]:
    """Returns each split's files by the words in their names and folders, as conversions find them.

    The files are in the folder itself or, if it has none, in the folders below it. They are sorted within each split.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be read.
      UsageError: no file holds records, a file of a numbered set is missing or exists twice, or a name does not
        determine exactly one split.
    """
    root = folder(data_dir)
    found = _records_in(root)
    for check, advice in (
        (splits.check_complete, "get it, or --split=NAME:PATTERN takes the files that are there"),
        (splits.check_packed_once, "remove one of them, or choose one by --split=NAME:PATTERN"),
    ):
        with _advised(advice):
            check(root, found)
    with _advised(_DECIDES):
        chosen = splits.by_files(root, found)
    for name in found:
        _check_name(name, repr(name), root)
    _check_folders(data_dir, chosen)
    return chosen


@contextlib.contextmanager
def _advised(advice: str) -> Iterator[None]:
    """Replaces the advice of errors about names, because a conversion's advice does not apply here."""
    try:
        yield
    except DataError as error:
        raise UsageError(error.reason, path=error.path, advice=advice) from None


def _records_in(root: StoragePath) -> list[str]:
    """Returns the record files in a folder or else below it, by their names or, if no name tells, by their bytes."""
    names = _files(str(root), math.inf)
    records = [name for name in names if naming.is_foreign_file(name.rpartition("/")[2])]
    if not records:  # TensorBoard's files contain records, too, but no data set
        others = (name for name in names if _EVENTS not in name)
        records = [name for name in others if framing.begins_file(_start_of(root / name))]
    if not records:
        some = f"it has {count_of(len(names), 'file')}" + (f", such as {', '.join(names[:MOST_NAMED])}" * bool(names))
        raise UsageError(f"holds no {naming.FOREIGN_FILES}; {some}", path=root, advice=_DECIDES)
    found = [name for name in records if "/" not in name] or records
    places = dict.fromkeys(place for name in records if (place := name.rpartition("/")[0]))
    telling = [place for place in places if any(map(splits.in_folder, place.split("/")))]
    if found != records and telling:
        raise UsageError(f"has records both in itself and in {telling[0]}/", path=root, advice=_DECIDES)
    if found == records and len(places) > max(1, len(telling)):
        place = next(place for place in places if place not in telling)
        problem = f"has records in {count_of(len(places), 'folder')}, and the name of {place}/ tells no split"
        raise UsageError(problem, path=root, advice=_DECIDES)
    return found


def _start_of(file: StoragePath) -> bytes:
    with file.open_file() as opened:
        return bytes(opened.read_at(0, min(framing.START, opened.identity().num_bytes)))


def line(chosen: dict[str, list[str]]) -> str:
    """Returns a line about which files `of_names` chose for which split."""
    parts = [f"{split} {_few(names)}" for split, names in chosen.items()]
    return f"splits by the names of the files: {', '.join(parts)}; --split=NAME:PATTERN chooses others"


def suspects(packings: Mapping[StoragePath, str], flags: ImageFlags | None) -> SuspectFeatures:
    """Returns the features that may determine splits, from the first Examples in files whose names do not.

    `packings` is the compression of each file.

    Raises:
      DataError: a feature is called `split`.
    """
    own = [theirs for _, theirs in flags.feature_map] if flags else []
    for file, packing in packings.items():
        records, _ = schema.first_examples(record for _, record in records_of(file, packing))
        if records:
            return SuspectFeatures.of(records, str(file), own, f"write a file per split; {_DECIDES}")
    return SuspectFeatures()


def _few(names: Sequence[str]) -> str:
    return f"({names[0]})" if len(names) == 1 else f"({count_of(len(names), 'file')}, {names[0]} to {names[-1]})"


def _files(data_dir: str, depth: float) -> list[str]:
    """Returns the sorted names of files that may hold records; `depth` counts folder levels, 1 for only `data_dir`."""
    with named(data_dir, "cannot be listed"):
        names = [*_walked(data_dir, "", depth)]
    return sorted(name for name in names if name.rpartition("/")[2] not in _OURS)


def _walked(data_dir: str, place: str, depth: float) -> Iterator[str]:
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


def _check_name(name: str, what: str, root: StoragePath | None = None) -> None:
    if not naming.is_file_name(name):
        raise UsageError(f"{what} cannot be listed in a manifest", path=root, advice="rename it, without : and \\")


def _check_folders(data_dir: str, chosen: Mapping[str, Sequence[str]]) -> None:
    """Raises UsageError if a file belongs to another data set, or would share its sidecars with another file."""
    names = [name for files in chosen.values() for name in files]
    parents = (parent.as_posix() for name in names for parent in pathlib.PurePosixPath(name).parents)
    for place in dict.fromkeys(parents):
        if place != "." and (folder(data_dir) / place / naming.MANIFEST).exists():
            raise UsageError(
                f"{place}/ is a data set of its own, whose labels may mean something else",
                path=folder(data_dir) / place / naming.MANIFEST,
                advice=f"use {place}/ as it is, or remove this manifest if {name_of('pipeline.index')} made it",
            )
    of_flat: dict[str, str] = {}
    for name in names:
        if (other := of_flat.setdefault(naming.flat(name), name)) != name:
            raise UsageError(f"{other} and {name} differ only in / and ~: rename one", path=folder(data_dir))
