"""Files of a source wherever they lie, in a folder or an object store: how they are named, opened and told apart."""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TypeVar

import pyarrow as pa

from beam_jobs.storage.paths import AnyPath, RemotePath
from pipeline.errors import DataError

Place = str | RemotePath  # a local path is kept as its text, which is small to send to workers
Stamp = tuple[int, int]  # size in bytes, time of the last change in nanoseconds (most stores tell whole seconds)
_REMOTE_BUFFER = 8 << 20  # 8 MiB: a request to an object store takes as long as 1 or 2 MiB from it
_REQUESTS = 16  # at a time: they wait, they do not work

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def place(path: AnyPath | Place) -> Place:
    """Returns the place of a path."""
    return path if isinstance(path, RemotePath) else str(path)


def path_of(place: Place) -> AnyPath:
    """Returns the path of a place."""
    return place if isinstance(place, RemotePath) else pathlib.Path(place)


def is_remote(place: Place | AnyPath) -> bool:
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


def buffer_of(place: Place, local: int) -> int:
    """Returns how many bytes to read ahead: `local` of them in a folder, 8 MiB elsewhere."""
    return _REMOTE_BUFFER if is_remote(place) else local


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


def open_native(place: Place) -> pa.NativeFile:
    """Opens a file for pyarrow; raises as `open_file`."""
    # Not memory-mapped: a file cut while it is read must not kill the process.
    return place.open() if isinstance(place, RemotePath) else pa.OSFile(place)


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


def each(function: Callable[[_Item], _Made], items: Iterable[_Item], remote: bool) -> Iterator[_Made]:
    """Yields what a function makes of each of some files, in their order: of remote ones some at a time, in threads.

    Raises what the function does, of the first file that fails.
    """
    if not remote:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield from pool.map(function, items)
