"""Paths of files and folders, local or as URLs of object stores and HDFS; and locks.

A `StoragePath` of either kind has the methods of `pathlib.Path` that make sense in a store, and a few more. `str` is
for people; `url` is the text that `path_of` parses. An error is one line: the path, and why the system or the store
refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

from pipeline.errors import UsageError, named, one_line
from pipeline.files.reading import Identity, OpenFile, opener, unreadable
from pipeline.files.remote import RemotePath, TensorFlowPath, is_url, needs_arrow

if TYPE_CHECKING:
    import pyarrow

PathLike = str | os.PathLike[str]
_REQUESTS = 16  # requests in flight; they mostly wait
# `DIR@2` or `DIR@3f2a91c0`: a data set's version by its number or the first digits of its digest.
_VERSION = re.compile(r"(?P<folder>.*[^/@])/?@(?P<version>[1-9]\d{0,5}|[0-9a-f]{8,64})")

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class LocalPath(pathlib.PosixPath):
    """A path on this machine or on a mounted file system. Raises `OSError` unless stated otherwise."""

    is_remote = False

    @property
    def url(self) -> str:
        """Text of the path."""
        return str(self)

    def open(self, mode: str = "r", *arguments: Any, **options: Any) -> IO[Any]:  # type: ignore[override]
        """Opens the file like `pathlib.Path`; for reading, only a regular file, as a FIFO would block."""
        if set(mode) & set("wax+"):
            return super().open(mode, *arguments, **options)
        given = dict(zip(("buffering", "encoding", "errors", "newline"), arguments, strict=False)) | options
        return open(self, mode, opener=opener, **given)

    def name_in(self, folder: object) -> str:
        """Returns the path relative to a folder that contains it, with `/` between its parts."""
        return os.path.relpath(self, str(folder))

    def open_native(self) -> pyarrow.NativeFile:
        """Opens the file with pyarrow. Any thread may call its `read_at`.

        The file is not memory-mapped, because truncating a mapped file while it is read kills the process.
        """
        import pyarrow  # noqa: PLC0415, pip installs it for conversion

        os.close(opener(str(self), os.O_RDONLY))  # does not block on a FIFO; pyarrow would
        return pyarrow.OSFile(str(self))

    def open_file(self) -> OpenFile:
        """Opens the file for reading at any offset. Raises `DataError`."""
        return OpenFile(str(self))

    def read_ahead(self, local: int) -> int:
        """Returns how many bytes to read ahead: `local` for a local file, 8 MiB for a remote one."""
        return local

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and its modification time in ns (whole seconds in most stores)."""
        status = self.stat()
        return status.st_size, status.st_mtime_ns

    def identity(self) -> Identity:
        """Returns the file's current identity. Raises `DataError` if it is missing."""
        try:
            return Identity.of(self.stat())
        except OSError as error:
            raise unreadable(self, error) from None

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the sorted names of the files in this folder and, with `recursive`, in subfolders, as `a/b`."""
        found = self.rglob("*") if recursive else self.iterdir()
        return sorted(path.relative_to(self).as_posix() for path in found if path.is_file())

    def names(self) -> list[str]:
        """Returns the names of everything in this folder; in a store, only of files. Raises `DataError`."""
        with one_line(self, "listed"):
            return os.listdir(self)

    def make_folder(self) -> None:
        """Creates this folder and missing parents. Raises `DataError`."""
        with one_line(self, "made"):
            self.mkdir(parents=True, exist_ok=True)

    def move_to(self, new: StoragePath) -> None:
        """Renames the file within its file system or store. Raises `DataError`."""
        with one_line(new, "written"):
            os.replace(self, str(new))  # a link at `new` is replaced, not followed

    def remove(self) -> None:
        """Removes the file if it exists. Raises `DataError`."""
        with one_line(self, "removed"):
            self.unlink(missing_ok=True)

    def sync(self) -> None:
        """Syncs renames and removals in this folder to the disk. Raises `DataError`."""
        with one_line(self, "synced to its disk"):
            sync(self)


StoragePath: TypeAlias = LocalPath | RemotePath


def path_of(text: str) -> StoragePath:
    """Returns a path for conversions: an absolute local path, or a URL that pyarrow reads and writes."""
    return RemotePath(text) if is_url(text) else LocalPath(text).absolute()


def folder(data_dir: PathLike | RemotePath) -> StoragePath:
    """Returns the folder of a data set to read: a local path as given, or a URL, read by TensorFlow if possible.

    All versions of a data set (`DIR@VERSION`) share one folder.

    Raises:
      UsageError: `data_dir` is empty, or neither a string nor an `os.PathLike` of one.
    """
    if isinstance(data_dir, LocalPath | RemotePath):
        return data_dir
    path = os.fspath(data_dir) if isinstance(data_dir, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise UsageError(f"data_dir={data_dir!r}: must be the path of a data set's folder")
    path, _ = with_version(path)
    if not is_url(path):
        return LocalPath(path)
    return RemotePath(path) if needs_arrow(path) else TensorFlowPath(path)


def with_version(data_dir: PathLike | RemotePath) -> tuple[str, str | None]:
    """Returns the folder and the version that `DIR@VERSION` names; the version is None if it names none.

    A local folder whose own name ends in `@VERSION` is taken as a folder.
    """
    path = data_dir.url if isinstance(data_dir, LocalPath | RemotePath) else os.fspath(data_dir)
    match = _VERSION.fullmatch(path)
    if match is None or (not is_url(path) and os.path.isdir(path)):
        return path, None
    return match["folder"], match["version"]


def each(function: Callable[[_Item], _Made], items: Iterable[_Item], remote: bool) -> Iterator[_Made]:
    """Yields the result of a function for each item, in order; runs it in threads for remote files.

    Raises the function's error for the first item on which it fails.
    """
    if not remote:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield from pool.map(function, items)


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Returns whether a path matches as in `glob.glob(recursive=True)`; `*` and `**` do not match hidden names."""
    if not pattern:
        return not parts
    head, *rest = pattern
    if head == "**":
        if not rest:
            return not any(part.startswith(".") for part in parts)
        deeper = bool(parts) and not parts[0].startswith(".") and matches(parts[1:], pattern)
        return deeper or matches(parts, rest)
    if not parts or (parts[0].startswith(".") and not head.startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], head) and matches(parts[1:], rest)


def sync(folder: pathlib.Path) -> None:
    """Syncs renames and removals in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, shared: bool = False) -> bool:
    """Locks an open file or folder until it is closed or the process ends in any way.

    Args:
      descriptor: descriptor of the file or folder.
      shared: whether others may share the lock.

    Returns:
      Whether it is locked; False if another process holds a conflicting lock.

    Raises:
      OSError: the file system cannot lock it.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share_lock(descriptor: int) -> None:
    """Turns the lock of an open file into a shared one."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[bool]:
    """Locks an open file or folder and closes it when the block ends; yields False if another process has locked it.

    Some network file systems cannot lock; there, nothing keeps two processes apart.
    """
    try:
        is_free = True
        with contextlib.suppress(OSError):
            is_free = try_lock(descriptor)
        yield is_free
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Context that keeps other commands, including conversions, from writing to a data set.

    Raises:
      DataError: the folder cannot be opened.
      UsageError: another command is writing there.
    """
    with named(folder, "cannot be opened"):
        descriptor = os.open(folder, os.O_RDONLY)
    with locked(descriptor) as is_free:
        if not is_free:
            raise UsageError("another command is writing there; wait until it ends", path=folder)
        yield
