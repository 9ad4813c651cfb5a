"""The cache of one input: shards are copied to a local disk ahead of their window, and read from there.

Copies are in a `CacheFolder`. They are fetched whole, and only used if they have the manifest's CRC32C. A process
checks that when it fetches a file, when it first opens another process's copy, and after a copy was written to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import crc32c

from pipeline.commands.text import count_of, size_of
from pipeline.errors import DataError, UsageError, reason_of, to_run
from pipeline.files.paths import PathLike, StoragePath, folder
from pipeline.files.reading import Identity, OpenFile
from pipeline.files.remote import in_command
from pipeline.manifest import Manifest
from pipeline.manifest.splits import Segment
from pipeline.read.cache_folder import CacheFolder, Entry

_BLOCK = 8 << 20  # 8 MiB: a request to an object store takes as long as 1 or 2 MiB from it
_POLL_SECONDS, _STALLED_SECONDS = 0.02, 60.0  # for waiting for another process's draft
_ATTEMPTS = 2  # to fetch a file with the manifest's CRC32C
_log = logging.getLogger("pipeline")
_FETCHES = 16  # fetches in flight; they wait for other machines
_MOST_AHEAD = 256  # most files fetched ahead; each holds a descriptor until its window is read


class CacheCounts(NamedTuple):
    """Counts of cache activity. A file counts once for each window that needs it.

    Attributes:
      hits: number of copies that existed.
      misses: number of files that this process fetched.
      uncached: number of files read from the store because they could not be copied.
      fetched_bytes: number of bytes fetched for the misses.
    """

    hits: int = 0
    misses: int = 0
    uncached: int = 0
    fetched_bytes: int = 0

    def plus(self, other: CacheCounts, sign: int = 1) -> CacheCounts:
        """Returns the sum, or the difference if `sign` is -1."""
        return CacheCounts(*(mine + sign * theirs for mine, theirs in zip(self, other, strict=True)))

    def __str__(self) -> str:
        """Returns a one-line summary; empty without a cache."""
        if not any(self):
            return ""
        rest = f", {self.uncached:,} read from the store" if self.uncached else ""
        misses = count_of(self.misses, "miss", "misses")
        return f"cache {count_of(self.hits, 'hit')}, {misses} ({size_of(self.fetched_bytes)} fetched){rest}"


class _Counted:
    """The counts of this process and their lock, which a forked process replaces."""

    def __init__(self) -> None:
        self.counts = CacheCounts()
        self.unlock()
        os.register_at_fork(after_in_child=self.unlock)

    def unlock(self) -> None:
        self.lock = threading.Lock()


_counted = _Counted()


def cache_counts() -> CacheCounts:
    """Returns the counts so far of all caches in this process."""
    return _counted.counts


def _count(more: CacheCounts) -> None:
    with _counted.lock:
        _counted.counts = _counted.counts.plus(more)


class Copies:
    """The copies of one data set's files. Several threads may use it.

    Attributes:
      right: identity of each copy that this process has checked.
      unfit: files that are known to differ from the manifest, so that they have no copy.
    """

    def __init__(
        self, data_dir: StoragePath, place: CacheFolder, skips: bool, check_running: Callable[[], None]
    ) -> None:
        """Manages the copies of a data set.

        Args:
          data_dir: folder of the originals.
          place: folder of the copies.
          skips: whether to read a file that differs from the manifest from the store, so that its corrupt records can
            be skipped; otherwise the difference is an error.
          check_running: function, called regularly, that raises an error to stop a fetch.
        """
        self._data_dir, self._place, self._skips, self._check_running = data_dir, place, skips, check_running
        self.right: dict[Entry, Identity] = {}
        self.unfit: set[Entry] = set()
        self._told: set[str] = set()

    def copy_of(self, entry: Entry) -> io.FileIO | None:
        """Returns the copy of a file, which stays while it is open; None if the original must be read.

        Raises:
          DataError: the store cannot read the file, or it differs from the manifest.
        """
        try:
            while True:
                self._check_running()
                copy = self._found(entry)
                if copy is not None:
                    _count(CacheCounts(hits=1))
                    return copy
                draft = self._place.draft(entry)
                if draft is not None:
                    return self._fetched(entry, draft)
                # Another process is fetching the file: wait for its copy as long as it makes progress.
                written = self._place.written(entry)
                if written and time.time() - written > _STALLED_SECONDS:
                    self._uncached("another process does not finish what it fetches")
                    return None
                time.sleep(_POLL_SECONDS)
        except DataError:
            raise
        except OSError as error:  # an error of the local disk
            self._uncached(f"{self._place.path}: {reason_of(error)}")
            return None

    def damaged(self, entry: Entry, problem: str) -> DataError:
        """Removes a copy that has changed since it was checked, and returns an error about it."""
        copy = self._place.opened(entry) if self.right.pop(entry, None) else None
        if copy is not None:
            with copy:
                self._place.remove(entry, copy)
        return DataError(
            f"{problem} after this copy's CRC32C was checked: another program or the disk "
            "changed it; it is removed: start again, and it is fetched again",
            path=self._place.file(entry),
        )

    def _found(self, entry: Entry) -> io.FileIO | None:
        copy = self._place.opened(entry)
        if copy is None:
            return None
        path = self._place.file(entry)
        with OpenFile(path, os.dup(copy.fileno())) as file:
            identity = file.identity()
            if self.right.get(entry) == identity:
                return copy
            crc = file.crc32c()
        if (identity.num_bytes, crc) == (entry.num_bytes, entry.crc32c):
            self.right[entry] = identity
            return copy
        found = f"{identity.num_bytes} bytes of CRC32C {crc}, not {entry.num_bytes} of {entry.crc32c}"
        _log.warning("%s: %s; this copy is removed and fetched again", path, found)
        with copy:
            self._place.remove(entry, copy)
        return None

    def _fetched(self, entry: Entry, draft: io.FileIO) -> io.FileIO | None:
        """Fills a draft and returns it as the copy; None if the file could not be copied."""
        try:
            is_whole = self._is_filled(entry, draft)
            if is_whole:
                # Noted before that, so that a reader that finds the copy need not compute its CRC again.
                self.right[entry] = Identity.of(os.fstat(draft.fileno()))
                self._place.publish(entry, draft)
        except BaseException:
            self._place.discard(entry, draft)
            raise
        if not is_whole:
            self._place.discard(entry, draft)
            return None
        _count(CacheCounts(misses=1, fetched_bytes=entry.num_bytes))
        return draft

    def _is_filled(self, entry: Entry, draft: io.FileIO) -> bool:
        """Fetches a file into its draft; returns whether the draft may become a copy."""
        if not self._place.reserve(entry, draft):
            most = size_of(self._place.most_bytes)
            self._uncached(f"cache_bytes, {most}, is less than the shards take that are in use")
            return False
        crc = ""
        for _ in range(_ATTEMPTS):
            crc = self._fetch(entry, draft)
            if crc == entry.crc32c:
                return True
        self._unlike(entry, crc)
        return False

    def _fetch(self, entry: Entry, draft: io.FileIO) -> str:
        """Writes a file's bytes to its draft; returns their CRC32C."""
        crc = 0
        with (self._data_dir / entry.file).open_file() as source:
            for offset in range(0, entry.num_bytes, _BLOCK):
                block = source.read_at(offset, min(_BLOCK, entry.num_bytes - offset))
                crc = crc32c.crc32c(block, crc)
                done = 0
                while done < len(block):
                    done += os.pwrite(draft.fileno(), block[done:], offset + done)
                self._check_running()
        return f"{crc:08x}"

    def _unlike(self, entry: Entry, crc: str) -> None:
        """Notes that a file differs from the manifest and must be read from the store, unless that is an error."""
        path, problem = self._data_dir / entry.file, f"its CRC32C is {crc}, not {entry.crc32c} as the manifest has it"
        if not self._skips:
            command = f"{to_run('beam_jobs.validate')} {in_command(self._data_dir.url)}"
            advice = f"copy or convert the data again; to see all that is wrong: {command}"
            raise DataError(problem, path=path, advice=advice)
        self.unfit.add(entry)
        self._uncached(f"{path}: {problem}")

    def _uncached(self, reason: str) -> None:
        """Counts a file without a copy, and warns once for each reason."""
        _count(CacheCounts(uncached=1))
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("cache_dir: %s; shards without a copy are read from %s itself", reason, self._data_dir)


