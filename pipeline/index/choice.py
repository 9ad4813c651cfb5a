"""The files of each split of an index: those that `--split` names, else by the names of the files."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, name_of, named
from pipeline.files.paths import StoragePath, folder
from pipeline.index.images import ImageFlags
from pipeline.manifest import naming
from pipeline.records import schema, splits
from pipeline.records.splits import FeatureDoubts
from pipeline.records.stream import records_of

_MOST_NAMED = 3  # files in a message
_DECIDES = "--split=NAME:PATTERN, once or more for each split, says which files are whose"


def of_flags(data_dir: str, flags: Sequence[str]) -> dict[str, list[str]]:
    """Returns each split's files: base names in the order of its patterns, sorted within each.

    Hidden files, manifests and sidecars are never chosen.

    Args:
      data_dir: the folder.
      flags: `<name>:<pattern>`, at least one; patterns of one name add up.

    Raises:
      DataError: the folder cannot be listed.
      UsageError: a text is malformed, a pattern matches nothing, or a file is chosen twice.
    """
    names = _files(data_dir)
    chosen: dict[str, list[str]] = {}
    for text in flags:
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


def of_names(data_dir: str) -> dict[str, list[str]]:
    """Returns each split's files by the words in their names, as conversions find them; sorted within each.

    Raises:
      DataError: the folder cannot be listed.
      UsageError: no file is one of records by its name, one of a numbered set is missing, or names do not tell one
        split each.
    """
    names, root = _files(data_dir), folder(data_dir)
    found = [name for name in names if naming.is_foreign_file(name)]
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
        raise UsageError(
            f"--split={text}: {pattern!r} contains a folder; the files must be in DATA_DIR itself: index each folder, "
            f"or convert all: {name_of('beam_jobs.convert')} --dataset=tfrecord --source='DIR/*/*'"
        )
    return split, pattern


def _check(name: str, text: str, chosen: dict[str, list[str]]) -> None:
    if not naming.is_base_name(name):
        raise UsageError(f"--split={text}: {name!r} cannot be listed in a manifest: rename it, without : and \\")
    for split, files in chosen.items():
        if name in files:
            raise UsageError(f"--split={text}: {name} is already a file of {split}; a file belongs to one split, once")
