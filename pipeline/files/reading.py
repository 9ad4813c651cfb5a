"""Open files, read at any offset, and their identity, which shows whether a file has been replaced."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, NamedTuple, cast

import crc32c

from pipeline.errors import DataError, reason_of

_BLOCK = 4 << 20  # 4 MiB, read at a time to compute a CRC
_NOT_REGULAR = "is not a regular file"


def opener(path: str, flags: int) -> int:
    """Opens a regular file for reading, for `open(..., opener=opener)`; returns its descriptor.

    Opening a FIFO without a writer would block forever; the content of a device or a socket has no end.

    Raises:
      OSError: the file cannot be opened, or is a FIFO, a socket or a device.
      IsADirectoryError: the path is a folder.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # Linux's error for a socket
            raise OSError(errno.EINVAL, _NOT_REGULAR, path) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, _NOT_REGULAR, path)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for buffered reading. Raises OSError like `opener`."""
    return cast(BinaryIO, open(path, "rb", opener=opener))


def content_of(path: str | os.PathLike[str]) -> bytes:
    """Returns the content of a regular file. Raises OSError like `opener`."""
    with opened(path) as file:
        return file.read()


class Identity(NamedTuple):
    """Distinguishes a file from a replacement: size in bytes, modification time in ns, and inode (0 for none)."""

    num_bytes: int
    written: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        """Returns the identity of a local file."""
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


class OpenFile:
    """A local file open for reading; a context manager. Each thread needs its own."""

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        """Opens the file, or takes over an open descriptor. Raises `DataError` if it cannot be opened."""
        self.path = path
        try:
            self._descriptor = opener(path, os.O_RDONLY) if descriptor is None else descriptor
        except OSError as error:
            raise unreadable(path, error) from None

    @property
    def descriptor(self) -> int | None:
        """File descriptor; None if the file is not read through one."""
        return self._descriptor

    def identity(self) -> Identity:
        """Returns the identity of the open file."""
        return Identity.of(os.fstat(self._descriptor))

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fills `view` with bytes starting at `offset`.

        Raises:
          DataError: the file cannot be read, or ends too early.
        """
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise unreadable(self.path, error) from None
            if count == 0:
                raise short(self.path, offset, len(view), done)
            done += count

    def read_at(self, offset: int, size: int) -> memoryview:
        """Returns `size` bytes starting at `offset`; raises errors like `read_into`."""
        view = memoryview(bytearray(size))
        self.read_into(view, offset)
        return view

    def crc32c(self) -> str:
        """Returns the CRC32C of the whole file, 8 hexadecimal digits; raises errors like `read_into`."""
        size, crc = self.identity().num_bytes, 0
        for offset in range(0, size, _BLOCK):
            crc = crc32c.crc32c(self.read_at(offset, min(_BLOCK, size - offset)), crc)
        return f"{crc:08x}"

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unreadable(path: object, error: Exception) -> DataError:
    """Returns an error about a file that the system or the store cannot read."""
    return DataError(f"cannot be read: {reason_of(error)}", path=path)


def short(path: str, offset: int, wanted: int, found: int) -> DataError:
    """Returns an error about a file that has `found` instead of `wanted` bytes after an offset."""
    return DataError(f"ends at byte {offset + found}, not at {offset + wanted} or later; it was truncated", path=path)
