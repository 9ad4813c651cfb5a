"""Paths of files and folders: local ones, and URLs of object stores and HDFS, which pyarrow reads and writes.

An object store has no folders, links, locks or renames, and an object appears once all of it is written. A
`StoragePath` of either kind has the methods of `pathlib.Path` that make sense in a store, and some of our own. `str`
shows it to people; `url` is the text that `path_of` reads.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

import pyarrow

from beam_jobs.storage.errors import one_line
from beam_jobs.storage.remote import RemotePath

SCHEMES = ("s3", "gs", "hdfs")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)")
_REQUESTS = 16  # at a time: they mostly wait

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class LocalPath(pathlib.PosixPath):
    """A path of this machine, or of a file system that it has mounted. Errors are `OSError` unless stated otherwise."""

    is_remote = False

    @property
    def url(self) -> str:
        """The path as text."""
        return str(self)

    def name_in(self, folder: object) -> str:
        """Returns the path relative to a folder that it is in, with `/` between its parts."""
        return os.path.relpath(self, str(folder))

    def open_native(self) -> pyarrow.NativeFile:
        """Opens the file for pyarrow, and for `read_at`, which any thread may call.

        It is not memory-mapped: a file cut while it is read must not kill the process.
        """
        return pyarrow.OSFile(str(self))

    def read_ahead(self, local: int) -> int:
        """Returns how many bytes to read ahead: `local` of a local file, 8 MiB of a remote one."""
        return local

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and the time of its last change in ns (most stores tell whole seconds)."""
        status = self.stat()
        return status.st_size, status.st_mtime_ns

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the names of the files in this folder, sorted; `a/b` for those in folders in it, if `recursive`."""
        found = self.rglob("*") if recursive else self.iterdir()
        return sorted(path.relative_to(self).as_posix() for path in found if path.is_file())

    def names(self) -> list[str]:
        """Returns the names in this folder; in a store, those of files. Raises `DataError`."""
        with one_line(self, "listed"):
            return os.listdir(self)

    def make_folder(self) -> None:
        """Makes this folder, where it is missing. Raises `DataError`."""
        with one_line(self, "made"):
            self.mkdir(parents=True, exist_ok=True)

    def move_to(self, new: StoragePath) -> None:
        """Renames the file within its file system or store. Raises `DataError`."""
        with one_line(new, "written"):
            os.replace(self, str(new))  # a link at `new` is replaced, never followed

    def remove(self) -> None:
        """Removes the file, if it exists. Raises `DataError`."""
        with one_line(self, "removed"):
            self.unlink(missing_ok=True)

    def sync(self) -> None:
        """Syncs renames and removals in this folder to the disk. Raises `DataError`."""
        with one_line(self, "synced to its disk"):
            descriptor = os.open(self, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


StoragePath: TypeAlias = LocalPath | RemotePath


def is_url(text: str) -> bool:
    """Returns whether a text is a URL of any scheme."""
    return _URL.match(text) is not None


def path_of(text: str) -> StoragePath:
    """Returns the path that a text names; a local one made absolute."""
    return RemotePath(text) if is_url(text) else LocalPath(text).absolute()


def scheme_of(text: str) -> str:
    """Returns the scheme of a URL in lower case; "" for a local path."""
    match = _URL.match(text)
    return match["scheme"].lower() if match else ""


def each(function: Callable[[_Item], _Made], items: Iterable[_Item], remote: bool) -> Iterator[_Made]:
    """Yields the result of a function for each file, in order; remote files are worked on in threads.

    Raises what the function raises for the first file that fails.
    """
    if not remote:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield from pool.map(function, items)
