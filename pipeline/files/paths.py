"""Paths of files and folders, local ones and URLs of object stores and HDFS; and locks.

A `StoragePath` of either kind has the methods of `pathlib.Path` that make sense in a store, and some more. `str` shows
it to people; `url` is the text that `path_of` reads. An error is one line: the path, and why the system or the store
refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

from pipeline.errors import UsageError, named, one_line
from pipeline.files.reading import Identity, OpenFile, opener, unreadable
from pipeline.files.remote import RemotePath, TensorFlowPath, is_url, needs_arrow

if TYPE_CHECKING:
    import pyarrow

PathLike = str | os.PathLike[str]
_REQUESTS = 16  # at a time; they mostly wait

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class LocalPath(pathlib.PosixPath):
    """A path on this machine, or on a file system that it has mounted. Raises `OSError` unless stated otherwise."""

    is_remote = False

    @property
    def url(self) -> str:
        """The path as text."""
        return str(self)

    def open(self, mode: str = "r", *arguments: Any, **options: Any) -> IO[Any]:  # type: ignore[override]
        """Opens the file as `pathlib.Path` does; to be read, a regular file alone, so that a FIFO does not block."""
        if set(mode) & set("wax+"):
            return super().open(mode, *arguments, **options)
        given = dict(zip(("buffering", "encoding", "errors", "newline"), arguments, strict=False)) | options
        return open(self, mode, opener=opener, **given)

    def name_in(self, folder: object) -> str:
        """Returns the path relative to a folder that contains it, with `/` between its parts."""
        return os.path.relpath(self, str(folder))

    def open_native(self) -> pyarrow.NativeFile:
        """Opens the file for pyarrow. Any thread may call its `read_at`.

        It is not memory-mapped, because a mapped file that is truncated while it is read kills the process.
        """
        import pyarrow  # noqa: PLC0415, pip installs it for conversion

        os.close(opener(str(self), os.O_RDONLY))  # which does not block, as pyarrow would
        return pyarrow.OSFile(str(self))

    def open_file(self) -> OpenFile:
        """Opens the file for reading at any offset. Raises `DataError`."""
        return OpenFile(str(self))

    def read_ahead(self, local: int) -> int:
        """Returns how many bytes to read ahead: `local` for a local file, 8 MiB for a remote one."""
        return local

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and the time of its last change in ns (in most stores, whole seconds)."""
        status = self.stat()
        return status.st_size, status.st_mtime_ns

    def identity(self) -> Identity:
        """Returns the file's identity now. Raises `DataError` if it is missing."""
        try:
            return Identity.of(self.stat())
        except OSError as error:
            raise unreadable(self, error) from None

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the names of the files in this folder, sorted; with `recursive`, also those below it, as `a/b`."""
        found = self.rglob("*") if recursive else self.iterdir()
        return sorted(path.relative_to(self).as_posix() for path in found if path.is_file())

    def names(self) -> list[str]:
        """Returns the names of everything in this folder; in a store, of files alone. Raises `DataError`."""
        with one_line(self, "listed"):
            return os.listdir(self)

    def make_folder(self) -> None:
        """Makes this folder and those above it if they are missing. Raises `DataError`."""
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
            sync(self)


StoragePath: TypeAlias = LocalPath | RemotePath


def path_of(text: str) -> StoragePath:
    """Returns a path for conversion: a local path made absolute, or a URL that pyarrow reads and writes."""
    return RemotePath(text) if is_url(text) else LocalPath(text).absolute()


def folder(data_dir: PathLike | RemotePath) -> StoragePath:
    """Returns the folder of a data set to read: a local path as given, or a URL, read by TensorFlow if it can.

    Raises:
      UsageError: `data_dir` is empty, or neither a text nor an `os.PathLike` of one.
    """
    if isinstance(data_dir, LocalPath | RemotePath):
        return data_dir
    path = os.fspath(data_dir) if isinstance(data_dir, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise UsageError(f"data_dir={data_dir!r}: must be the path of a data set's folder")
    if not is_url(path):
        return LocalPath(path)
    return RemotePath(path) if needs_arrow(path) else TensorFlowPath(path)


def each(function: Callable[[_Item], _Made], items: Iterable[_Item], remote: bool) -> Iterator[_Made]:
    """Yields the result of a function for each item, in order; for remote files it runs in threads.

    Raises what the function raises for the first item that fails.
    """
    if not remote:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield from pool.map(function, items)


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Returns whether a path matches as in `glob.glob(recursive=True)`, where `*` and `**` match no hidden name."""
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
    """Locks an open file or folder until it is closed or the process ends, however it ends.

    Args:
      descriptor: of the file or folder.
      shared: whether others may share the lock.

    Returns:
      Whether it is locked; False if somebody else holds a lock that forbids it.

    Raises:
      OSError: the file system cannot lock it.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share_lock(descriptor: int) -> None:
    """Turns the lock of an open file into one that others may share."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[bool]:
    """Locks an open file or folder and closes it at the end of the block; yields False if somebody else has locked it.

    Some network file systems cannot lock. On them nothing keeps two processes apart.
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
    """Context that keeps other commands from writing to a data set, conversions too.

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
