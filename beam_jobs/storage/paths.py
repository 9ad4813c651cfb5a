"""Places by their text: a local path, or a URL of an object store or HDFS, which pyarrow reads and writes.

An object store has no folders, links, locks or renames: an object is there when all of it is. `RemotePath` has those
methods of `pathlib.Path` that make sense there.
"""

from __future__ import annotations

import datetime
import functools
import pathlib
import re
from typing import IO, Any

import pyarrow
from pyarrow import fs

from pipeline.errors import DataError

SCHEMES = ("s3", "gs", "hdfs")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)")
_USER = re.compile(r"(?<=://)[^/@]*@")  # of `s3://key:secret@bucket`
_S3_LIMITS = {"connect_timeout": 5, "request_timeout": 30}  # seconds; a URL cannot say them
_S3_ATTEMPTS = 3
_GCS_LIMIT = datetime.timedelta(seconds=30)
_MOST_TEXT = 400  # characters of pyarrow's reason: without Java, HDFS names 100 places where it is not


class RemotePath:
    """A place that a URL names. Errors are `DataError`, with the URL and pyarrow's reason.

    Args:
      url: `s3://bucket/folder`, `gs://...` or `hdfs://...`; options of the store may follow a `?`, as pyarrow has them.
    """

    def __init__(self, url: str) -> None:
        place, question, query = url.partition("?")
        self._place = place.rstrip("/")
        self._query = question + query

    def __truediv__(self, name: str) -> RemotePath:
        """Returns the place of `name` in this one."""
        return self._with_place(f"{self._place}/{name}")

    def __str__(self) -> str:
        """Returns the URL, without the store's options and the user, which may hold a secret."""
        return _USER.sub("", self._place)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def url(self) -> str:
        """The whole URL, with the store's options."""
        return self._place + self._query

    @property
    def parent(self) -> RemotePath:
        """The folder that this is in."""
        return self._with_place(self._place.rpartition("/")[0])

    @property
    def name(self) -> str:
        """The last part."""
        return self._place.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The last part's end, from its last dot."""
        return pathlib.PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return pathlib.PurePosixPath(self.name).stem

    def open(self) -> IO[bytes]:
        """Opens the file for reading at any place; `pyarrow.NativeFile` has the methods of a binary file.

        Raises:
          FileNotFoundError: it is not there.
          DataError: it cannot be read.
        """
        with _errors(self, "read"):
            system, path = self._system()
            return system.open_input_file(path)  # type: ignore[no-any-return]

    def read_bytes(self) -> bytes:
        """Returns the file's content; raises as `open`."""
        with self.open() as stream, _errors(self, "read"):
            return bytes(stream.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """Returns the file's text; raises as `open`."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Writes the file; readers see the old content or all of the new one, but on HDFS.

        Raises:
          DataError: it cannot be written.
        """
        with _errors(self, "written"):
            system, path = self._system()
            with system.open_output_stream(path) as stream:
                stream.write(data)

    def exists(self) -> bool:
        """Says whether there is a file, or a folder with something in it."""
        return self._info().type != fs.FileType.NotFound

    def is_dir(self) -> bool:
        """Says whether it is a folder with something in it."""
        return bool(self._info().type == fs.FileType.Directory)

    def size_and_time(self) -> tuple[int, int]:
        """Returns the file's size in bytes and the time of its last change in ns.

        Raises:
          FileNotFoundError: it is not there.
        """
        info = self._info()
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"{self}: no such file")
        return int(info.size), int(info.mtime_ns or 0)

    def files(self, recursive: bool = False) -> list[str]:
        """Returns the names of the files in this folder, sorted; `a/b` for those in folders in it, if `recursive`."""
        with _errors(self, "listed"):
            system, path = self._system()
            found = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
        start = len(path.rstrip("/")) + 1
        return sorted(info.path[start:] for info in found if info.type == fs.FileType.File)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the file.

        Raises:
          FileNotFoundError: it is not there, and that is not fine.
          DataError: it cannot be removed.
        """
        if missing_ok and not self.exists():
            return
        with _errors(self, "removed"):
            system, path = self._system()
            system.delete_file(path)

    def _info(self) -> Any:
        with _errors(self, "read"):
            system, path = self._system()
            return system.get_file_info(path)

    def _system(self) -> tuple[fs.FileSystem, str]:
        scheme, _, rest = self._place.partition("://")
        authority, _, path = rest.partition("/")
        system, root = _root(f"{scheme}://{authority}{self._query}")
        return system, f"{root.rstrip('/')}/{path}".rstrip("/")

    def _with_place(self, place: str) -> RemotePath:
        """Returns another place of the same store; its name may hold a `?`."""
        other = RemotePath(self._query)
        other._place, other._query = place, self._query
        return other


AnyPath = pathlib.Path | RemotePath


def is_url(place: str) -> bool:
    """Says whether a text is a URL, of whatever scheme."""
    return _URL.match(place) is not None


def path_of(place: str) -> AnyPath:
    """Returns the place that a text names; a local one made absolute."""
    return RemotePath(place) if is_url(place) else pathlib.Path(place).absolute()


def text_of(path: AnyPath) -> str:
    """Returns the text of which `path_of` makes the same place."""
    return path.url if isinstance(path, RemotePath) else str(path)


def scheme_of(place: str) -> str:
    """Returns the scheme of a URL, in lower case; of a local path nothing."""
    match = _URL.match(place)
    return match["scheme"].lower() if match else ""


@functools.lru_cache(maxsize=8)  # making one takes longer than a small read
def _root(url: str) -> tuple[fs.FileSystem, str]:
    system, path = fs.FileSystem.from_uri(url)
    if isinstance(system, fs.S3FileSystem):  # which retries for long, and may wait for ever
        _, (options, *_) = system.__reduce__()
        attempts = fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS)
        system = fs.S3FileSystem(**{**options, **_S3_LIMITS, "retry_strategy": attempts})
    elif isinstance(system, fs.GcsFileSystem):  # for 15 minutes, in which no signal is answered
        _, (options, *_) = system.__reduce__()
        system = fs.GcsFileSystem(**{**options, "retry_time_limit": options["retry_time_limit"] or _GCS_LIMIT})
    return system, path


class _errors:  # noqa: N801 (a context manager, used as a function)
    def __init__(self, path: RemotePath, done: str) -> None:
        self._path, self._done = path, done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, FileNotFoundError) and self._done in ("read", "removed"):
            raise FileNotFoundError(2, "no such file", str(self._path)) from None
        if isinstance(error, (OSError, pyarrow.ArrowException)):
            reason = " ".join(str(error).split())
            reason = reason if len(reason) <= _MOST_TEXT else f"{reason[:_MOST_TEXT]}..."
            raise DataError(f"{self._path}: cannot be {self._done}: {reason}") from None
