"""Whole files read into memory, gzip or not, bounded and checked against the digest they had when first read."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import pathlib
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from pipeline.errors import DataError
from pipeline.manifest import SourceFile

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 64 << 20  # 64 MiB
_KEPT = 8  # files' contents kept a process: the four of MNIST, the six of CIFAR-10
_lock = threading.Lock()
_contents: dict[SourceFile, bytes] = {}


def describe(name: str, data: bytes) -> SourceFile:
    """Returns the manifest's entry of a file: its name, size and SHA-256."""
    return SourceFile(name, len(data), hashlib.sha256(data).hexdigest())


def cached(file: SourceFile, where: str, read: Callable[[], dict[str, bytes]]) -> bytes:
    """Returns the content of `file`, read once a process.

    Args:
      file: what was read when the source was opened.
      where: the path, for the error.
      read: reads it again, and with it whatever lies in the same archive: {name: content}.

    Raises:
      DataError: the content is no longer the same.
    """
    with _lock:
        if file not in _contents:
            for name, data in read().items():
                keep(describe(name, data), data)
        if file not in _contents:
            raise DataError(f"{where}: changed while it was being converted; run the conversion again")
        return _contents[file]


def keep(file: SourceFile, data: bytes) -> None:
    """Keeps a content for `cached`, so that the process which checked a source need not read it twice."""
    while len(_contents) >= _KEPT:
        _contents.pop(next(iter(_contents)))
    _contents[file] = data


def read_at_most(stream: IO[bytes], size: int) -> bytes:
    """Returns the next `size` bytes, fewer at the end of the file.

    In chunks, because `stream.read(size)` would first allocate all that a damaged header claims.
    """
    chunks: list[bytes] = []
    while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
        chunks.append(chunk)
        size -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading, decompressing where its first bytes say gzip.

    Raises:
      DataError: it is missing, no regular file, unreadable, or its gzip is cut short or corrupt; also while it is read.
    """
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: is not a regular file")
        with open(path, "rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
            raw.seek(0, os.SEEK_SET)
            if packed:
                with gzip.open(raw, "rb") as stream:
                    yield stream  # type: ignore[misc]
            else:
                yield raw
    except DataError:
        raise
    except EOFError:
        raise DataError(f"{path}: its gzip data is cut short; get the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: its gzip data is corrupt ({error}); get the file again") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
