"""Files of records by the text of a local path or by a remote path, which is what an index of many files keeps."""

from __future__ import annotations

import os
import pathlib
from typing import IO

import pyarrow as pa

from beam_jobs.sources import streams
from beam_jobs.storage.paths import LocalPath, RemotePath, StoragePath

Place = str | RemotePath  # a local path is kept as its text, which is small to send to workers
Stamp = tuple[int, int]  # size in bytes, time of the last change in nanoseconds (most stores tell whole seconds)


def place(path: StoragePath | pathlib.Path | Place) -> Place:
    """Returns the place of a path."""
    return path if isinstance(path, RemotePath) else str(path)


def path_of(place: Place) -> LocalPath | RemotePath:
    """Returns the path of a place."""
    return place if isinstance(place, RemotePath) else LocalPath(place)


def is_remote(path: StoragePath | pathlib.Path | Place) -> bool:
    """Says whether a path is in an object store or HDFS."""
    return isinstance(path, RemotePath)


def join(folder: StoragePath | pathlib.Path | Place, name: str) -> Place:
    """Returns the place of a file in a folder."""
    return place(path_of(place(folder)) / name)


def name_from(path: StoragePath | pathlib.Path | Place, folder: StoragePath | pathlib.Path | Place) -> str:
    """Returns a file's path from a folder that it is in."""
    return path.name_in(folder) if isinstance(path, RemotePath) else os.path.relpath(str(path), str(folder))


def open_file(place: Place, buffering: int = 0) -> IO[bytes]:
    """Opens a file; see `StoragePath.open`."""
    return path_of(place).open("rb", buffering)


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
    """Returns what changes when a file does; raises as `streams.stamp`."""
    return streams.stamp(path_of(place))


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
