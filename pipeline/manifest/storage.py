"""The files of a data set: in a folder of this machine, or one that a URL names (`gs://`, `s3://`, `hdfs://`, `ram://`).

A file is identified by its state when the input was made: one that was removed, cut or rewritten since is an error.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from typing import NamedTuple

from pipeline.errors import DataError, UsageError
from pipeline.manifest import remote

PathLike = str | os.PathLike[str]
_USER = re.compile(r"(?<=://)[^/@]*@")  # of `s3://key:secret@bucket`
_MOST_TEXT = 400  # characters of a reason
# Options of pyarrow's stores that hold no secret; those that may are left out where a URL is shown.
_OPEN_OPTIONS = re.compile(
    r"(region|scheme|endpoint_override|force_virtual_addressing|tls_\w+|allow_\w+|background_writes|smart_defaults"
    r"|project_id|retry_limit_seconds|user|replication|buffer_size|default_block_size)=.*"
)


class Identity(NamedTuple):
    """What tells a file from one that replaced it: size in bytes, time of writing in ns, and inode (0: none)."""

    num_bytes: int
    written: int
    inode: int


@dataclasses.dataclass(frozen=True)
class File:
    """A file or folder of a data set: `str` gives its path, `folder / name` a file in it."""

    path: str

    @property
    def is_remote(self) -> bool:
        """Whether a URL names it."""
        return "://" in self.path

    def __truediv__(self, name: str) -> File:
        base, options = self._parts
        return File(os.path.join(base, name) + options)

    def __str__(self) -> str:
        """Returns the path without the store's options and the user, which may hold a secret."""
        base, options = self._parts
        return _USER.sub("", base) if remote.is_of_arrow(self.path) else base + options

    @property
    def in_command(self) -> str:
        """The path as an argument of a command that a person pastes into a shell; see `in_command`."""
        return in_command(self.path)

    @property
    def _parts(self) -> tuple[str, str]:
        """The path, and the store's options, which may follow a `?`."""
        base, question, options = self.path.partition("?") if remote.is_of_arrow(self.path) else (self.path, "", "")
        return base, question + options

    def identity(self) -> Identity:
        """Returns what the file is now.

        Raises:
          DataError: it is missing.
        """
        try:
            if self.is_remote:
                return Identity(*remote.size_and_time(self.path), 0)
            found = os.stat(self.path)
            return Identity(found.st_size, found.st_mtime_ns, found.st_ino)
        except Exception as error:
            raise _unreadable(str(self), error) from None

    def read_text(self, encoding: str = "utf-8") -> str:
        """Returns the whole file as text.

        Raises:
          FileNotFoundError, OSError, UnicodeDecodeError: as `pathlib.Path.read_text`.
        """
        if not self.is_remote:
            with open(self.path, encoding=encoding) as file:
                return file.read()
        try:
            size, _ = remote.size_and_time(self.path)
        except FileNotFoundError:
            raise
        except Exception as error:  # TensorFlow's errors are not OSErrors: no such file system, no credentials
            raise OSError(_reason(error)) from None
        with self.open() as file:
            return bytes(file.read_at(0, size)).decode(encoding)

    def open(self) -> OpenFile:
        """Returns the file, open for reading at any offset.

        Raises:
          DataError: it is missing or cannot be read.
        """
        return _RemoteFile(self) if self.is_remote else OpenFile(self.path)


def folder(data_dir: PathLike) -> File:
    """Returns the folder of a path or URL.

    Raises:
      UsageError: it is neither a text nor an `os.PathLike` of one, or empty.
    """
    path = os.fspath(data_dir) if isinstance(data_dir, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise UsageError(f"data_dir={data_dir!r}: must be the path of a data set's folder")
    return File(path)


def in_command(path: str, flag: str = "") -> str:
    """Returns a path or URL as a shell takes it in a printed command: quoted, with the options that the store needs.

    User and password of a URL, and options that may hold a secret, are left out: a terminal's output is kept.

    Args:
      path: as the user gave it.
      flag: `--data_dir` for `--data_dir=PATH`; by default the path stands alone.
    """
    if remote.is_of_arrow(path):
        base, _, options = path.partition("?")
        kept = [option for option in options.split("&") if _OPEN_OPTIONS.fullmatch(option)]
        path = _USER.sub("", base) + (f"?{'&'.join(kept)}" if kept else "")
    elif path.startswith("-") and not flag:  # it would be taken for a flag
        path = f"./{path}"
    return f"{flag}={shlex.quote(path)}" if flag else shlex.quote(path)


def credentials_of(url: str) -> str | None:
    """Returns in words what a command made with `in_command` still needs; None if it works as it is."""
    if remote.is_of_arrow(url) and _USER.search(url) and url.startswith("s3://"):
        return "put the key and the secret of the URL into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY first"
    return None


class OpenFile:
    """A file of this machine open for reading; a context manager. Several threads may each have their own."""

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        """Opens it, or takes over a descriptor that is open; raises DataError where it cannot be opened."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY) if descriptor is None else descriptor
        except OSError as error:
            raise _unreadable(path, error) from None

    def identity(self) -> Identity:
        """Returns what is open."""
        found = os.fstat(self._descriptor)
        return Identity(found.st_size, found.st_mtime_ns, found.st_ino)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fills `view` with the bytes from `offset` on.

        Raises:
          DataError: the file cannot be read or ends before.
        """
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise _unreadable(self.path, error) from None
            if count == 0:
                raise _short(self.path, offset, len(view), done)
            done += count

    def read_at(self, offset: int, size: int) -> memoryview:
        """Returns `size` bytes from `offset` on; raises as `read_into`."""
        view = memoryview(bytearray(size))
        self.read_into(view, offset)
        return view

    def close(self) -> None:
        """Releases what it holds."""
        os.close(self._descriptor)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _RemoteFile(OpenFile):
    def __init__(self, file: File) -> None:
        self.path, self._original = str(file), file
        try:
            self._file = remote.opened(file.path)
        except Exception as error:
            raise _unreadable(self.path, error) from None

    def identity(self) -> Identity:
        return self._original.identity()

    def read_into(self, view: memoryview, offset: int) -> None:
        try:
            self._file.seek(offset)
            data = self._file.read(len(view))
        except Exception as error:
            raise _unreadable(self.path, error) from None
        if len(data) < len(view):
            raise _short(self.path, offset, len(view), len(data))
        view[:] = data

    def close(self) -> None:
        self._file.close()


def _unreadable(path: str, error: Exception) -> DataError:
    return DataError(f"cannot be read: {_reason(error)}", path=path)


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    text = " ".join(text.split())
    return (text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}...") or type(error).__name__


def _short(path: str, offset: int, wanted: int, found: int) -> DataError:
    return DataError(f"ends at byte {offset + found}, not at {offset + wanted} or later; it was truncated", path=path)
