"""A folder of this machine with copies of shards that its processes share: who fetches a file, reads it, removes it.

A file lies under its name, `<digest of the manifest>/<shard>`, only while it is whole. Whoever fetches it holds the
lock of its draft, whoever reads it shares the lock of the file, and nobody removes what another has locked. The locks
are `flock`s, which the system releases with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.errors import DataError, UsageError, reason_of
from pipeline.files.paths import share_lock, try_lock

_LOCK, _DRAFT = ".lock", ".part"
_FOLDER = re.compile(r"[0-9a-f]{16}")
_DIGITS = 16  # of the digest
_FREE_SHARE = 0.9  # of what the disk has left, where the user sets no bound
_LOCK_SECONDS, _LOCK_WAIT = 30.0, 0.002


class Entry(NamedTuple):
    """A file of a data set: the digest of its manifest, its name in the folder, size in bytes and CRC32C."""

    digest: str
    file: str
    num_bytes: int
    crc32c: str


class _Found(NamedTuple):
    used: int
    num_bytes: int
    path: str


class CacheFolder:
    """The folder. Threads and processes share it; a descriptor that it returns holds a lock until it is closed."""

    def __init__(self, path: str, most_bytes: int | None = None) -> None:
        """Makes the folder where there is none.

        Args:
          path: of the folder.
          most_bytes: that this process lets all its files take; None: 90% of what the disk has left for them.

        Raises:
          DataError: it cannot be written to, or its disk has no locks.
          UsageError: it is a file.
        """
        self.path = os.path.abspath(path)
        try:
            os.makedirs(self.path, exist_ok=True)
            with self._exclusive():
                self._remove_drafts()
            disk = os.statvfs(self.path)
        except FileExistsError:
            raise UsageError(f"cache_dir={path}: is a file, not a folder") from None
        except OSError as error:
            advice = "give a folder on a local disk"
            raise DataError(f"cache_dir={path}: cannot be used: {reason_of(error)}; {advice}") from None
        self.most_bytes = most_bytes or int(_FREE_SHARE * (disk.f_bavail * disk.f_frsize + self.num_bytes()))

    def file(self, entry: Entry) -> str:
        """Returns the path that an entry has once it is whole."""
        return os.path.join(self.path, entry.digest[:_DIGITS], os.path.basename(entry.file))

    def num_bytes(self) -> int:
        """Returns the bytes of all files, and those that drafts will have."""
        return sum(found.num_bytes for found in self._files())

    def opened(self, entry: Entry) -> io.FileIO | None:
        """Returns an entry open for reading, which stays until it is closed; None: there is none."""
        file = _open_locked(self.file(entry), os.O_RDONLY, shared=True)
        if file is not None:
            with contextlib.suppress(OSError):  # of another user
                os.utime(file.fileno(), ns=(time.time_ns(), os.fstat(file.fileno()).st_mtime_ns))
        return file

    def remove(self, entry: Entry, file: io.FileIO) -> None:
        """Removes an entry that is not what it should be, unless another has taken its place."""
        with self._exclusive(), contextlib.suppress(FileNotFoundError):
            if _is_at(file, self.file(entry)):
                os.unlink(self.file(entry))

    def draft(self, entry: Entry) -> io.FileIO | None:
        """Returns the empty draft of an entry, to be written by the caller alone; None: another writes it, or has."""
        path = self.file(entry)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # What a killed process left is overwritten.
        file = _open_locked(path + _DRAFT, os.O_RDWR | os.O_CREAT)
        if file is not None and os.path.exists(path):
            self.discard(entry, file)
            return None
        return file

    def reserve(self, entry: Entry, draft: io.FileIO) -> bool:
        """Reserves the disk space of a draft, evicting the least recently used files; False: too little can go.

        Raises:
          OSError: the disk is full.
        """
        with self._exclusive():
            os.ftruncate(draft.fileno(), 0)
            if not self._make_room(entry.num_bytes):
                return False
            _allocate(draft.fileno(), entry.num_bytes)
        return True

    def publish(self, entry: Entry, draft: io.FileIO) -> None:
        """Makes a draft the entry, and its lock that of a reader."""
        with self._exclusive():
            os.rename(self.file(entry) + _DRAFT, self.file(entry))
            share_lock(draft.fileno())

    def discard(self, entry: Entry, draft: io.FileIO) -> None:
        """Removes a draft."""
        with draft, contextlib.suppress(FileNotFoundError):
            if _is_at(draft, self.file(entry) + _DRAFT):
                os.unlink(self.file(entry) + _DRAFT)

    def written(self, entry: Entry) -> float:
        """Returns when something was last written to the draft of an entry; 0: there is none."""
        try:
            return os.stat(self.file(entry) + _DRAFT).st_mtime
        except FileNotFoundError:
            return 0.0

    def _files(self) -> list[_Found]:
        """Returns the files, drafts included; whatever else lies in the folder is not ours."""
        found = []
        for folder in os.scandir(self.path):
            if _FOLDER.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                for file in os.scandir(folder.path):
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found.append(_Found(status.st_atime_ns, status.st_size, file.path))
        return found

    def _make_room(self, num_bytes: int) -> bool:
        self._remove_drafts()
        files = sorted(self._files())
        total = num_bytes + sum(file.num_bytes for file in files)
        with contextlib.ExitStack() as unused:
            going = []
            for file in files:
                if total <= self.most_bytes:
                    break
                locked = None if file.path.endswith(_DRAFT) else _open_locked(file.path, os.O_RDONLY)
                if locked is not None:
                    unused.enter_context(locked)
                    going.append(file.path)
                    total -= file.num_bytes
            if total > self.most_bytes:
                return False
            for path in going:
                os.unlink(path)
        return True

    def _remove_drafts(self) -> None:
        """Removes drafts that nobody writes: their processes were killed."""
        for found in self._files():
            if found.path.endswith(_DRAFT):
                file = _open_locked(found.path, os.O_RDONLY)
                if file is not None:
                    with file:
                        os.unlink(found.path)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Context in which no other process or thread makes room, or renames or removes files."""
        with io.FileIO(os.path.join(self.path, _LOCK), "ab") as lock:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not try_lock(lock.fileno()):
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, f"another process has held its lock for {_LOCK_SECONDS:.0f} s")
                time.sleep(_LOCK_WAIT)
            yield


def _open_locked(path: str, flags: int, shared: bool = False) -> io.FileIO | None:
    """Returns a file, open and locked; None: it does not exist, is locked by another, or was just removed."""
    try:
        file = io.FileIO(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+" if flags & os.O_RDWR else "r")
    except FileNotFoundError:
        return None
    if try_lock(file.fileno(), shared) and _is_at(file, path):
        return file
    file.close()
    return None


def _is_at(file: io.FileIO, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _allocate(descriptor: int, num_bytes: int) -> None:
    """Gives a file its size and, as far as the system can, its disk space, so that a full disk is noticed now."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.ftruncate(descriptor, num_bytes)
