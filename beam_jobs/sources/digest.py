"""SHA-256 of a source's files, streamed by threads: what the manifest says the data set was made from."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import pathlib
import stat
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tqdm

from beam_jobs.sources import streams
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

_BLOCK = 1 << 20  # 1 MiB: hashlib releases the interpreter's lock for a millisecond at a time
_SECONDS_WITHOUT_BAR = 3.0

Path = str | bytes | pathlib.Path


class Digest(NamedTuple):
    """Of one file's content: its size in bytes and its SHA-256 in hexadecimal."""

    num_bytes: int
    sha256: str


def describe(files: Sequence[tuple[str, Path]]) -> tuple[SourceFile, ...]:
    """Returns the manifest's entry of each of `files`, (name in the manifest, path), in their order.

    After three seconds a bar is drawn if stderr is a terminal.

    Raises:
      DataError: a file is missing, no regular file, or cannot be read.
    """
    paths = [path for _, path in files]
    with bar(_total_bytes(paths)) as shown:
        found = digests(paths, shown.update)
    return tuple(SourceFile(name, *digest) for (name, _), digest in zip(files, found, strict=True))


class Tally:
    """The digest of bytes as they come."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        """Begins; `advance` is told of every block's size."""
        self._advance = advance
        self._sha256 = hashlib.sha256()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._sha256.update(data)
        self._size += len(data)
        self._advance(len(data))

    def digest(self) -> Digest:
        """Returns the digest of all bytes until now."""
        return Digest(self._size, self._sha256.hexdigest())


def digests(paths: Sequence[Path], advance: Callable[[int], object]) -> list[Digest]:
    """Returns the digest of each regular file, in their order. One thread and one block per core.

    `advance` is told of every block's size.

    Raises:
      DataError: a file is missing or cannot be read.
    """
    stop = threading.Event()

    def work(path: Path) -> Digest:
        try:
            return _digest(path, advance, stop)
        except BaseException:
            stop.set()  # else the other threads would finish their files before the error is told
            raise

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, paths))


def _digest(path: Path, advance: Callable[[int], object], stop: threading.Event) -> Digest:
    tally = Tally(advance)
    with streams.errors_of(os.fsdecode(path)), open(path, "rb", buffering=0) as stream:
        while not stop.is_set() and (block := stream.read(_BLOCK)):
            tally.add(block)
    return tally.digest()


def _total_bytes(paths: Sequence[Path]) -> int:
    total = 0
    for path in paths:
        with streams.errors_of(os.fsdecode(path)):
            status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # opening a named pipe would wait for ever
            raise DataError(f"{os.fsdecode(path)}: is not a regular file")
        total += status.st_size
    return total


def bar(total: int, text: str = "reading source") -> tqdm.tqdm:
    """Returns a bar of `total` bytes, which `update` moves from any thread; it is drawn on a terminal alone."""
    delay = _SECONDS_WITHOUT_BAR
    return tqdm.tqdm(total=total, desc=text, unit="B", unit_scale=True, delay=delay, disable=None, leave=False)
