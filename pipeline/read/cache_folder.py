"""A local folder of shard copies, shared by this machine's processes, which fetch, read and remove them under locks.

A file has its name, `<digest of the manifest>/<shard>`, only once it is complete. The process that fetches it locks its
draft, readers share the lock of the file, and no process removes a file that another has locked. The locks are
`flock`s, which the system releases when a process ends in any way.
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
from pipeline.manifest import naming

_LOCK, _DRAFT = ".lock", ".part"
_FOLDER = re.compile(r"[0-9a-f]{16}")
_DIGITS = 16  # digits of the digest
_FREE_SHARE = 0.9  # share of the free disk space, unless the user sets a bound
_LOCK_SECONDS, _LOCK_WAIT = 30.0, 0.002


class Entry(NamedTuple):
    """A file of a data set: digest of the manifest, name in the folder, size in bytes and CRC32C."""

    digest: str
    file: str
    num_bytes: int
    crc32c: str


class _Found(NamedTuple):
    used: int
    num_bytes: int
    path: str


class CacheFolder:
    """A folder shared by threads and processes. Each file that it returns is locked until it is closed."""

    def __init__(self, path: str, most_bytes: int | None = None) -> None:
        """Creates the folder if it is missing.

        Args:
          path: path of the folder.
          most_bytes: number of bytes that this process lets all files in the folder use; None for 90% of the disk space
            available to them.

        Raises:
          DataError: the folder cannot be written to, or its disk has no locks.
          UsageError: the path leads to a file.
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
        """Returns the path of an entry's copy."""
        name = naming.flat(entry.file.removeprefix(f"{naming.SIDECARS}/"))
        return os.path.join(self.path, entry.digest[:_DIGITS], name)

    def num_bytes(self) -> int:
        """Returns the bytes of all files, including bytes that drafts have reserved."""
        return sum(found.num_bytes for found in self._files())

    def opened(self, entry: Entry) -> io.FileIO | None:
        """Opens the copy of an entry, which stays until it is closed; None if there is no copy."""
        file = _open_locked(self.file(entry), os.O_RDONLY, shared=True)
        if file is not None:
            with contextlib.suppress(OSError):  # another user's file
                os.utime(file.fileno(), ns=(time.time_ns(), os.fstat(file.fileno()).st_mtime_ns))
        return file

    def remove(self, entry: Entry, file: io.FileIO) -> None:
        """Removes a bad copy of an entry, unless another file has taken its place."""
        with self._exclusive(), contextlib.suppress(FileNotFoundError):
            if _is_at(file, self.file(entry)):
                os.unlink(self.file(entry))

    def draft(self, entry: Entry) -> io.FileIO | None:
        """Opens the draft of an entry exclusively; None if another process is writing it, or has finished it."""
        path = self.file(entry)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # A draft left by a killed process is overwritten.
        file = _open_locked(path + _DRAFT, os.O_RDWR | os.O_CREAT)
        if file is not None and os.path.exists(path):  # another process finished just before the lock
            self.discard(entry, file)
            return None
        return file

    def reserve(self, entry: Entry, draft: io.FileIO) -> bool:
        """Reserves disk space for a draft, evicting the least recently used files; False if too little can be evicted.

        Raises:
          OSError: the disk is full.
        """
        with self._exclusive():
            os.ftruncate(draft.fileno(), 0)
            if not self._make_room(entry.num_bytes):
                return False
            if hasattr(os, "posix_fallocate"):  # detects a full disk now instead of in the middle of the fetch
                os.posix_fallocate(draft.fileno(), 0, entry.num_bytes)
            else:
                os.ftruncate(draft.fileno(), entry.num_bytes)
        return True

    def publish(self, entry: Entry, draft: io.FileIO) -> None:
        """Makes a draft the copy of an entry, and turns its lock into a reader's."""
        with self._exclusive():
            os.rename(self.file(entry) + _DRAFT, self.file(entry))
            share_lock(draft.fileno())

    def discard(self, entry: Entry, draft: io.FileIO) -> None:
        """Removes a draft."""
        with draft, contextlib.suppress(FileNotFoundError):
            if _is_at(draft, self.file(entry) + _DRAFT):
                os.unlink(self.file(entry) + _DRAFT)

    def written(self, entry: Entry) -> float:
        """Returns the time of the last write to an entry's draft; 0 if there is no draft."""
        try:
            return os.stat(self.file(entry) + _DRAFT).st_mtime
        except FileNotFoundError:
            return 0.0

    def _files(self) -> list[_Found]:
        """Returns our files in the folder, including drafts."""
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
        files = sorted(self._files())  # least recently used first
        total = num_bytes + sum(file.num_bytes for file in files)
        # All files to remove are locked first, so that none is removed in vain.
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
        """Removes drafts of killed processes, which nobody has locked."""
        for found in self._files():
            if found.path.endswith(_DRAFT):
                file = _open_locked(found.path, os.O_RDONLY)
                if file is not None:
                    with file:
                        os.unlink(found.path)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Context that keeps other threads and processes from making room and from renaming or removing files."""
        with io.FileIO(os.path.join(self.path, _LOCK), "ab") as lock:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not try_lock(lock.fileno()):
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, f"another process has held its lock for {_LOCK_SECONDS:.0f} s")
                time.sleep(_LOCK_WAIT)
            yield


def _open_locked(path: str, flags: int, shared: bool = False) -> io.FileIO | None:
    """Opens and locks a file; None if it does not exist, another process has locked it, or it was just removed."""
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
