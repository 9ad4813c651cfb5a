"""Files and folders of object stores and HDFS, which pyarrow reads and writes."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import IO, Any, Literal

import pyarrow
from pyarrow import fs

from beam_jobs.storage.errors import one_line
from pipeline.manifest.remote import arrow_root

_USER = re.compile(r"(?<=://)[^/@]*@")  # of `s3://key:secret@bucket`
_BUFFER = 8 << 20  # 8 MiB: a request to an object store takes as long as 1 or 2 MiB from it


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
        """Returns the path of `name` in this folder."""
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
        """Returns the path from `folder`; see `LocalPath`."""
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
        """Returns 8 MiB; see `LocalPath`."""
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
