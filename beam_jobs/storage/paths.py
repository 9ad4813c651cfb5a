"""Paths of files and folders: local ones, and URLs of object stores and HDFS, which pyarrow reads and writes.

An object store has no folders, links, locks or renames, and an object appears once all of it is written. A
`StoragePath` of either kind has the methods of `pathlib.Path` that make sense in a store, and some of our own. `str`
shows it to people; `url` is the text that `path_of` reads. An error is one line: the path, and why the system or the
store refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Literal, TypeAlias, TypeVar

import pyarrow
from pyarrow import fs

from pipeline.errors import DataError, TransientError
from pipeline.manifest.remote import arrow_root

_OF_STORE = re.compile(r"AWS Error|google::cloud::Status")  # in the text of pyarrow's errors, which have no errno
_MOST_TEXT = 400  # characters of a reason: without Java, HDFS lists 100 folders
_USER = re.compile(r"(?<=://)[^/@]*@")  # of `s3://key:secret@bucket`
_BUFFER = 8 << 20  # 8 MiB: a request to an object store takes as long as 1 or 2 MiB from it
SCHEMES = ("s3", "gs", "hdfs")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)")
_REQUESTS = 16  # at a time: they mostly wait

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@contextlib.contextmanager
def one_line(path: object, done: str, missing: bool = False) -> Iterator[None]:
    """Turns what the system or pyarrow raises in the block into a `DataError`: "PATH: cannot be DONE: reason".

    It is a `TransientError` where the system or a store failed.

    Args:
      path: the file or folder.
      done: what the block does to it: "read", "written".
      missing: whether a missing file stays a `FileNotFoundError`.
    """
    try:
        yield
    except DataError:  # says it already
        raise
    except (OSError, pyarrow.ArrowException) as error:
        if missing and isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such file", str(path)) from None
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        reason = reason if len(reason) <= _MOST_TEXT else f"{reason[:_MOST_TEXT]}..."
        raise kind_of(error)(f"cannot be {done}: {reason}", path=path) from None


def kind_of(error: Exception) -> type[DataError]:
    """Returns the class of our error for one of the system or pyarrow.

    It is `TransientError` if the system or a store failed, and not pyarrow on what a file holds, which raises an
    `OSError` as well.
    """
    of_system = isinstance(error, OSError) and (error.errno is not None or _OF_STORE.search(str(error)))
    return TransientError if of_system else DataError


class RemotePath:
    """A file or folder that a URL names. Errors are `DataError`, with the URL and pyarrow's reason.

    Args:
      url: `s3://bucket/folder`, `gs://...` or `hdfs://...`; pyarrow's options of the store may follow a `?`.
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        base, question, query = url.partition("?")
        self._base = base.rstrip("/")
        self._query = question + query

    def __truediv__(self, name: str) -> RemotePath:
        return self._with_base(f"{self._base}/{name}")

    def __str__(self) -> str:
        """Returns the URL, without the store's options and the user, which may hold a secret."""
        return _USER.sub("", self._base)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def url(self) -> str:
        """The whole URL, with the store's options."""
        return self._base + self._query

    @property
    def parent(self) -> RemotePath:
        """The folder that this is in."""
        return self._with_base(self._base.rpartition("/")[0])

    @property
    def name(self) -> str:
        """The last part."""
        return self._base.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the last part, from its last dot."""
        return pathlib.PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return pathlib.PurePosixPath(self.name).stem

    def name_in(self, folder: object) -> str:
        """Returns the path from `folder`."""
        return str(self).removeprefix(f"{folder}/")

    def open(self, mode: Literal["rb"] = "rb", buffering: int = 0) -> IO[bytes]:
        """Opens the file for reading: unbuffered, or read ahead by 8 MiB.

        Raises:
          FileNotFoundError: there is no such file.
          DataError: it cannot be read.
        """
        stream = self.open_native()
        return io.BufferedReader(stream, _BUFFER) if buffering else stream

    def open_native(self) -> pyarrow.NativeFile:
        """Opens the file for reading at any offset; raises as `open`."""
        with one_line(self, "read", missing=True):
            system, path = self._system()
            return system.open_input_file(path)

    def read_ahead(self, local: int) -> int:
        """Returns 8 MiB, whatever suits a local file."""
        return _BUFFER

    def read_bytes(self) -> bytes:
        """Returns the file's content; raises as `open`."""
        with self.open() as stream, one_line(self, "read", missing=True):
            return bytes(stream.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """Returns the file's text; raises as `open`."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Writes the file. Except on HDFS, readers see either the old content or all of the new one.

        Raises:
          DataError: it cannot be written.
        """
        with one_line(self, "written"):
            system, path = self._system()
            with system.open_output_stream(path, compression=None) as stream:  # by default it compresses a `.gz` again
                stream.write(data)

    def exists(self) -> bool:
        """Returns whether there is a file, or a folder with something in it."""
        return self._info().type != fs.FileType.NotFound

    def is_dir(self) -> bool:
        """Returns whether it is a folder with something in it."""
        return bool(self._info().type == fs.FileType.Directory)

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and the time of its last change in ns.

        Raises:
          FileNotFoundError: there is no such file.
        """
        info = self._info()
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"{self}: no such file")
        return int(info.size), int(info.mtime_ns or 0)

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the names of the files in this folder, sorted; `a/b` for those in folders in it, if `recursive`."""
        return self._listed(fs.FileType.File, recursive)

    def folders(self) -> list[str]:
        """Returns the names of the folders in this folder, sorted; empty ones, too, where the store has such."""
        return self._listed(fs.FileType.Directory)

    def names(self) -> list[str]:
        """Returns the names of the files in this folder."""
        return self.files()

    def make_folder(self) -> None:
        """Does nothing: a store has no folders."""

    def move_to(self, new: Any) -> None:
        """Copies the file to another path of the same store, and removes it."""
        new.write_bytes(self.read_bytes())
        self.remove()

    def remove(self) -> None:
        """Removes the file, if it exists."""
        if self.exists():
            with one_line(self, "removed"), contextlib.suppress(FileNotFoundError):
                system, path = self._system()
                system.delete_file(path)

    def remove_folder(self) -> None:
        """Removes this folder and all that is in it; `remove` of its last file leaves an empty object for it on S3."""
        with one_line(self, "removed"), contextlib.suppress(FileNotFoundError):
            system, path = self._system()
            system.delete_dir(path)

    def sync(self) -> None:
        """Does nothing: what a store has taken is on its disks."""

    def _listed(self, kind: fs.FileType, recursive: bool = False) -> list[str]:
        with one_line(self, "listed"):
            system, path = self._system()
            found = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
        start = len(path.rstrip("/")) + 1
        return sorted(info.path[start:] for info in found if info.type == kind)

    def _info(self) -> Any:
        with one_line(self, "read", missing=True):
            system, path = self._system()
            return system.get_file_info(path)

    def _system(self) -> tuple[fs.FileSystem, str]:
        scheme, _, rest = self._base.partition("://")
        authority, _, path = rest.partition("/")
        system, root = arrow_root(f"{scheme}://{authority}{self._query}")
        return system, f"{root.rstrip('/')}/{path}".rstrip("/")

    def _with_base(self, base: str) -> RemotePath:
        """Returns another path of the same store; its name may hold a `?`."""
        other = RemotePath(self._query)
        other._base, other._query = base, self._query
        return other


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


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder until it is closed or the process ends; returns whether nobody else holds it.

    Raises OSError where the file system cannot lock it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
