"""Copies of a store's files in a `CacheFolder`: fetched whole, and used only if they have the manifest's CRC32C.

That is checked when a file is fetched, and when a process first opens a copy that it did not fetch itself, or that was
written to since.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable

import crc32c

from pipeline.commands.text import size_of
from pipeline.errors import DataError
from pipeline.manifest.storage import File, Identity, OpenFile
from pipeline.read.cache_counts import CacheCounts, count
from pipeline.read.cache_folder import CacheFolder, Entry

_BLOCK = 8 << 20  # 8 MiB: a request to an object store takes as long as 1 or 2 MiB from it
_POLL_SECONDS, _STALLED_SECONDS = 0.02, 60.0  # of a draft that another process writes
_ATTEMPTS = 2  # to fetch a file whose bytes are not the manifest's

_log = logging.getLogger("pipeline")


class Copies:
    """The copies of one data set's files; several threads may use it."""

    def __init__(self, data_dir: File, place: CacheFolder, skips: bool, check_running: Callable[[], None]) -> None:
        """Makes it.

        Args:
          data_dir: where the originals are.
          place: where the copies are.
          skips: whether a file with other bytes than the manifest says is read from the store, record by record.
          check_running: raises an error where a fetch should stop; it is called now and then.
        """
        self._data_dir, self._place, self._skips, self._check_running = data_dir, place, skips, check_running
        self._right: dict[Entry, Identity] = {}
        self._unfit: set[Entry] = set()
        self._told: set[str] = set()

    def is_unfit(self, entry: Entry) -> bool:
        """Whether a file is known to have no copy: its bytes are not the manifest's."""
        return entry in self._unfit

    def is_right(self, entry: Entry, identity: Identity) -> bool:
        """Whether this process has checked this very copy."""
        return self._right.get(entry) == identity

    def has_checked(self, entry: Entry) -> bool:
        """Whether this process reads a copy of the file."""
        return entry in self._right

    def copy_of(self, entry: Entry) -> io.FileIO | None:
        """Returns the copy of a file, which stays while it is open; None: the original has to be read.

        Raises:
          DataError: the store does not give the file, or its bytes are not the manifest's.
        """
        try:
            while True:
                self._check_running()
                copy = self._found(entry)
                if copy is not None:
                    count(CacheCounts(hits=1))
                    return copy
                draft = self._place.draft(entry)
                if draft is not None:
                    return self._fetched(entry, draft)
                written = self._place.written(entry)
                if written and time.time() - written > _STALLED_SECONDS:
                    self._uncached("another process does not finish what it fetches")
                    return None
                time.sleep(_POLL_SECONDS)
        except DataError:
            raise
        except OSError as error:  # of this machine's disk
            self._uncached(f"{self._place.path}: {error.strerror or error}")
            return None

    def damaged(self, entry: Entry, problem: str) -> DataError:
        """Returns the error for a copy that is no longer what was checked, and removes it."""
        copy = self._place.opened(entry) if self._right.pop(entry, None) else None
        if copy is not None:
            with copy:
                self._place.remove(entry, copy)
        return DataError(
            f"{self._place.file(entry)}: {problem} after this copy's CRC32C was checked: another program or the disk "
            "changed it; it is removed: start again, and it is fetched again"
        )

    def _found(self, entry: Entry) -> io.FileIO | None:
        copy = self._place.opened(entry)
        if copy is None:
            return None
        path = self._place.file(entry)
        with OpenFile(path, os.dup(copy.fileno())) as file:
            identity = file.identity()
            if self.is_right(entry, identity):
                return copy
            crc = _crc_of(file, identity.num_bytes)
        if (identity.num_bytes, crc) == (entry.num_bytes, entry.crc32c):
            self._right[entry] = identity
            return copy
        found = f"{identity.num_bytes} bytes of CRC32C {crc}, not {entry.num_bytes} of {entry.crc32c}"
        _log.warning("%s: %s; this copy is removed and fetched again", path, found)
        with copy:
            self._place.remove(entry, copy)
        return None

    def _fetched(self, entry: Entry, draft: io.FileIO) -> io.FileIO | None:
        """Returns a draft as the copy that it has become."""
        try:
            is_whole = self._is_filled(entry, draft)
            if is_whole:
                self._right[entry] = _identity_of(draft)
                self._place.publish(entry, draft)
        except BaseException:
            self._place.discard(entry, draft)
            raise
        if not is_whole:
            self._place.discard(entry, draft)
            return None
        count(CacheCounts(misses=1, fetched_bytes=entry.num_bytes))
        return draft

    def _is_filled(self, entry: Entry, draft: io.FileIO) -> bool:
        """Fetches a file into its draft; returns whether that is to become a copy."""
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
        """Writes a file's bytes to its draft, and returns their CRC32C."""
        crc = 0
        with (self._data_dir / entry.file).open() as source:
            for offset in range(0, entry.num_bytes, _BLOCK):
                block = source.read_at(offset, min(_BLOCK, entry.num_bytes - offset))
                crc = crc32c.crc32c(block, crc)
                done = 0
                while done < len(block):
                    done += os.pwrite(draft.fileno(), block[done:], offset + done)
                self._check_running()
        return f"{crc:08x}"

    def _unlike(self, entry: Entry, crc: str) -> None:
        """Notes a file whose bytes are not the manifest's; raises DataError unless its good records are to be read."""
        problem = f"{self._data_dir / entry.file}: its CRC32C is {crc}, not {entry.crc32c} as the manifest has it"
        if not self._skips:
            raise DataError(
                f"{problem}; copy or convert the data again; to see all that is wrong: python -m beam_jobs.validate "
                f"{self._data_dir.in_command}"
            )
        self._unfit.add(entry)
        self._uncached(problem)

    def _uncached(self, reason: str) -> None:
        """Counts a file that has no copy; the first time for each reason it tells the user."""
        count(CacheCounts(uncached=1))
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("cache_dir: %s; shards without a copy are read from %s itself", reason, self._data_dir)


def _identity_of(file: io.FileIO) -> Identity:
    found = os.fstat(file.fileno())
    return Identity(found.st_size, found.st_mtime_ns, found.st_ino)


def _crc_of(file: OpenFile, num_bytes: int) -> str:
    crc = 0
    for offset in range(0, num_bytes, _BLOCK):
        crc = crc32c.crc32c(file.read_at(offset, min(_BLOCK, num_bytes - offset)), crc)
    return f"{crc:08x}"
