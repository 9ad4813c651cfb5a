"""Paths of files and folders: local ones, and URLs of object stores and HDFS, which pyarrow reads and writes.

An object store has no folders, links, locks or renames, and an object appears once all of it is written. `StoragePath`
is what both kinds of path can do: the methods of `pathlib.Path` that make sense in a store, and some of our own.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Literal, Protocol, Self, TypeVar

import pyarrow

from beam_jobs.storage.remote import RemotePath

SCHEMES = ("s3", "gs", "hdfs")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)")
_REQUESTS = 16  # at a time: they wait, they do not work

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class StoragePath(Protocol):
    """A file or folder, local or remote. `str` shows it to people; `url` is the text that `path_of` reads."""

    def __truediv__(self, name: str) -> Self:
        """Returns the path of `name` in this folder."""
        ...

    @property
    def url(self) -> str: ...  # noqa: D102

    @property
    def is_remote(self) -> bool: ...  # noqa: D102

    @property
    def parent(self) -> Self: ...  # noqa: D102

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def suffix(self) -> str: ...  # noqa: D102

    @property
    def stem(self) -> str: ...  # noqa: D102

    def name_in(self, folder: StoragePath) -> str:
        """Returns the path from `folder`, which it lies in, with `/` between its parts."""
        ...

    def open(self, mode: Literal["rb"], buffering: int = -1) -> IO[bytes]:
        """Opens the file for reading: with 0 unbuffered; else a remote one is read ahead by 8 MiB."""
        ...

    def open_native(self) -> pyarrow.NativeFile:
        """Opens the file for pyarrow, and for `read_at`, which any thread may call."""
        ...

    def read_ahead(self, local: int) -> int:
        """Returns how many bytes to read ahead: `local` of a local file, 8 MiB of a remote one."""
        ...

    def read_bytes(self) -> bytes: ...  # noqa: D102

    def read_text(self, encoding: str) -> str: ...  # noqa: D102

    def write_bytes(self, data: bytes | memoryview) -> Any: ...  # noqa: D102

    def exists(self) -> bool: ...  # noqa: D102

    def is_dir(self) -> bool: ...  # noqa: D102

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and the time of its last change in ns (most stores tell whole seconds)."""
        ...

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the names of the files in this folder, sorted; `a/b` for those in folders in it, if `recursive`."""
        ...

    def unlink(self, missing_ok: bool = False) -> None: ...  # noqa: D102


class LocalPath(pathlib.PosixPath):
    """A path of this machine, or of a file system that it has mounted. Errors are `OSError`."""

    @property
    def url(self) -> str:
        """The path as text."""
        return str(self)

    @property
    def is_remote(self) -> bool:
        """No."""
        return False

    def name_in(self, folder: StoragePath) -> str:
        """Returns the path from `folder`; see `StoragePath`."""
        return os.path.relpath(self, str(folder))

    def open_native(self) -> pyarrow.NativeFile:
        """Opens the file for pyarrow; not memory-mapped: a file cut while it is read must not kill the process."""
        return pyarrow.OSFile(str(self))

    def read_ahead(self, local: int) -> int:
        """Returns `local`; see `StoragePath`."""
        return local

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and the time of its last change in ns."""
        status = self.stat()
        return status.st_size, status.st_mtime_ns

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the names of the files in this folder; see `StoragePath`."""
        found = self.rglob("*") if recursive else self.iterdir()
        return sorted(path.relative_to(self).as_posix() for path in found if path.is_file())


def is_url(text: str) -> bool:
    """Says whether a text is a URL, of whatever scheme."""
    return _URL.match(text) is not None


def path_of(text: str) -> LocalPath | RemotePath:
    """Returns the path that a text names; a local one made absolute."""
    return RemotePath(text) if is_url(text) else LocalPath(text).absolute()


AnyPath = pathlib.Path | RemotePath


def text_of(path: AnyPath) -> str:
    """Returns the text of which `path_of` makes the same path."""
    return path.url if isinstance(path, RemotePath) else str(path)


def scheme_of(text: str) -> str:
    """Returns the scheme of a URL, in lower case; of a local path nothing."""
    match = _URL.match(text)
    return match["scheme"].lower() if match else ""


def each(function: Callable[[_Item], _Made], items: Iterable[_Item], remote: bool) -> Iterator[_Made]:
    """Yields what a function makes of each of some files, in their order: of remote ones some at a time, in threads.

    Raises what the function does, of the first file that fails.
    """
    if not remote:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield from pool.map(function, items)
