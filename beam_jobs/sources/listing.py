"""Finds the files that --source names, local or remote, and checks that numbered sets are complete."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator

from pipeline.errors import DataError
from pipeline.files import paths
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.files.remote import RemotePath
from pipeline.records import splits

GZIP = ".gz"  # suffix of compressed files
_HIDDEN = (".", "_")  # prefixes with which Arrow, Spark and Hive hide files that are not data


def find(
    source: str, is_data: Callable[[str], bool], recursive: bool, wanted: str, kinds: str
) -> tuple[StoragePath, list[str]]:
    """Returns a folder and the files in it, as sorted paths relative to it.

    Links to files are followed (Hugging Face's cache consists of them), links to folders are not.

    Args:
      source: a file, a folder, or a glob. In a store only `*`, `[...]` and `**` work: `?` begins the store's options.
      is_data: function that returns whether to read a file of a folder, given its relative path.
      recursive: whether to look into subfolders of a folder.
      wanted: description of the files looked for in a folder, for errors.
      kinds: description of what a source can be, for errors.

    Raises:
      DataError: there is no such file, or no data file in the folder; a file `<name>-00001-of-00002` of a folder is
        missing; a name is not valid UTF-8; the folder or the store cannot be read.
    """
    path = paths.path_of(source)
    if path.is_dir():
        root: StoragePath = path
        names = sorted(name for name in _files(path, recursive) if is_data(name))
        if not names:
            raise DataError(f"holds no {wanted}", path=path)
        splits.check_complete(root, names)
    elif path.exists():
        root, names = path.parent, [path.name]
    else:
        root, names = _glob(path, kinds)
    for name in () if root.is_remote else names:
        if not os.path.isfile(str(root / name)):
            raise DataError("is not a regular file", path=root / name, advice=kinds)
        try:
            str(root / name).encode()
        except UnicodeEncodeError:
            problem = "its name is not valid UTF-8, and keys are made of it"
            raise DataError(problem, path=root / name, advice="rename it") from None
    return root, names


def is_visible(name: str, suffixes: tuple[str, ...]) -> bool:
    """Returns whether a file with one of these suffixes is data: neither it nor a folder of its path is hidden."""
    return name.lower().endswith(suffixes) and not any(part.startswith(_HIDDEN) for part in name.split("/"))


def _files(folder: LocalPath | RemotePath, recursive: bool) -> Iterator[str]:
    if isinstance(folder, RemotePath):  # stores have no hidden folders that cannot be read
        yield from folder.files(recursive)
        return

    def fail(error: OSError) -> None:
        raise error

    for root, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if recursive and not name.startswith(_HIDDEN)]
        for name in files:
            if os.path.isfile(os.path.join(root, name)):
                yield os.path.relpath(os.path.join(root, name), folder)


def _glob(pattern: LocalPath | RemotePath, kinds: str) -> tuple[StoragePath, list[str]]:
    signs = "*[" if pattern.is_remote else "*?["
    if not any(sign in str(pattern) for sign in signs):
        raise DataError("no such file or folder", path=pattern, advice=kinds)
    root = pattern
    while any(sign in str(root) for sign in signs):
        root = root.parent
    if isinstance(root, RemotePath):
        parts = pattern.name_in(root).split("/")
        names = [name for name in root.files(len(parts) > 1) if paths.matches(name.split("/"), parts)]
    else:
        found = {match for match in glob.iglob(str(pattern), recursive=True) if os.path.isfile(match)}
        names = sorted({LocalPath(match).name_in(root) for match in found})
    if not names:
        raise DataError("matches no file", path=pattern)
    return root, names
