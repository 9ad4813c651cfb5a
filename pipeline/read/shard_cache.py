"""The cache of one input: its shards are copied to this machine's disk ahead of their window, and read from there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pipeline.errors import DataError, UsageError
from pipeline.manifest import Manifest
from pipeline.manifest.splits import Segment
from pipeline.manifest.storage import OpenFile, PathLike, folder
from pipeline.read.cache_folder import CacheFolder, Entry
from pipeline.read.copies import Copies

_FETCHES = 16  # at a time; they wait for other machines
_MOST_AHEAD = 256  # files: each takes a descriptor until its window is read

_log = logging.getLogger("pipeline")


@dataclasses.dataclass(eq=False)
class _Job:
    """The fetching of a file: its copy, open while the job has users; None where it has to be read from the store."""

    entry: Entry
    copy: Future[io.FileIO | None]
    users: int = 0

    @property
    def is_in_vain(self) -> bool:
        """Whether it has ended without a copy."""
        done = self.copy
        return done.done() and (done.cancelled() or done.exception() is not None or done.result() is None)


class ShardCache:
    """The cache of one input; several threads may use it, and it can be sent to other processes of this machine."""

    def __init__(self, data_dir: str, digest: str, place: CacheFolder, skips: bool) -> None:
        """Makes it; `digest` is the manifest's, the other arguments are as of `Copies`."""
        self._data_dir, self._digest, self._place, self._skips = data_dir, digest, place, skips
        self._start()
        _caches.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_FETCHES, thread_name_prefix="fetch")
        self._probed = ThreadPoolExecutor(1)
        self._jobs: dict[Entry, _Job] = {}
        self._ahead: dict[Entry, _Job] = {}
        self.copies = Copies(folder(self._data_dir), self._place, self._skips, self._check_running)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardCache, (self._data_dir, self._digest, self._place, self._skips)

    def entry(self, file: str, num_bytes: int, crc32c: str) -> Entry:
        """Returns what identifies a file of the data set."""
        return Entry(self._digest, file, num_bytes, crc32c)

    def fetch_ahead(self, entries: Iterable[Entry]) -> None:
        """Has files fetched, which then stay until `release`."""
        for entry in entries:
            with self._lock:
                before = self._ahead.get(entry)
                is_wanted = entry.num_bytes and not self.copies.is_unfit(entry)
                if not is_wanted or (before and not before.is_in_vain) or len(self._ahead) >= _MOST_AHEAD:
                    continue
            job = self._begun(entry)
            with self._lock:
                before = self._ahead.pop(entry, None)
                self._ahead[entry] = job
            if before:
                self._ended(before)

    def release(self, entries: Iterable[Entry]) -> None:
        """Lets go of files that a window has read."""
        for entry in entries:
            with self._lock:
                job = self._ahead.pop(entry, None)
            if job:
                self._ended(job)

    @contextlib.contextmanager
    def opened(self, entry: Entry) -> Iterator[OpenFile | None]:
        """Opens the copy of a file, which is fetched if there is none; None: the original has to be read.

        Raises:
          DataError: the store does not give the file, or its bytes are not the manifest's; or the copy was changed.
        """
        if self.copies.is_unfit(entry) or not entry.num_bytes:
            yield None
            return
        job = self._begun(entry)
        try:
            copy = job.copy.result()
            if copy is None:
                yield None
                return
            with OpenFile(self._place.file(entry), os.dup(copy.fileno())) as file:
                yield file
                if not self.copies.is_right(entry, file.identity()):
                    raise self.copies.damaged(entry, "it was written to")
        finally:
            self._ended(job)

    def _begun(self, entry: Entry) -> _Job:
        """Returns the job of a file with one user more; it has to be `_ended`."""
        with self._lock:
            job = self._jobs.get(entry)
            if job is None or job.is_in_vain:
                try:
                    job = _Job(entry, self._pool.submit(self.copies.copy_of, entry))
                except RuntimeError as error:  # the interpreter is exiting
                    raise DataError(f"nothing more can be read: {error}") from None
                self._jobs[entry] = job
            job.users += 1
            return job

    def _ended(self, job: _Job) -> None:
        with self._lock:
            job.users -= 1
            if job.users:
                return
            if self._jobs.get(job.entry) is job:
                del self._jobs[job.entry]
        job.copy.cancel()
        job.copy.add_done_callback(_close)

    def _check_running(self) -> None:
        """Raises DataError once the interpreter exits: it waits for the threads that fetch."""
        try:
            self._probed.submit(int)
        except RuntimeError as error:
            raise DataError(f"nothing more can be read: {error}") from None


def make_cache(
    data_dir: PathLike,
    manifest: Manifest,
    segments: Iterable[Segment],
    cache_dir: PathLike | None,
    cache_bytes: int | None = None,
    skips: bool = False,
) -> ShardCache | None:
    """Returns the cache of a selection; None: none is asked for, or the data are on this machine.

    Raises:
      DataError: the folder cannot be written to.
      UsageError: the folder is a file, or `cache_bytes` is too little for the largest shard.
    """
    if cache_dir is None:
        return None
    if not folder(data_dir).is_remote:
        _say_unused(os.fspath(cache_dir), os.fspath(data_dir))
        return None
    place = CacheFolder(os.fspath(cache_dir), cache_bytes)
    largest = max((segment.shard for segment in segments), key=lambda shard: shard.num_bytes)
    if largest.num_bytes > place.most_bytes:
        given = f"cache_bytes={cache_bytes}: must be" if cache_bytes else f"cache_dir={cache_dir}: its disk must have"
        raise UsageError(f"{given} {largest.num_bytes} or more, the size of {largest.file}, the largest shard")
    return ShardCache(os.fspath(data_dir), manifest.digest, place, skips)


@functools.cache
def _say_unused(cache_dir: str, data_dir: str) -> None:
    _log.warning("cache_dir=%s is not used: %s is a folder of this machine", cache_dir, data_dir)


def _close(copy: Future[io.FileIO | None]) -> None:
    if not copy.cancelled() and copy.exception() is None:
        file = copy.result()
        if file is not None:
            file.close()


_caches: weakref.WeakSet[ShardCache] = weakref.WeakSet()


def _restart() -> None:
    """Gives a forked process no job, and no lock, of its parent."""
    for cache in _caches:
        cache._start()


os.register_at_fork(after_in_child=_restart)
