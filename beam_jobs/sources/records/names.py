"""Which TFRecord files a --source names, and which split each is of."""

from __future__ import annotations

import glob
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.sources import file_names, remote_listing
from beam_jobs.sources.file_names import SPLIT_OF_WORD
from beam_jobs.storage import paths
from beam_jobs.storage.paths import AnyPath
from pipeline.errors import DataError

_RECORD_FILE = re.compile(r"[^._].*(\.tfrec.*|-\d{5,}-of-\d{5,})", re.IGNORECASE)
_BESIDE = (".offsets", ".index", ".idx", ".crc", ".json", ".txt")  # what lies beside records and is named after them
_KINDS = "--source of tfrecord is a folder, a file or a glob"
_NUMBERED = re.compile(r"(?P<head>.*-)(?P<index>\d{5,})-of-(?P<count>\d{5,})(?P<tail>.*)")


def find(source: str) -> tuple[AnyPath, Sequence[AnyPath]]:
    """Returns the folder that holds all files, and these, sorted by path.

    Args:
      source: a file, a folder with files like `*.tfrecord*` or `*-00000-of-00001*`, or a glob.

    Raises:
      DataError: there is no such file, or one `-00003-of-00010` of a folder is missing.
    """
    if paths.is_url(source):
        return _find_remote(source)
    path = pathlib.Path(source).absolute()
    if path.is_dir():
        found = [entry for entry in path.iterdir() if _is_records(entry.name) and entry.is_file()]
        if not found:
            raise DataError(f"{path}: holds no file like *.tfrecord* or *-00000-of-00001; name the files with a glob")
        file_names.check_complete(path, _numbered(entry.name for entry in found))
    elif path.exists() or not glob.has_magic(source):
        found = [path]
    else:
        found = [match for name in glob.iglob(str(path), recursive=True) if (match := pathlib.Path(name)).is_file()]
        if not found:
            raise DataError(f"{path}: matches no file")
    for match in found:
        _check_name(match)
    return pathlib.Path(os.path.commonpath([match.parent for match in found])), sorted(found)


def split_of(name: str) -> str:
    """Returns the split of a file: the first word in its name that means one, else train."""
    return next((SPLIT_OF_WORD[word] for word in file_names.words(name) if word in SPLIT_OF_WORD), "train")


def _find_remote(source: str) -> tuple[AnyPath, Sequence[AnyPath]]:
    root, names, is_folder = remote_listing.find(source, _is_records, recursive=False, kinds=_KINDS)
    if not names:
        raise DataError(f"{root}: holds no file like *.tfrecord* or *-00000-of-00001; name the files with a glob")
    if is_folder:
        file_names.check_complete(root, _numbered(names))
    common = remote_listing.common_folder(names)
    return (root / common if common else root), [root / name for name in names]


def _check_name(path: pathlib.Path) -> None:
    if not path.is_file():
        problem = "is not a regular file" if path.exists() else "no such file or folder"
        raise DataError(f"{path}: {problem}; {_KINDS}")
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{path}: its name is not valid UTF-8, and keys are made of it; rename it") from None


def _is_records(name: str) -> bool:
    return _RECORD_FILE.fullmatch(name) is not None and not name.endswith(_BESIDE)


def _numbered(names: Iterable[str]) -> Iterator[tuple[str, int, str, str]]:
    """Yields what `file_names.check_complete` takes of the names that count themselves."""
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            yield match["head"], int(match["index"]), match["count"], match["tail"]
