"""Files in an object store or on HDFS, named by a URL.

pyarrow reads and writes them. TensorFlow also reads `gs://` and others, but no longer `s3://` and `hdfs://`;
tensorflow-io, which adds these, does not load with TensorFlow 2.21.

An object store has no folders, links, locks or renames, and an object appears only when it is completely written.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import io
import os
import pathlib
import re
import shlex
from typing import IO, TYPE_CHECKING, Any, Literal

from pipeline.errors import one_line, reason_of
from pipeline.files.reading import Identity, OpenFile, short, unreadable

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import fs

SCHEMES = ("s3", "gs", "hdfs")  # written by pyarrow
_ONLY_ARROW = ("s3", "hdfs")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)")
_USER = re.compile(r"(?<=://)[^/@]*@")  # user in `s3://key:secret@bucket`
# Options of pyarrow's stores that hold no secrets; others are left out when a URL is shown.
_OPEN_OPTIONS = re.compile(
    r"(region|scheme|endpoint_override|force_virtual_addressing|tls_\w+|allow_\w+|background_writes|smart_defaults"
    r"|project_id|retry_limit_seconds|user|replication|buffer_size|default_block_size)=.*"
)
_BUFFER = 8 << 20  # 8 MiB: a request to an object store takes as long as 1 or 2 MiB from it
_S3_LIMITS = {"connect_timeout": 5, "request_timeout": 30}  # seconds; pyarrow's URLs have no options for them
_S3_ATTEMPTS = 3
_GCS_LIMIT = datetime.timedelta(seconds=30)


def is_url(text: str) -> bool:
    """Returns whether a text is a URL of any scheme."""
    return _URL.match(text) is not None


def scheme_of(text: str) -> str:
    """Returns the scheme of a URL in lower case; "" for a local path."""
    match = _URL.match(text)
    return match["scheme"].lower() if match else ""


def needs_arrow(url: str) -> bool:
    """Returns whether only pyarrow can read a URL; options of the store may then follow a `?`."""
    return url.partition("://")[0] in _ONLY_ARROW


def in_command(path: str | os.PathLike[str], flag: str = "") -> str:
    """Returns a path or URL to print in a command: quoted for a shell, with the options that the store needs.

    Users, passwords and options that may hold a secret are left out, because logs keep what is printed.

    Args:
      path: path as the user gave it.
      flag: `--data_dir` for `--data_dir=PATH`; empty for the path alone.
    """
    path = os.fspath(path)
    if needs_arrow(path):
        base, _, options = path.partition("?")
        kept = [option for option in options.split("&") if _OPEN_OPTIONS.fullmatch(option)]
        path = _USER.sub("", base) + (f"?{'&'.join(kept)}" if kept else "")
    elif path.startswith("-") and not flag:  # or the command would mistake it for a flag
        path = f"./{path}"
    return f"{flag}={shlex.quote(path)}" if flag else shlex.quote(path)


def credentials_of(url: str) -> str | None:
    """Returns advice that must be followed before a command with `in_command` works; None if there is none."""
    if needs_arrow(url) and _USER.search(url) and url.startswith("s3://"):
        return "put the key and the secret of the URL into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY first"
    return None


class RemotePath:
    """A file or folder named by a URL. Raises `DataError` with the URL and pyarrow's reason.

    Args:
      url: `s3://bucket/folder`, `gs://...` or `hdfs://...`; pyarrow's options for the store may follow a `?`.
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        base, question, query = url.partition("?")
        self._base = base.rstrip("/")
        self._query = question + query

    def __truediv__(self, name: str) -> RemotePath:
        return self._with_base(f"{self._base}/{name}")

    def __str__(self) -> str:
        """Returns the URL without the user and the store's options, which may hold secrets."""
        return _USER.sub("", self._base)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def url(self) -> str:
        """Whole URL, with the store's options."""
        return self._base + self._query

    @property
    def parent(self) -> RemotePath:
        """Containing folder."""
        return self._with_base(self._base.rpartition("/")[0])

    @property
    def name(self) -> str:
        """Last component."""
        return self._base.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """End of the last component, from its last dot."""
        return pathlib.PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """Last component without its suffix."""
        return pathlib.PurePosixPath(self.name).stem

    def name_in(self, folder: object) -> str:
        """Returns the path relative to a folder that contains it."""
        return str(self).removeprefix(f"{folder}/")

    def open(self, mode: Literal["rb"] = "rb", buffering: int = 0) -> IO[bytes]:
        """Opens the file for reading, unbuffered, or with a buffer of 8 MiB.

        Raises:
          FileNotFoundError: there is no such file.
          DataError: the file cannot be read.
        """
        stream = self.open_native()
        return io.BufferedReader(stream, _BUFFER) if buffering else stream

    def open_native(self) -> pyarrow.NativeFile:
        """Opens the file with pyarrow for reading at any offset; raises errors like `open`."""
        with one_line(self, "read", missing=True):
            return self._opened()

    def open_file(self) -> OpenFile:
        """Opens the file for reading at any offset.

        Raises:
          DataError: the file is missing or cannot be read.
        """
        return _OpenRemoteFile(self)

    def read_ahead(self, local: int) -> int:
        """Returns how many bytes to read ahead: 8 MiB."""
        return _BUFFER

    def read_bytes(self) -> bytes:
        """Returns the file's content; raises errors like `open`."""
        with self.open() as stream, one_line(self, "read", missing=True):
            return bytes(stream.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """Returns the file's text; raises errors like `open`."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Writes the file. Except on HDFS, readers see either all of the old content or all of the new.

        Raises:
          DataError: the file cannot be written.
        """
        with one_line(self, "written"):
            system, path = self._system()
            with system.open_output_stream(
                path, compression=None
            ) as stream:  # the default would compress a `.gz` again
                stream.write(data)

    def exists(self) -> bool:
        """Returns whether there is a file or a non-empty folder."""
        return self._kind() != "NotFound"

    def is_dir(self) -> bool:
        """Returns whether this is a non-empty folder."""
        return self._kind() == "Directory"

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and its modification time in ns.

        Raises:
          FileNotFoundError: there is no such file.
          DataError: the store does not report them.
        """
        with one_line(self, "read", missing=True):
            return self._size_and_time()

    def identity(self) -> Identity:
        """Returns the file's current identity.

        Raises:
          DataError: the file is missing.
        """
        try:
            return Identity(*self._size_and_time(), 0)
        except Exception as error:  # pyarrow does not raise OSError for a URL that it does not understand
            raise unreadable(self, error) from None

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the sorted names of the files in this folder and, with `recursive`, in subfolders, as `a/b`."""
        return self._listed("File", recursive)

    def folders(self) -> list[str]:
        """Returns the sorted names of subfolders, including empty ones if the store has them."""
        return self._listed("Directory")

    def names(self) -> list[str]:
        """Returns the names of the files in this folder."""
        return self.files()

    def make_folder(self) -> None:
        """Does nothing, because a store has no folders."""

    def move_to(self, new: Any) -> None:
        """Copies the file to another path in the same store and removes the original."""
        new.write_bytes(self.read_bytes())
        self.remove()

    def remove(self) -> None:
        """Removes the file, if it exists."""
        if self.exists():
            with one_line(self, "removed"), contextlib.suppress(FileNotFoundError):
                system, path = self._system()
                system.delete_file(path)

    def remove_folder(self) -> None:
        """Removes this folder with its content. On S3, removing only its last file would leave an empty object."""
        with one_line(self, "removed"), contextlib.suppress(FileNotFoundError):
            system, path = self._system()
            system.delete_dir(path)

    def sync(self) -> None:
        """Does nothing, because a store replies only when the data is on its disks."""

    def _opened(self) -> Any:
        system, path = self._system()
        return system.open_input_file(path)

    def _size_and_time(self) -> tuple[int, int]:
        info = self._info()
        if not info.is_file:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return int(info.size), int(info.mtime_ns or 0)

    def _kind(self) -> str:
        with one_line(self, "read", missing=True):
            return str(self._info().type.name)

    def _info(self) -> Any:
        system, path = self._system()
        return system.get_file_info(path)

    def _listed(self, kind: str, recursive: bool = False) -> list[str]:
        from pyarrow import fs  # noqa: PLC0415, as in `arrow_root`

        with one_line(self, "listed"):
            system, path = self._system()
            found = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
        start = len(path.rstrip("/")) + 1
        return sorted(info.path[start:] for info in found if info.type.name == kind)

    def _system(self) -> tuple[fs.FileSystem, str]:
        scheme, _, rest = self._base.partition("://")
        authority, _, path = rest.partition("/")
        system, root = arrow_root(f"{scheme}://{authority}{self._query}")
        return system, f"{root.rstrip('/')}/{path}".rstrip("/")

    def _with_base(self, base: str) -> RemotePath:
        """Returns another path in the same store; `base` may contain a `?`."""
        other = type(self)(self._query)
        other._base, other._query = base, self._query
        return other


class TensorFlowPath(RemotePath):
    """A file or folder to read with TensorFlow: `gs://`, `ram://` and the like. A `?` does not start options."""

    def __init__(self, url: str) -> None:
        self._base, self._query = url.rstrip("/"), ""

    def __str__(self) -> str:
        return self._base

    def read_bytes(self) -> bytes:
        """Returns the file's content; raises errors like `open`."""
        size, _ = self.size_and_time()  # raises FileNotFoundError, unlike `open_file`
        with self.open_file() as file:
            return bytes(file.read_at(0, size))

    def _opened(self) -> Any:
        return _gfile().GFile(self._base, "rb")

    def _size_and_time(self) -> tuple[int, int]:
        from tensorflow import errors  # noqa: PLC0415, only these folders need it

        try:
            status = _gfile().stat(self._base)
        except errors.NotFoundError as error:
            raise FileNotFoundError(2, error.message, self._base) from None
        except Exception as error:  # no such file system, no credentials
            raise OSError(reason_of(error)) from None
        return int(status.length), int(status.mtime_nsec)


class _OpenRemoteFile(OpenFile):
    def __init__(self, file: RemotePath) -> None:
        self.path, self._original = str(file), file
        try:
            self._file = file._opened()
        except Exception as error:
            raise unreadable(self.path, error) from None

    @property
    def descriptor(self) -> None:
        return None

    def identity(self) -> Identity:
        return self._original.identity()

    def read_into(self, view: memoryview, offset: int) -> None:
        try:
            self._file.seek(offset)
            data = self._file.read(len(view))
        except Exception as error:
            raise unreadable(self.path, error) from None
        if len(data) < len(view):
            raise short(self.path, offset, len(view), len(data))
        view[:] = data

    def close(self) -> None:
        self._file.close()


def _gfile() -> Any:
    import tensorflow as tf  # noqa: PLC0415, only these folders need it

    return tf.io.gfile


@functools.lru_cache(maxsize=8)  # connecting takes longer than a small read
def arrow_root(url: str) -> tuple[fs.FileSystem, str]:
    """Returns pyarrow's file system for a URL, with bounded timeouts, and the path in it.

    Raises:
      OSError: pyarrow is not installed, or does not support the URL.
    """
    try:
        from pyarrow import fs  # noqa: PLC0415, pip installs it for conversion, or for these URLs
    except ImportError:
        raise OSError("needs pyarrow, which is not installed: pip install 'stepfeed[remote]'") from None
    system, path = fs.FileSystem.from_uri(url)
    if isinstance(system, fs.S3FileSystem):  # by default it retries for long and may wait forever
        _, (options, *_) = system.__reduce__()
        attempts = fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS)
        # With a delayed open, files under 10 MiB are one request. A kill during a multipart upload would leave its
        # parts behind, and pyarrow cannot list those.
        options |= {**_S3_LIMITS, "retry_strategy": attempts, "allow_delayed_open": True}
        system = fs.S3FileSystem(**options)
    elif isinstance(system, fs.GcsFileSystem):  # by default it retries for 15 minutes without reacting to signals
        _, (options, *_) = system.__reduce__()
        system = fs.GcsFileSystem(**{**options, "retry_time_limit": options["retry_time_limit"] or _GCS_LIMIT})
    return system, path