@dataclasses.dataclass(eq=False)
class _Job:
    """A fetch of a file. The copy is open while the job has users; None if the original must be read."""

    entry: Entry
    copy: Future[io.FileIO | None]
    users: int = 0

    @property
    def is_in_vain(self) -> bool:
        """Whether the fetch has ended without a copy, so that another may try again."""
        done = self.copy
        return done.done() and (done.cancelled() or done.exception() is not None or done.result() is None)


class ShardCache:
    """The cache of one input. Several threads may use it, and it can be pickled for other processes on this machine."""

    def __init__(self, data_dir: str, digest: str, place: CacheFolder, skips: bool) -> None:
        """Makes the cache of a remote data set with copies in `place`; `skips`: whether to skip corrupt records."""
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
        """Returns the entry that identifies a file of the data set."""
        return Entry(self._digest, file, num_bytes, crc32c)

    def fetch_ahead(self, entries: Iterable[Entry]) -> None:
        """Starts fetching files; their copies are kept until `release`."""
        for entry in entries:
            with self._lock:
                before = self._ahead.get(entry)
                is_wanted = entry.num_bytes and entry not in self.copies.unfit
                if not is_wanted or (before and not before.is_in_vain) or len(self._ahead) >= _MOST_AHEAD:
                    continue
            job = self._begun(entry)
            with self._lock:
                before = self._ahead.pop(entry, None)
                self._ahead[entry] = job
            if before:  # fetched without success, or by a faster thread
                self._ended(before)

    def release(self, entries: Iterable[Entry]) -> None:
        """Releases files that a window has read."""
        for entry in entries:
            with self._lock:
                job = self._ahead.pop(entry, None)
            if job:
                self._ended(job)

    @contextlib.contextmanager
    def opened(self, entry: Entry) -> Iterator[OpenFile | None]:
        """Opens the copy of a file, fetching it first if needed; yields None if the original must be read.

        Raises:
          DataError: the store cannot read the file, it differs from the manifest, or the copy has changed.
        """
        if entry in self.copies.unfit or not entry.num_bytes:
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
                if self.copies.right.get(entry) != file.identity():
                    raise self.copies.damaged(entry, "it was written to")
        finally:
            self._ended(job)

    def _begun(self, entry: Entry) -> _Job:
        """Returns a file's job with one more user; the caller must call `_ended` for it."""
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
        job.copy.cancel()  # succeeds if the fetch has not begun; otherwise the copy is closed once it exists
        job.copy.add_done_callback(_close)

    def _check_running(self) -> None:
        """Raises DataError once the interpreter is exiting, because it waits for the fetching threads."""
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
    """Returns the cache for a selection; None if the user does not want one, or the data are on this machine.

    Raises:
      DataError: the folder cannot be written to.
      UsageError: the folder is a file, or `cache_bytes` is too small for the largest shard.
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


@functools.cache  # once per process
def _say_unused(cache_dir: str, data_dir: str) -> None:
    _log.warning("cache_dir=%s is not used: %s is a folder of this machine", cache_dir, data_dir)


def _close(copy: Future[io.FileIO | None]) -> None:
    if not copy.cancelled() and copy.exception() is None:
        file = copy.result()
        if file is not None:
            file.close()


_caches: weakref.WeakSet[ShardCache] = weakref.WeakSet()


def _restart() -> None:
    """Restarts all caches in a forked process, which inherits the parent's jobs and locks."""
    for cache in _caches:
        cache._start()


os.register_at_fork(after_in_child=_restart)
