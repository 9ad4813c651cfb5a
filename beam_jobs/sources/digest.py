"""Sizes and SHA-256 of a source's files, for the manifest; several threads read them."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import threading
from collections.abc import Callable, Sequence

import tqdm

from beam_jobs.sources import streams
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

_SECONDS_WITHOUT_BAR = 3.0

Advance = Callable[[int], object]  # is told how many more bytes were read


def describe(files: Sequence[tuple[str, LocalPath]]) -> tuple[SourceFile, ...]:
    """Returns the manifest's entry of each of `files`, (name in the manifest, path), in their order.

    After three seconds a bar is drawn if stderr is a terminal.

    Raises:
      DataError: a file is missing, is not a regular file, or cannot be read.
    """
    with bar(sum(streams.stamp(path)[0] for _, path in files)) as shown:
        return tuple(digests(files, shown.update))


class Tally:
    """The size and digest of bytes as they come."""

    def __init__(self, advance: Advance) -> None:
        """Starts at no bytes."""
        self._advance = advance
        self._sha256 = hashlib.sha256()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._sha256.update(data)
        self._size += len(data)
        self._advance(len(data))

    def entry(self, name: str) -> SourceFile:
        """Returns the manifest's entry of a file that consists of the bytes so far."""
        return SourceFile(name, self._size, self._sha256.hexdigest())


def digests(files: Sequence[tuple[str, LocalPath]], advance: Advance) -> list[SourceFile]:
    """Returns the same entries as `describe`, without a bar. One thread and one block per core."""
    stop = threading.Event()

    def work(file: tuple[str, LocalPath]) -> SourceFile:
        name, path = file
        tally = Tally(advance)
        try:
            with streams.errors_of(path), streams.open_plain(path) as stream:
                # In blocks of 1 MiB hashlib releases the interpreter's lock for a millisecond at a time.
                while not stop.is_set() and (block := stream.read(streams.BLOCK)):
                    tally.add(block)
        except DataError:
            stop.set()  # else the other threads would finish their files before the error is raised
            raise
        return tally.entry(name)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, files))


def bar(total: int, text: str = "reading source") -> tqdm.tqdm:
    """Returns a progress bar of `total` bytes, drawn only on a terminal; any thread may call its `update`."""
    delay = _SECONDS_WITHOUT_BAR
    return tqdm.tqdm(total=total, desc=text, unit="B", unit_scale=True, delay=delay, disable=None, leave=False)
