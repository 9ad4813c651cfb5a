"""Files of a source wherever they lie, in a folder or an object store: how they are named, opened and told apart."""

from __future__ import annotations

import io
import os
import pathlib
from typing import IO, TypeVar

import pyarrow as pa

from beam_jobs.storage.paths import AnyPath, RemotePath, StoragePath
from pipeline.errors import DataError

Place = str | RemotePath  # a local path is kept as its text, which is small to send to workers
Stamp = tuple[int, int]  # size in bytes, time of the last change in nanoseconds (most stores tell whole seconds)
_REMOTE_BUFFER = 8 << 20  # 8 MiB: a request to an object store takes as long as 1 or 2 MiB from it
_REQUESTS = 16  # at a time: they wait, they do not work

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def place(path: StoragePath | AnyPath | Place) -> Place:
    """Returns the place of a path."""
    return path if isinstance(path, RemotePath) else str(path)


def path_of(place: Place) -> AnyPath:
    """Returns the path of a place."""
    return place if isinstance(place, RemotePath) else pathlib.Path(place)


def is_remote(place: Place | AnyPath | StoragePath) -> bool:
    """Says whether a place is in an object store or HDFS."""
    return isinstance(place, RemotePath)


def join(folder: Place, name: str) -> Place:
    """Returns the place of a file in a folder."""
    return folder / name if isinstance(folder, RemotePath) else os.path.join(folder, name)


def name_from(place: Place | AnyPath, folder: Place | AnyPath) -> str:
    """Returns a file's path from a folder that it is in."""
    if isinstance(place, RemotePath) or isinstance(folder, RemotePath):
        return str(place).removeprefix(f"{folder}/")
    return os.path.relpath(place, folder)


def open_file(place: Place, buffering: int = 0) -> IO[bytes]:
    """Opens a file.

    Args:
      place: of the file.
      buffering: 0 to read it here and there by `read_at`; else it is read front to back with a buffer, of so many bytes
        where it is local.

    Raises:
      OSError: it is missing or cannot be read; remote files raise it as DataError, and FileNotFoundError.
    """
    if not isinstance(place, RemotePath):
        return open(place, "rb", buffering=buffering)
    stream = place.open()
    return io.BufferedReader(stream, _REMOTE_BUFFER) if buffering else stream  # type: ignore[type-var, return-value]


def read_at(stream: IO[bytes], offset: int, size: int) -> bytes:
    """Returns `size` bytes of an unbuffered file from `open_file`, fewer at its end; any thread may call it.

    Raises:
      OSError: they cannot be read.
    """
    if isinstance(stream, pa.NativeFile):
        return bytes(stream.read_at(size, offset))
    chunks: list[bytes] = []
    while size > 0 and (chunk := os.pread(stream.fileno(), size, offset)):
        chunks.append(chunk)
        offset, size = offset + len(chunk), size - len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def stamp(place: Place) -> Stamp:
    """Returns what changes when a file does.

    Raises:
      DataError: it is gone, or its folder cannot be searched.
    """
    try:
        if isinstance(place, RemotePath):
            return place.size_and_time()
        status = os.stat(place)
    except FileNotFoundError:
        raise DataError(f"{place}: no such file") from None
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{place}: cannot be read: {error.strerror or error}") from None
    return status.st_size, status.st_mtime_ns


def stamp_of(stream: IO[bytes], place: Place) -> Stamp:
    """Returns the stamp of an open file; of a remote one that of what has its name now. Raises as `stamp`."""
    if is_remote(place):
        return stamp(place)
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


def size_of(stream: IO[bytes]) -> int:
    """Returns the bytes of an open file, which is then at its beginning."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size
